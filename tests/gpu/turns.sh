#!/bin/bash
# memfit run --turns on a card: turns.sh BUILD [SECONDS OF A TURN] [STEPS] [GIB OF A JOB] [LIMIT]. Two PyTorch jobs that do not fit together: their losses against runs alone, and what the turns cost.
build=$(realpath "${1:-build}"); here=$(realpath "$(dirname "$0")"); turn=${2:-60}; steps=${3:-1400}; gib=${4:-8}; limit=${5:-12GiB}; name=turns-$gib
out=${OUT_FOLDER:-$(mktemp -d)}; export XDG_RUNTIME_DIR="$out/runtime"; mkdir -p -m 700 "$XDG_RUNTIME_DIR"; cd "$here" || exit 1
p="python3 turns_program.py"
"$build/memfit" run --share $name --memory "$limit" --turns "$turn" --report "$out/a.json" -- $p 1 "$steps" "$gib" >"$out/a.out" 2>"$out/a.err" & first=$!
sleep 0.5; n=0; until [ -e "$XDG_RUNTIME_DIR/memfit/$name.share" ] || [ $n = 300 ]; do sleep 0.1; n=$((n + 1)); done
"$build/memfit" run --share $name --turns "$turn" --report "$out/b.json" -- $p 2 "$steps" "$gib" >"$out/b.out" 2>"$out/b.err" & second=$!
if [ -z "$NO_REFS" ]; then $p 1 "$steps" "$gib" >"$out/r1.out" 2>"$out/r1.err" & refs=$!; $p 2 "$steps" "$gib" >"$out/r2.out" 2>"$out/r2.err" & refs="$refs $!"; fi
[ -n "$NO_REFS" ] || wait $refs; echo "alone: done at $SECONDS s"
wait $first; echo "a: exit status $?"; wait $second; echo "b: exit status $? at $SECONDS s"; grep -ah "memfit:" "$out"/[ab].err
python3 - "$out" "$turn" <<'P'
import json, sys
import os
alone_too = not os.environ.get('NO_REFS')
r = {n: json.loads(open(f'{sys.argv[1]}/{n}.out').read().strip().split('\n')[-1]) for n in ('a', 'b') + (('r1', 'r2') if alone_too else ())}
if not alone_too: r['r1'], r['r2'] = r['a'], r['b']  # nothing to compare with
j = {n: json.load(open(f'{sys.argv[1]}/{n}.json')) for n in 'ab'}
for job, ref in (('a', 'r1'), ('b', 'r2')):
    print(job, r[job]['steps'], 'steps, losses and memory bit-equal to those alone:', r[job]['hash'] == r[ref]['hash'], '; median step %.1f ms, alone %.1f; mean alone %.1f; longest %s, alone %s; reserved %d MiB' % (r[job]['median_ms'], r[ref]['median_ms'], r[ref]['mean_ms'], r[job]['longest'], r[ref]['longest'], r[job]['reserved_mib']))
    print({k: j[job][k] for k in ('status', 'suspended', 'away_seconds', 'turns_refused', 'peak_bytes')})
wall = max(r['a']['end'], r['b']['end']) - min(r['a']['begin'], r['b']['begin'])
alone = sum(r[k]['end'] - r[k]['begin'] for k in ('r1', 'r2'))
own = sum(r[k]['end'] - r[k]['begin'] - j[k]['away_seconds'] for k in 'ab')
switches = sum(j[k]['suspended'] for k in 'ab')
print('by turns %.1f s; the same steps alone, one job after the other, %.1f s: %.1f %% of the throughput alone; on the card %.1f s: %.1f %%' % (wall, alone, 100 * alone / wall, own, 100 * own / wall))
each = sum(j[k]['switching_seconds'] for k in 'ab') / max(1, switches)
print('%d suspensions, %.2f s each with coming back; with that, turns of 60 s would give %.1f %%' % (switches, each, 100 * 60 / (60 + each)))
P
