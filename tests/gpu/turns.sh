#!/bin/bash
# memfit run --turns on a card: turns.sh BUILD [TURNS] [SECONDS OF A JOB] [GIB OF A JOB] [LIMIT]. Two PyTorch jobs that do not fit together: first each alone, one after the other, then the same
# steps by turns. Losses and memory must be equal to the last bit; what the turns cost is told. Imports are done before anything is timed. Wants the card to itself.
build=$(realpath "${1:-build}"); here=$(realpath "$(dirname "$0")"); turns=${2:-auto}; seconds=${3:-35}; gib=${4:-8}; limit=${5:-12GiB}; name=turns-$gib
out=${OUT_FOLDER:-$(mktemp -d)}; export XDG_RUNTIME_DIR="$out/runtime"; mkdir -p -m 700 "$XDG_RUNTIME_DIR"; rm -f "$out"/go*; cd "$here" || exit 1
p="python3 turns_program.py"
GO="$out/go1" $p 1 "${seconds}s" "$gib" >"$out/r1.out" 2>"$out/r1.err" & r1=$!
GO="$out/go2" $p 2 "${seconds}s" "$gib" >"$out/r2.out" 2>"$out/r2.err" & r2=$!
GO="$out/go3" "$build/memfit" run --share $name --memory "$limit" --turns "$turns" --report "$out/a.json" -- $p 1 1 "$gib" >"$out/a.out" 2>"$out/a.err" & a=$!
n=0; until [ -e "$XDG_RUNTIME_DIR/memfit/$name.share" ] || [ $n = 50 ]; do sleep 0.1; n=$((n + 1)); done
GO="$out/go3" "$build/memfit" run --share $name --turns "$turns" --report "$out/b.json" -- $p 2 1 "$gib" >"$out/b.out" 2>"$out/b.err" & b=$!
sleep "${IMPORTS:-12}"
touch "$out/go1"; wait $r1; steps=$(python3 -c "import json; print(json.load(open('$out/r1.out'))['steps'])") || { cat "$out/r1.err"; kill $r2 $a $b; exit 1; }
echo "the first alone: $steps steps, done at $SECONDS s"
echo "$steps" >"$out/go"; cp "$out/go" "$out/go.2"; mv "$out/go.2" "$out/go2"; wait $r2; echo "the second alone: done at $SECONDS s"
mv "$out/go" "$out/go3"; wait $a; echo "a: exit status $?"; wait $b; echo "b: exit status $? at $SECONDS s"; grep -ah "memfit:" "$out"/[ab].err
python3 turns_table.py "$out" "$turns"
