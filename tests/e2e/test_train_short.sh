#!/bin/bash
# test_train_short.sh: what test_train.sh walks through, without limits: under a sanitizer the process is larger than any plan.
# Every path of a run once: pieces, recomputation, validation, 16-bit storage, logs, trace, checkpoint, resume, predict.
set -u
f="$MEMFIT_SOURCE/tests/fixtures/train"
t=$(mktemp -d)
trap 'rm -rf "$t"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
run() { "$MEMFIT" "$@" --quiet >"$t/out" 2>"$t/err" || fail "$* ($(tail -30 "$t/err"))"; }

run train "$f/cnn.keras" --data "$f/digits.npz" --epochs 2 --validation-split 0.2 --out "$t/a.keras" --log-csv "$t/log.csv" \
    --tensorboard "$t/board" --trace "$t/run.trace" --checkpoint "$t/ck.keras" --save-freq 3 --keep-best --early-stopping 3
run train "$f/cnn.keras" --data "$f/digits.npz" --epochs 2 --validation-split 0.2 --out "$t/b.keras" --keep-best --debug-poison
cmp "$t/a.keras" "$t/b.keras" || fail "poisoned memory changes the result"
run replay "$t/run.trace"
run train "$f/cnn.keras" --data "$f/digits.npz" --epochs 3 --resume "$t/ck.keras" --out "$t/c.keras"
echo '{"1": 2.0}' >"$t/weights.json"
run train "$f/mlp.keras" --data "$f/digits.h5" --batch-size 30 --gradient-accumulation 4 --epochs 2 --class-weight "$t/weights.json"
run train "$f/mlp.keras" --data "$f/digits_chunked.h5" --precision mixed_float16 --reduce-on-plateau 1 --epochs 3
run train "$f/cnn.keras" --data synthetic:50 --precision mixed_bfloat16 --optimizer lion --threads 2
for model in attention recurrent kinds functional_shared conv_rmsprop; do
    run train "$MEMFIT_SOURCE/tests/fixtures/keras/$model.keras" --data synthetic:40 --batch-size 16 --epochs 2 --out "$t/m.keras"
done
run evaluate "$t/a.keras" --data "$f/digits.npz" --batch-size 64
run predict "$t/a.keras" --data "$f/digits.npz" --batch-size 64 --out "$t/p.npy"
[ "$(stat -c %s "$t/p.npy")" = $((128 + 300 * 10 * 4)) ] || fail "predictions have the wrong size"

# A limit that changes while running.
echo 100GiB >"$t/limit"
"$MEMFIT" train "$f/mlp.keras" --data synthetic:64 --epochs 20000 --memory-file "$t/limit" --log-csv "$t/long.csv" --checkpoint "$t/stop.keras" --save-freq 100000000 --quiet >"$t/out" 2>"$t/err" &
pid=$!
for _ in $(seq 500); do [ "$(cat "$t/long.csv" 2>/dev/null | wc -l)" -gt 3 ] && break; sleep 0.02; done
echo 1MiB >"$t/limit"
wait $pid
status=$?
[ $status = 3 ] || fail "a limit of 1 MiB: exit status $status ($(tail -30 "$t/err"))"
[ -s "$t/stop.keras" ] || fail "no checkpoint"
echo "train, short: all good"
