#!/bin/bash
# test_stream.sh: NumPy arrays on standard input as data: the same model as from the file they come from.
set -u
. "$(dirname "$0")/lib.sh"
f="$MEMFIT_SOURCE/tests/fixtures/train"
m=("$f/mlp.keras" --threads 1 --seed 4 --quiet)
pipe() { python3 "$MEMFIT_SOURCE/tests/e2e/pipe_npy.py" "$@" 2>/dev/null; }
"$MEMFIT" train "${m[@]}" --data "$f/digits.npz" --epochs 3 --out "$dir/a.keras" >/dev/null 2>&1 || fail "from the file"
for step in 1000 50 7; do
    pipe "$f/digits.npz" $step | "$MEMFIT" train "${m[@]}" --data - --epochs 3 --json --out "$dir/b.keras" >"$dir/out" 2>"$dir/err" || fail "in batches of $step: $(tail -1 "$dir/err")"
    cmp -s "$dir/a.keras" "$dir/b.keras" || fail "in batches of $step: another model"
    is "$dir/out" allocations_in_steps 0
done
"$MEMFIT" predict "${m[0]}" --threads 1 --data "$f/digits.npz" --out "$dir/a.npy" >/dev/null 2>&1 || fail "predict from the file"
pipe "$f/digits.npz" 64 x | "$MEMFIT" predict "${m[0]}" --threads 1 --data - --out "$dir/b.npy" >/dev/null 2>&1 || fail "predict"
cmp -s "$dir/a.npy" "$dir/b.npy" || fail "predict: other numbers"
pipe "$f/digits.npz" 100 | "$MEMFIT" train "${m[0]}" --data - 2>&1 >/dev/null | grep -q "cannot be resumed" || fail "nobody says that it cannot be resumed"
# What is no such stream.
"$MEMFIT" train "${m[@]}" --data "$f/digits.npz" --steps 1 --save-freq 1 --checkpoint "$dir/ck.keras" >/dev/null 2>&1
expect 2 "cannot be resumed" "a resumed stream" "$MEMFIT" train "${m[@]}" --data - --resume "$dir/ck.keras" < <(pipe "$f/digits.npz" 50)
expect 5 "standard input is empty" "nothing" "$MEMFIT" train "${m[@]}" --data - </dev/null
expect 5 "y in - has (8, 8)" "inputs alone" "$MEMFIT" train "${m[@]}" --data - < <(pipe "$f/digits.npz" 50 x)
expect 5 "ended in the middle of array" "cut off" "$MEMFIT" train "${m[@]}" --data - < <(pipe "$f/digits.npz" 50 | head -c 5000)
expect 5 "no targets" "targets are missing" "$MEMFIT" train "${m[@]}" --data - < <(pipe "$f/digits.npz" 300 x)
expect 5 "is not a NumPy array" "a text" "$MEMFIT" train "${m[@]}" --data - < <(echo "x,y and other words")
[ "$failures" = 0 ] || exit 1
