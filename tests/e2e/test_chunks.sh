#!/bin/bash
# test_chunks.sh: the last layer and its loss in chunks, through the command line: chosen where memory is short, the laws
# of training, resumed to the bit, the same training as whole, suggested where it is switched off.
set -u
t=$(mktemp -d)
trap 'rm -rf "$t"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
. "$(dirname "$0")/json.sh"
key() { json "$1" "$2"; } # key FILE PATH
run() { "$MEMFIT" "$@" >"$t/out" 2>"$t/err"; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(d <= 1e-5 * (b < 0 ? -b : b)) }'; }

# A language model's head: 5,000 words, 64 of them a sample; logits of 10 MiB in a batch of 8.
layer() { printf '{"module":"keras.layers","class_name":"%s","config":{"name":"%s"%s}}' "$1" "$2" "$3"; }
cat >"$t/lm.json" <<END
{"module":"keras","class_name":"Sequential","config":{"name":"lm","layers":[
$(layer InputLayer in ',"batch_shape":[null,64],"dtype":"int32"'),
$(layer Embedding words ',"input_dim":5000,"output_dim":16'),
$(layer Dense end ',"units":5000,"activation":"softmax"')]},
"compile_config":{"optimizer":"adam","loss":"sparse_categorical_crossentropy","metrics":["accuracy"]}}
END

# Enough memory: whole, as ever. Short of it: chunks, with neither pieces nor recomputation.
run plan "$t/lm.json" --batch-size 8 --json || fail "plan: $(cat "$t/err")"
[ "$(key "$t/out" loss_chunks)" = 1 ] || fail "chunks without need"
limit=$(($(key "$t/out" peak_bytes) - (9 << 20)))
run plan "$t/lm.json" --batch-size 8 --memory $limit --gradient-accumulation off --recompute off --json || fail "no chunks"
chunks=$(key "$t/out" loss_chunks)
[ "$chunks" -gt 1 ] || fail "$chunks chunks"
[ "$(key "$t/out" numerics)" = reordered ] || fail "numerics $(key "$t/out" numerics)"
[ "$(key "$t/out" peak_bytes)" -le $limit ] || fail "above the limit"
run plan "$t/lm.json" --batch-size 8 --memory $limit --gradient-accumulation off --recompute off || fail "no text"
grep -q "with the last layer and its loss in $chunks chunks" "$t/out" || fail "no word of chunks: $(head -1 "$t/out")"
run plan "$t/lm.json" --batch-size 8 --memory $limit --gradient-accumulation off --recompute off --chunked-loss off
[ $? -eq 3 ] || fail "fits with chunks switched off"
grep -q "fits .* reordered  last layer and loss in $chunks chunks (--chunked-loss $chunks)" "$t/out" || fail "not suggested: $(cat "$t/out")"
run plan "$t/lm.json" --batch-size 8 --chunked-loss 4 --dump-graph "$t/graph" --json || fail "4 chunks: $(cat "$t/err")"
[ "$(key "$t/out" loss_chunks)" = 4 ] || fail "asked for 4 chunks"
[ "$(grep -c "^ *[0-9]* *loss_grad .* chunk " "$t/graph")" = 4 ] || fail "the graph has no 4 chunks"
run plan "$t/lm.json" --chunked-loss many
[ $? -eq 2 ] || fail "--chunked-loss many"

# Training in chunks: the laws, with validation and a last partial batch.
run train "$t/lm.json" --data synthetic:44 --validation-split 0.2 --batch-size 8 --epochs 2 --memory $limit \
    --gradient-accumulation off --recompute off --json || fail "train: $(cat "$t/err")"
[ "$(key "$t/out" loss_chunks)" -gt 1 ] || fail "trained whole"
[ "$(key "$t/out" arena_bytes)" = "$(key "$t/out" arena_used_bytes)" ] || fail "arena used is not arena planned"
[ "$(key "$t/out" measured_peak_bytes)" -le "$(key "$t/out" planned_peak_bytes)" ] || fail "measured above planned"
[ "$(key "$t/out" planned_peak_bytes)" -le $limit ] || fail "planned above the limit"
n=$(key "$t/out" allocations_in_steps)
[ "$n" = 0 ] || [ "$n" = null ] || fail "$n allocations in steps"
cp "$t/out" "$t/short"

# Ten steps whole, in chunks, and in pieces with chunks: one training.
for how in "--chunked-loss off" "--chunked-loss 4" "--chunked-loss 2 --gradient-accumulation 3" "--chunked-loss 7 --debug-poison"; do
    # shellcheck disable=SC2086
    run train "$t/lm.json" --data synthetic:44 --validation-split 0.2 --batch-size 8 --epochs 2 --learning-rate 0.01 $how --json || fail "$how: $(cat "$t/err")"
    loss=$(key "$t/out" loss) val=$(key "$t/out" validation.loss)
    [ "$how" = "--chunked-loss off" ] && whole=$loss whole_val=$val
    near "$loss" "$whole" || fail "$how: loss $loss, whole $whole"
    near "${val:-nan}" "$whole_val" || fail "$how: validation $val, whole $whole_val"
done

# Class weights: one label a sample, every other class weighs three times as much. They change the loss; chunks do not.
sed -e 's/"units":5000/"units":200/' -e "s/^\(.*\"class_name\":\"Dense\".*\)\$/$(layer GlobalAveragePooling1D mean '')\,\n\1/" "$t/lm.json" >"$t/classes.json"
awk 'BEGIN { printf "{"; for (i = 0; i < 200; i += 2) printf "%s\"%d\": 3.0", i ? ", " : "", i; print "}" }' >"$t/weights.json"
for how in "--chunked-loss off" "--class-weight $t/weights.json --chunked-loss off" "--class-weight $t/weights.json --chunked-loss 4" \
    "--class-weight $t/weights.json --chunked-loss 3 --gradient-accumulation 3"; do
    # shellcheck disable=SC2086
    run train "$t/classes.json" --data synthetic:440 --validation-split 0.2 --batch-size 96 --epochs 3 --learning-rate 0.01 $how --json || fail "$how: $(cat "$t/err")"
    loss=$(key "$t/out" loss) val=$(key "$t/out" validation.loss)
    case $how in
    "--chunked-loss off") plain=$loss ;;
    *"--chunked-loss off") whole=$loss whole_val=$val ;;
    *)
        [ "$(key "$t/out" loss_chunks)" -gt 1 ] || fail "$how: not in chunks"
        near "$loss" "$whole" || fail "$how: loss $loss, whole $whole"
        near "${val:-nan}" "$whole_val" || fail "$how: validation $val, whole $whole_val"
        ;;
    esac
done
near "$plain" "$whole" && fail "class weights change nothing: $plain"

# Interrupted and resumed without a limit: still in chunks, and the same bits.
run train "$t/lm.json" --data synthetic:40 --batch-size 8 --epochs 2 --memory $limit --recompute off --out "$t/whole.keras" || fail "whole: $(cat "$t/err")"
run train "$t/lm.json" --data synthetic:40 --batch-size 8 --epochs 2 --memory $limit --recompute off --steps 6 --checkpoint "$t/ck.keras" --save-freq 6 || fail "part"
run train "$t/lm.json" --data synthetic:40 --batch-size 8 --epochs 2 --resume "$t/ck.keras" --out "$t/resumed.keras" --json || fail "resume: $(cat "$t/err")"
[ "$(key "$t/out" loss_chunks)" -gt 1 ] || fail "resumed whole"
for m in whole resumed; do
    "$MEMFIT" predict "$t/$m.keras" --data synthetic:4 --batch-size 2 --out "$t/$m.npy" --quiet >/dev/null || fail "predict"
done
cmp "$t/whole.npy" "$t/resumed.npy" || fail "the resumed run differs"

# A sample whose logits do not fit evaluates in chunks.
run evaluate "$t/whole.keras" --data synthetic:4 --batch-size 1 --json || fail "evaluate"
limit=$(($(key "$t/out" planned_peak_bytes) - (600 << 10))) loss=$(key "$t/out" loss)
run evaluate "$t/whole.keras" --data synthetic:4 --batch-size 1 --memory $limit --json || fail "evaluate in chunks: $(cat "$t/err")"
[ "$(key "$t/out" loss_chunks)" -gt 1 ] || fail "evaluated whole"
near "$(key "$t/out" loss)" "$loss" || fail "evaluated in chunks: another loss"
echo "ok: chunks of the last layer and its loss"
