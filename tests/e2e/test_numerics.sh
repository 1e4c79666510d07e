#!/bin/bash
# test_numerics.sh: what a training computes does not depend on how it was cut: epochs in one run or several, with every
# optimizer's state going through the file.
set -u
f="$MEMFIT_SOURCE/tests/fixtures/train"
t=$(mktemp -d)
trap 'rm -rf "$t"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
train() { "$MEMFIT" train "$@" --quiet >"$t/out" 2>"$t/err" || fail "train $*: $(cat "$t/err")"; }

# Two epochs at once, or one after the other through a file: the same bytes, for every optimizer.
for o in sgd rmsprop adam adamw nadam adamax adagrad adadelta adafactor lion ftrl lamb; do
    train "$f/mlp.keras" --data "$f/digits.npz" --no-shuffle --optimizer $o --epochs 2 --out "$t/both.keras"
    train "$f/mlp.keras" --data "$f/digits.npz" --no-shuffle --optimizer $o --out "$t/one.keras"
    train "$t/one.keras" --data "$f/digits.npz" --no-shuffle --out "$t/two.keras"
    cmp "$t/both.keras" "$t/two.keras" || fail "$o: two epochs through a file are not two epochs"
done
echo "numerics: all good"
