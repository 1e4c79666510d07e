#!/bin/bash
# memfit run --turns on a card: turns.sh BUILD [STEPS] [SECONDS]. Two PyTorch jobs of 8 GiB in a share of 12: their losses against runs alone, and what the turns cost.
build=$(realpath "${1:-build}"); here=$(realpath "$(dirname "$0")"); steps=${2:-1500}; turn=${3:-60}
out=$(mktemp -d); trap 'rm -rf "$out"' EXIT
export XDG_RUNTIME_DIR="$out/runtime"; mkdir -m 700 "$XDG_RUNTIME_DIR"; cd "$here" || exit 1
python3 turns_program.py 1 "$steps" 0 >"$out/r1"; python3 turns_program.py 2 "$steps" 0 >"$out/r2"
"$build/memfit" run --share turns --memory 12GiB --turns "$turn" --report "$out/a.json" -- python3 turns_program.py 1 "$steps" 0.05 >"$out/a" & first=$!
sleep 0.5; "$build/memfit" run --share turns --turns "$turn" --report "$out/b.json" -- python3 turns_program.py 2 "$steps" 0.05 >"$out/b"; echo "exit status $?"; wait $first; echo "exit status $?"
python3 - "$out" <<'P'
import json, sys
r = {n: json.load(open(f'{sys.argv[1]}/{n}')) for n in ('r1', 'r2', 'a', 'b')}
print('losses bit-equal:', r['r1']['hash'] == r['a']['hash'], r['r2']['hash'] == r['b']['hash'])
wall = max(r['a']['end'], r['b']['end']) - min(r['a']['begin'], r['b']['begin'])
alone = sum(r[n]['steps'] * r[n]['median_ms'] / 1e3 for n in 'ab')
print('together %.1f s, alone %.1f s: %.1f %%' % (wall, alone, 100 * alone / wall))
for n in 'ab': j = json.load(open(f'{sys.argv[1]}/{n}.json')); print({k: j[k] for k in ('status', 'suspended', 'away_seconds', 'turns_refused', 'peak_bytes')})
P
