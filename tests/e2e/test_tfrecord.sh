#!/bin/bash
# test_tfrecord.sh: TFRecord files as data: the same training as from a folder and from arrays; stopped, killed and gone on.
set -u
. "$(dirname "$0")/lib.sh"
f="$MEMFIT_SOURCE/tests/fixtures"
m=("$f/pictures.keras" --batch-size 4 --threads 1 --quiet)
train() { "$MEMFIT" train "${m[@]}" --json "$@" >"$dir/out" 2>"$dir/err" || fail "train $*: exit $?: $(tail -2 "$dir/err")"; }
if "$MEMFIT" predict "${m[@]}" --data "$f/pictures" 2>&1 | grep -q "built without"; then
    echo "skipped: built without libjpeg or libpng"; exit 77
fi
# The same order, so the same bits, from a folder, from shards, from a packed file.
train --data "$f/pictures" --epochs 3 --seed 2 --out "$dir/a.keras"
for data in "$f/tfrecord/two-*.tfrecord" "$f/tfrecord/two-[01].tfrecord" "$f/tfrecord/packed.tfrecord.gz"; do
    train --data "$data" --epochs 3 --seed 2 --out "$dir/b.keras"
    cmp -s "$dir/a.keras" "$dir/b.keras" || fail "$data: another model than from the folder"
    is "$dir/out" allocations_in_steps 0
    [ "$(key measured_peak_bytes "$dir/out")" -le "$(key planned_peak_bytes "$dir/out")" ] || fail "$data: more was taken than planned"
done
# Weights by class, of labels in records.
echo '{"0": 1, "1": 3}' >"$dir/weights.json"
train --data "$f/pictures" --epochs 2 --class-weight "$dir/weights.json"; want=$(key loss "$dir/out")
train --data "$f/tfrecord/two-*.tfrecord" --epochs 2 --class-weight "$dir/weights.json"
[ "$(key loss "$dir/out")" = "$want" ] || fail "class weights: $(key loss "$dir/out"), not $want"
train --data "$f/tfrecord/two-*.tfrecord" --features 'image=image/encoded,kind=image/class/label' --validation-split 0.2
expect 2 "no feature" "a feature that is not there" "$MEMFIT" train "${m[@]}" --data "$f/tfrecord/two-0.tfrecord" --features x=picture
# Killed again and again, in the middle of epochs.
data="$f/tfrecord/two-*.tfrecord"
for i in 1 2 3 4 5 6; do {
    more=(); [ -f "$dir/ck.keras" ] && more=(--resume "$dir/ck.keras")
    timeout -s KILL 0.$((i * 17 % 80 + 10)) "$MEMFIT" train "${m[@]}" --data "$data" --epochs 3 --seed 2 --save-freq 1 --checkpoint "$dir/ck.keras" "${more[@]}" >/dev/null 2>&1
} 2>/dev/null; done
more=(); [ -f "$dir/ck.keras" ] && more=(--resume "$dir/ck.keras")
train --data "$data" --epochs 3 --seed 2 --out "$dir/b.keras" "${more[@]}"
cmp -s "$dir/a.keras" "$dir/b.keras" || fail "killed and gone on: another model"
# A damaged record: named with file and byte; left out on request.
cp "$f"/tfrecord/two-*.tfrecord "$dir"
printf 'XXXX' | dd of="$dir/two-1.tfrecord" bs=1 seek=600 conv=notrunc 2>/dev/null
expect 5 "two-1.tfrecord: the record at byte 0 is damaged" "a damaged record" "$MEMFIT" train "${m[@]}" --data "$dir/two-*.tfrecord"
train --data "$dir/two-*.tfrecord" --skip-bad 2
is "$dir/out" skipped_samples 1
# Files without records among others, packed or not, add nothing; records of another kind are said to be that.
cp "$f"/tfrecord/two-*.tfrecord "$dir"; : >"$dir/two-2.tfrecord"; : | gzip >"$dir/two-3.tfrecord"
train --data "$f/tfrecord/two-*.tfrecord" --out "$dir/a.keras"
train --data "$dir/two-*.tfrecord" --out "$dir/b.keras"
cmp -s "$dir/a.keras" "$dir/b.keras" || fail "files without records: another model"
expect 4 "tf.train.SequenceExample" "records of another kind" "$MEMFIT" train "${m[@]}" --data "$f/tfrecord/sequence_example.tfrecord"
expect 5 "matches no file" "a pattern without files" "$MEMFIT" train "${m[@]}" --data "$dir/three-*.tfrecord"
[ "$failures" = 0 ] || exit 1
