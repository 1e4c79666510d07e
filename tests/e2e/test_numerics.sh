#!/bin/bash
# test_numerics.sh: what a training computes does not depend on how it was cut (epochs in one run or several, with every
# optimizer's state going through the file) nor on the memory it had: what is labelled bitwise gives the same bytes.
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

. "$(dirname "$0")/json.sh"
key() { json "$t/out" "$1"; }

# Attentions side by side on one masked tensor: Keras's predictions are the targets.
"$MEMFIT" evaluate "$f/beside.keras" --data "$f/beside.npz" --json >"$t/out" || fail "beside.keras"
python3 -c 'import sys; sys.exit(not float(sys.argv[1]) < 1e-10)' "$(key loss)" || fail "attentions side by side: $(key loss) off Keras"

# Ten steps with all the memory that is wanted and with less and less: the same file, byte for byte. Released bytes are
# filled with NaN.
for m in residual recurrent attention unet; do
    words=("$f/$m.json" --data "$f/digits.npz" --optimizer adam --loss sparse_categorical_crossentropy --batch-size 150
        --epochs 5 --gradient-accumulation off --json)
    train "${words[@]}" --out "$t/all.keras" --recompute off
    [ "$(key steps)" = 10 ] || fail "$m: $(key steps) steps instead of 10"
    fixed=$(key fixed_bytes) arena=$(key arena_bytes) tried=0 recomputed=0
    for percent in 97 80 60 40; do
        "$MEMFIT" train "${words[@]}" --out "$t/less.keras" --memory $((fixed + arena * percent / 100)) --debug-poison --quiet \
            >"$t/out" 2>"$t/err"
        status=$?
        [ $status = 3 ] && break
        [ $status = 0 ] || fail "$m at $percent %: exit status $status: $(cat "$t/err")"
        [ "$(key numerics)" = bitwise ] || fail "$m at $percent %: $(key numerics)"
        [ "$(key measured_peak_bytes)" -le "$(key limit_bytes)" ] || fail "$m at $percent %: above the limit"
        [ "$(key planned_peak_bytes)" -le "$(key limit_bytes)" ] || fail "$m at $percent %: planned above the limit"
        [ "$(key arena_used_bytes)" = "$(key arena_bytes)" ] || fail "$m at $percent %: arena used is not arena planned"
        [ "$(key allocations_in_steps)" = 0 ] || fail "$m at $percent %: $(key allocations_in_steps) allocations in steps"
        tried=$((tried + 1))
        [ "$(key recomputed_ops)" = 0 ] || recomputed=$((recomputed + 1))
        cmp "$t/all.keras" "$t/less.keras" || fail "$m at $percent % ($(key recomputed_ops) operations twice) gives other weights"
    done
    echo "$m: $tried smaller limits, $recomputed with recomputation: the same bytes"
    [ $recomputed -gt 0 ] || [ $m = recurrent ] || fail "$m: nothing was recomputed"
done

# A run in pieces is resumed in those pieces, though there is memory for the whole batch now: the same bytes.
words=("$f/mlp.keras" --data "$f/digits.npz" --batch-size 150 --epochs 4)
train "${words[@]}" --gradient-accumulation 3 --out "$t/whole.keras"
train "${words[@]}" --gradient-accumulation 3 --steps 5 --checkpoint "$t/ck.keras" --save-freq 5
train "${words[@]}" --resume "$t/ck.keras" --out "$t/resumed.keras" --json
[ "$(key pieces)" = 3 ] || fail "resumed in $(key pieces) pieces"
"$MEMFIT" predict "$t/whole.keras" --data "$f/digits.npz" --out "$t/w.npy" --quiet || fail "predict"
"$MEMFIT" predict "$t/resumed.keras" --data "$f/digits.npz" --out "$t/r.npy" --quiet || fail "predict"
cmp "$t/w.npy" "$t/r.npy" || fail "the run resumed in pieces differs"
# Indices of an embedding that arrive as floats keep their width: rounded to 16 bits, 7999 would be row 8000.
for p in mixed_bfloat16 mixed_float16; do
    "$MEMFIT" plan "$f/../cuda/chosen/gru_text.keras" -b 8 --precision $p --dump-graph "$t/graph" --quiet >/dev/null || fail "plan of an embedding"
    grep -q 'cast  *embedding .*float32(8, 96).* -> y:int32(8, 96)' "$t/graph" || fail "$p: indices go through another type"
done
echo "numerics: all good"
