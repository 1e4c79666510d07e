#!/bin/bash
# test_augment.sh: random layers in the step and in the workers that make samples: the same models, byte for byte, from every kind of
# source, with pieces, a last batch, 16 bits, bytes as inputs; stopped, killed and gone on; planned = measured.
set -u
. "$(dirname "$0")/lib.sh"
f="$MEMFIT_SOURCE/tests/fixtures"
set="$dir/set"
cp -r "$f/pictures" "$set"
m=("$f/augment.keras" --batch-size 4 --threads 1 --quiet --seed 5)
if "$MEMFIT" predict "${m[@]:0:5}" --data "$set" 2>&1 | grep -q "built without"; then
    echo "skipped: built without libjpeg or libpng"; exit 77
fi
train() { "$MEMFIT" train "${m[@]}" --json "$@" >"$dir/out" 2>"$dir/err" || fail "train $*: exit $?: $(tail -2 "$dir/err")"; }
same() { cmp -s "$1" "$2" || fail "$3: another model"; }

# Both ways, whatever the source, and however a batch is divided. 22 samples: the last batch is smaller.
echo '{"0": 1, "1": 2}' >"$dir/weights.json"
for data in "$set" "$f/pictures.npz" "synthetic:22"; do
    for more in "--epochs 3" "--epochs 2 --gradient-accumulation 2" "--epochs 2 --precision mixed_bfloat16" "--epochs 2 --no-shuffle --prefetch 3 --workers 3" \
        "--epochs 2 --validation-split 0.25" "--epochs 2 --optimizer sgd --class-weight $dir/weights.json"; do
        [ "$data" != "synthetic:22" ] || [ "$more" = "--epochs 3" ] || continue
        train --data "$data" $more --augment graph --out "$dir/a.keras"
        is "$dir/out" worker_layers 0
        loss=$(key loss "$dir/out") arena=$(key arena_bytes "$dir/out")
        train --data "$data" $more --augment workers --out "$dir/b.keras"
        same "$dir/a.keras" "$dir/b.keras" "$data $more"
        is "$dir/out" loss "$loss"
        is "$dir/out" worker_layers 7
        is "$dir/out" allocations_in_steps 0
        [ "$(key measured_peak_bytes "$dir/out")" -le "$(key planned_peak_bytes "$dir/out")" ] || fail "$data $more: more was taken than planned"
        [ "$(key arena_used_bytes "$dir/out")" = "$(key arena_bytes "$dir/out")" ] || fail "$data $more: the arena is not what was planned"
        [ "$(key arena_bytes "$dir/out")" -le "$arena" ] || fail "$data $more: a larger arena without these layers"
    done
done
# Layers that are not the model's first ones stay (here the loss scale decides); images as bytes; samples that are left out; a cache.
train --data "$set" --epochs 2 --precision mixed_float16 --augment workers --out "$dir/b.keras"; is "$dir/out" worker_layers 0
for more in "--image-type uint8" "--cache memory" "--cache $dir/cache"; do
    train --data "$set" --epochs 2 $more --augment graph --out "$dir/a.keras"
    train --data "$set" --epochs 2 $more --augment workers --out "$dir/b.keras"; is "$dir/out" worker_layers 7
    same "$dir/a.keras" "$dir/b.keras" "$more"
done
cp "$set/other/grey.png" "$dir/kept"; head -c 100 "$dir/kept" >"$set/other/grey.png"
train --data "$set" --epochs 2 --skip-bad 1 --augment graph --out "$dir/a.keras"
train --data "$set" --epochs 2 --skip-bad 1 --augment workers --out "$dir/b.keras"; is "$dir/out" skipped_samples 1
same "$dir/a.keras" "$dir/b.keras" "a sample left out"
expect 5 "other/grey.png is cut off at byte" "a damaged image" "$MEMFIT" train "${m[@]}" --data "$set" --augment workers
cp "$dir/kept" "$set/other/grey.png"

# Stopped within an epoch and gone on, the one way and the other; killed at any time.
for data in "$set" "$f/pictures.npz"; do
    train --data "$data" --epochs 4 --augment graph --out "$dir/whole.keras"
    for ways in "graph workers" "workers graph" "workers workers"; do
        rm -f "$dir/ck.keras"
        train --data "$data" --epochs 4 --steps 9 --save-freq 9 --checkpoint "$dir/ck.keras" --augment "${ways% *}"
        train --data "$data" --epochs 4 --resume "$dir/ck.keras" --out "$dir/b.keras" --augment "${ways#* }"
        same "$dir/whole.keras" "$dir/b.keras" "$data: $ways"
    done
    rm -f "$dir/ck.keras"
    for i in 1 2 3 4 5 6 7 8; do {
        more=(); [ -f "$dir/ck.keras" ] && more=(--resume "$dir/ck.keras")
        timeout -s KILL 0.0$((i * 13 % 90 + 10)) "$MEMFIT" train "${m[@]}" --data "$data" --epochs 4 --save-freq 1 --checkpoint "$dir/ck.keras" --augment workers "${more[@]}" >/dev/null 2>&1
    } 2>/dev/null; done
    more=(); [ -f "$dir/ck.keras" ] && more=(--resume "$dir/ck.keras")
    train --data "$data" --epochs 4 --out "$dir/b.keras" --augment workers "${more[@]}"
    same "$dir/whole.keras" "$dir/b.keras" "$data: killed and gone on"
done

# Evaluating and predicting know nothing of it; a limit holds; what is wrong is said.
for more in "evaluate" "predict"; do
    "$MEMFIT" "$more" "${m[@]:0:5}" --data "$set" --out "$dir/$more.npy" >/dev/null 2>"$dir/err" || fail "$more: $(tail -1 "$dir/err")"
done
cmp -s "$dir/evaluate.npy" "$dir/predict.npy" || fail "evaluate and predict differ"
train --data "$set" --epochs 1 --augment workers; need=$(key planned_peak_bytes "$dir/out")
train --data "$set" --epochs 2 --augment graph --out "$dir/a.keras"
train --data "$set" --epochs 2 --augment workers --memory $((need + 1048576)) --out "$dir/b.keras"
[ "$(key measured_peak_bytes "$dir/out")" -le $((need + 1048576)) ] || fail "above its limit"
same "$dir/a.keras" "$dir/b.keras" "within a limit"
expect 3 "limit" "a limit below what workers take" "$MEMFIT" train "${m[@]}" --data "$set" --augment workers --memory 1500KB
expect 2 "must be auto, workers or graph" "another word" "$MEMFIT" train "${m[@]}" --data "$set" --augment cpu
"$MEMFIT" train "$f/pictures.keras" --batch-size 4 --data "$set" --augment workers >/dev/null 2>"$dir/err" || fail "no random layers"
grep -q "changes nothing: no random layer" "$dir/err" || fail "no random layers: $(head -2 "$dir/err")"
# By itself where processors are left idle.
if [ "$(nproc)" -gt 1 ]; then
    train --data "$set" --epochs 1; is "$dir/out" worker_layers 7
    m[4]=$(nproc); train --data "$set" --epochs 1; is "$dir/out" worker_layers 0
fi
[ "$failures" = 0 ] || exit 1
