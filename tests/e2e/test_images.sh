#!/bin/bash
# test_images.sh: a folder of images as data: the same training as from the arrays Keras makes of them, whatever the number of
# workers; damaged images; stopping, killing and going on; limits.
set -u
. "$(dirname "$0")/lib.sh"
f="$MEMFIT_SOURCE/tests/fixtures"
set="$dir/set"
cp -r "$f/pictures" "$set"
m=("$f/pictures.keras" --batch-size 4 --threads 1 --quiet)
if "$MEMFIT" predict "${m[@]}" --data "$set" 2>&1 | grep -q "built without"; then
    echo "skipped: built without libjpeg or libpng"; exit 77
fi
train() { "$MEMFIT" train "${m[@]}" --json "$@" >"$dir/out" 2>"$dir/err" || fail "train $*: exit $?: $(tail -2 "$dir/err")"; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(a != "" && b != "" && d < 1e-4 && d > -1e-4) }' || fail "$3: $1, not $2"; }

# The same numbers as from Keras's arrays of the same files, planned = measured, nothing allocated in a step.
train --data "$f/pictures.npz" --no-shuffle --epochs 3; arrays=$(key loss "$dir/out")
train --data "$set" --no-shuffle --epochs 3 --out "$dir/a.keras"
near "$(key loss "$dir/out")" "$arrays" "the loss from images and from arrays"
is "$dir/out" allocations_in_steps 0
is "$dir/out" skipped_samples 0
[ "$(key measured_peak_bytes "$dir/out")" -le "$(key planned_peak_bytes "$dir/out")" ] || fail "more was taken than planned"
[ "$(key input_bytes "$dir/out")" -lt "$(key fixed_bytes "$dir/out")" ] || fail "the workers are not part of the fixed cost"
for more in "--workers 1" "--workers 5" "--prefetch 3" "--gradient-accumulation 2"; do
    train --data "$set" --no-shuffle --epochs 3 --out "$dir/b.keras" $more
    case $more in --grad*) near "$(key loss "$dir/out")" "$arrays" "$more" ;;
    *) cmp -s "$dir/a.keras" "$dir/b.keras" || fail "$more: another model" ;; esac
done
# One-hot rows for a loss that wants them; validation held out as Keras does; bytes instead of floats.
train --data "$f/pictures.npz" --no-shuffle --epochs 2; sparse=$(key loss "$dir/out")
train --data "$set" --no-shuffle --epochs 2 --loss categorical_crossentropy
near "$(key loss "$dir/out")" "$sparse" "one-hot and whole-number labels"
train --data "$set" --validation-split 0.25 --epochs 2 --seed 7
[ "$(key steps "$dir/out")" = 10 ] || fail "17 of 22 are trained on: $(key steps "$dir/out") steps"
train --data "$set" --validation-data "$set" --epochs 1 --image-type uint8
"$MEMFIT" evaluate "${m[@]}" --data "$set" --json >"$dir/e" 2>"$dir/err" || fail "evaluate: $(tail -1 "$dir/err")"
"$MEMFIT" evaluate "${m[@]}" --data "$f/pictures.npz" --json >"$dir/e2" 2>/dev/null || fail "evaluate arrays"
near "$(key loss "$dir/e")" "$(key loss "$dir/e2")" "evaluate"
"$MEMFIT" predict "${m[@]}" --data "$set" --out "$dir/p.npy" >/dev/null 2>"$dir/err" || fail "predict: $(tail -1 "$dir/err")"

# JPEGs decoded smaller are other values, and said to be; WebP is planned and measured as all else.
"$MEMFIT" train "${m[@]:0:5}" --data "$set" --epochs 1 --image-decode scaled >"$dir/out" 2>&1 || fail "scaled: $(tail -1 "$dir/out")"
grep -q "other values than Keras's (changed)" "$dir/out" || fail "scaled decoding is not said: $(cat "$dir/out")"
"$MEMFIT" train "${m[@]}" --data "$set" --image-decode half >/dev/null 2>"$dir/err"; [ $? = 2 ] || fail "--image-decode half"
mkdir -p "$dir/webp"; cp -r "$f/webp/a" "$dir/webp/"; rm "$dir/webp/a/zmoving.webp"; cp -r "$dir/webp/a" "$dir/webp/b"
if "$MEMFIT" train "${m[@]}" --data "$dir/webp" --epochs 2 --json >"$dir/out" 2>"$dir/err"; then
    is "$dir/out" allocations_in_steps 0
    [ "$(key measured_peak_bytes "$dir/out")" -le "$(key planned_peak_bytes "$dir/out")" ] || fail "WebP: more was taken than planned"
else
    grep -q "built without libwebp" "$dir/err" || fail "WebP: $(tail -1 "$dir/err")"
fi

# A run that is stopped in an epoch, and one that is killed, go on to the same bits.
train --data "$set" --epochs 4 --seed 3 --out "$dir/whole.keras"
train --data "$set" --epochs 4 --seed 3 --steps 9 --save-freq 9 --checkpoint "$dir/ck.keras"
train --data "$set" --epochs 4 --seed 3 --resume "$dir/ck.keras" --out "$dir/b.keras"
cmp -s "$dir/whole.keras" "$dir/b.keras" || fail "stopped and gone on: another model"
rm -f "$dir/ck.keras"
for i in 1 2 3 4 5 6 7 8; do {
    more=(); [ -f "$dir/ck.keras" ] && more=(--resume "$dir/ck.keras")
    timeout -s KILL 0.$((i * 13 % 90 + 10)) "$MEMFIT" train "${m[@]}" --data "$set" --epochs 4 --seed 3 --save-freq 1 --checkpoint "$dir/ck.keras" "${more[@]}" >/dev/null 2>&1
} 2>/dev/null; done
more=(); [ -f "$dir/ck.keras" ] && more=(--resume "$dir/ck.keras")
train --data "$set" --epochs 4 --seed 3 --out "$dir/b.keras" "${more[@]}"
cmp -s "$dir/whole.keras" "$dir/b.keras" || fail "killed and gone on: another model"

# A damaged image ends the run with its name and a checkpoint, or is left out; mended, the run goes on to the same bits.
victim="$set/other/grey.png"
cp "$victim" "$dir/kept"; head -c 100 "$dir/kept" >"$victim"
expect 5 "other/grey.png is cut off at byte" "a damaged image" "$MEMFIT" train "${m[@]}" --data "$set" --epochs 4 --seed 3 --checkpoint "$dir/ck2.keras" --save-freq 1000
expect 5 "--skip-bad" "a damaged image: what to do" "$MEMFIT" evaluate "${m[@]}" --data "$set"
[ -f "$dir/ck2.keras" ] || fail "a damaged image: no checkpoint"
echo '{"0": 1, "1": 2}' >"$dir/weights.json"
train --data "$set" --epochs 2 --skip-bad 1 --class-weight "$dir/weights.json"
is "$dir/out" skipped_samples 1
grep -q "other/grey.png" "$dir/err" && fail "--quiet says what is left out"
cp "$dir/kept" "$victim"
train --data "$set" --epochs 4 --seed 3 --resume "$dir/ck2.keras" --out "$dir/b.keras"
cmp -s "$dir/whole.keras" "$dir/b.keras" || fail "mended and gone on: another model"

# Limits: what the workers take is under it, and said when it alone is too much.
train --data "$set" --epochs 1 --memory 64MiB
expect 3 "decoding it needs at least" "too little for a decoder" sh -c '"$@"; s=$?; [ $s = 3 ] && exit 3; exit $s' sh "$MEMFIT" train "${m[@]}" --data "$set" --decode-memory 8KiB
expect 3 "" "workers beyond the limit" "$MEMFIT" train "${m[@]}" --data "$set" --decode-memory 200MiB --workers 4 --memory 100MiB
expect 2 "must be height and width" "a size that is none" "$MEMFIT" train "${m[@]}" --data "$set" --image-size 12
expect 5 "expects samples of shape (24, 20, 3)" "another size than the model's" "$MEMFIT" train "${m[@]}" --data "$set" --image-size 10,10
# A link that leads nowhere is a file of the folder, as for Keras, and not left out in silence; so is what is no file at all.
ln -s nowhere "$set/jpeg/gone.jpg"
expect 5 "jpeg/gone.jpg cannot be read: No such file" "a broken link" "$MEMFIT" train "${m[@]}" --data "$set"
mv "$set/jpeg/gone.jpg" "$dir"; mkfifo "$set/jpeg/pipe.jpg"
expect 5 "jpeg/pipe.jpg cannot be read: it is not a regular file" "a pipe" timeout 20 "$MEMFIT" train "${m[@]}" --data "$set"
train --data "$set" --epochs 2 --skip-bad 1; is "$dir/out" skipped_samples 1
rm "$set/jpeg/pipe.jpg"
# What is kept is said on a line of its own, with no escaped line end in it.
cp "$set/other/one.gif" "$dir/one.gif"
"$MEMFIT" train "${m[@]}" --data "$set" --epochs 1000000 --checkpoint "$dir/gone.keras" --save-freq 1000000 >/dev/null 2>"$dir/err" &
pid=$!; sleep 0.5; rm "$set/other/one.gif"; wait $pid; [ $? = 5 ] || fail "a file that vanishes: $(tail -1 "$dir/err")"
grep -q "other/one.gif cannot be read" "$dir/err" || fail "a file that vanishes: $(tail -2 "$dir/err")"
grep -q "steps; --resume .* goes on from here" "$dir/err" || fail "a file that vanishes, what is kept: $(tail -2 "$dir/err")"
grep -qF '\n' "$dir/err" && fail "a line end is printed as text: $(tail -1 "$dir/err")"
cp "$dir/one.gif" "$set/other/one.gif"
mkdir "$dir/flat"; cp "$set/jpeg/plain.jpg" "$dir/flat"
expect 5 "no sub-folders" "a folder without classes" "$MEMFIT" train "${m[@]}" --data "$dir/flat"
[ "$failures" = 0 ] || exit 1
