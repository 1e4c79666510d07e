#!/bin/bash
# test_kill.sh: kill -9 at random moments of a training with checkpoints; resuming gives the undisturbed run's weights.
# ROUNDS sets how often (10).
set -u
f="$MEMFIT_SOURCE/tests/fixtures/train"
t=$(mktemp -d)
trap 'rm -rf "$t"' EXIT
args=(--data "$f/digits.npz" --epochs 6 --seed 3 --threads 1 --quiet)
"$MEMFIT" train "$f/cnn.keras" "${args[@]}" --out "$t/whole.keras" || exit 1
"$MEMFIT" predict "$t/whole.keras" --data "$f/digits.npz" --out "$t/whole.npy" --quiet
RANDOM=${SEED:-42}
for ((i = 0; i < ${ROUNDS:-10}; i++)); do
    rm -f "$t/ck.keras" "$t/out.keras"
    "$MEMFIT" train "$f/cnn.keras" "${args[@]}" --checkpoint "$t/ck.keras" --save-freq 1 --out "$t/out.keras" 2>/dev/null &
    pid=$!
    sleep "0.$(printf %03d $((RANDOM % 400)))"
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    if [ ! -s "$t/out.keras" ]; then
        resume=()
        [ -e "$t/ck.keras" ] && resume=(--resume "$t/ck.keras")
        "$MEMFIT" train "$f/cnn.keras" "${args[@]}" "${resume[@]}" --out "$t/out.keras" || { echo "FAIL: round $i: resume"; exit 1; }
    fi
    "$MEMFIT" predict "$t/out.keras" --data "$f/digits.npz" --out "$t/out.npy" --quiet || { echo "FAIL: round $i: damaged"; exit 1; }
    cmp "$t/whole.npy" "$t/out.npy" || { echo "FAIL: round $i: other weights"; exit 1; }
done
echo "kill: $i rounds, all the same"
