#!/bin/bash
# test_sequences.sh: sequences of different lengths, padded to the longest or in batches of similar length (--bucket), from every
# form they come in; weights of each step; against the losses Keras has (tools/make_sequence_fixtures.py).
set -u
. "$(dirname "$0")/lib.sh"
f="$MEMFIT_SOURCE/tests/fixtures/sequences"
near() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(a != "" && b != "" && d < 2e-5 && d > -2e-5) }' || fail "$3: $1, not $2"; }
train() { # MODEL DATA options...
    "$MEMFIT" train "$f/$1.keras" --data "$f/$2" --batch-size 8 --epochs 2 --threads 1 --json "${@:3}" >"$dir/out" 2>"$dir/err" ||
        fail "train $*: exit $?: $(tail -2 "$dir/err")"
}
lawful() { # what holds for every run
    is "$dir/out" allocations_in_steps 0
    [ "$(key arena_used_bytes "$dir/out")" = "$(key arena_bytes "$dir/out")" ] || fail "$1: arena used is not arena planned"
    [ "$(key measured_peak_bytes "$dir/out")" -le "$(key planned_peak_bytes "$dir/out")" ] || fail "$1: more was taken than planned"
}
said() { grep -q "$1" "$dir/err" || fail "\"$1\" is not said: $(cat "$dir/err")"; }

# Padded to the longest: whichever form the data have, the same model; and the loss Keras has with padding by batch.
for d in padded.npz ragged.npz records.tfrecord; do
    train one $d --no-shuffle --out "$dir/$d.keras"; lawful "$d"
    near "$(key loss "$dir/out")" "$(key one.1 "$f/losses.json")" "$d"
    cmp -s "$dir/padded.npz.keras" "$dir/$d.keras" || fail "$d: another model than from padded arrays"
    case $d in padded*) ;; *) said "is padding; --bucket pads less" ;; esac
done
# In batches of similar length: the same for all forms, at any number of workers; every sample counts once.
for d in padded.npz ragged.npz records.tfrecord; do
    train one $d --bucket --seed 4 --out "$dir/b.$d.keras"; lawful "$d --bucket"
    said "batches of similar length, padded to"
    cmp -s "$dir/b.padded.npz.keras" "$dir/b.$d.keras" || fail "$d --bucket: another model than from padded arrays"
done
train one records.tfrecord --bucket --seed 4 --workers 5 --out "$dir/w.keras"
cmp -s "$dir/b.padded.npz.keras" "$dir/w.keras" || fail "five workers: another model"
cmp -s "$dir/padded.npz.keras" "$dir/b.padded.npz.keras" && fail "--bucket changed nothing"
train one padded.npz --bucket --seed 4 --learning-rate 1e-30; one=$(key loss "$dir/out")
train one padded.npz --seed 9 --learning-rate 1e-30; near "$(key loss "$dir/out")" "$one" "the mean over all samples"
# Cut into several files, with a longest sequence of its own each.
for d in 'part-*.npz' 'filled-*.npz'; do
    train one "$d" --no-shuffle --out "$dir/p.keras"; lawful "$d"
    cmp -s "$dir/padded.npz.keras" "$dir/p.keras" || fail "$d: another model than from one file"
    train one "$d" --bucket --seed 4 --out "$dir/p.keras"; lawful "$d --bucket"
    said "batches of similar length, padded to"
    cmp -s "$dir/b.padded.npz.keras" "$dir/p.keras" || fail "$d --bucket: another model than from one file"
done
train one 'part-*.npz' --bucket --epochs 3 --seed 3 --out "$dir/whole.keras"
train one 'part-*.npz' --bucket --epochs 3 --seed 3 --steps 14 --save-freq 14 --checkpoint "$dir/ck"
train one 'part-*.npz' --bucket --epochs 3 --seed 3 --resume "$dir/ck" --out "$dir/again.keras"
cmp -s "$dir/whole.keras" "$dir/again.keras" || fail "several files: resumed to another model"
rm -f "$dir/ck"
# Steps of several numbers, in flat lists as tf.io.FixedLenSequenceFeature([3]) reads them; targets of two numbers a step.
for more in "point --seed 1" "path --features x,y=path"; do
    for d in points.npz points.tfrecord; do
        train ${more%% *} $d --no-shuffle ${more#* } --out "$dir/$d.keras"; lawful "$more $d"
        near "$(key loss "$dir/out")" "$(key loss "$f/${more%% *}.json")" "$more $d"
    done
    cmp -s "$dir/points.npz.keras" "$dir/points.tfrecord.keras" || fail "$more: another model from records"
    for d in points.npz points.tfrecord; do train ${more%% *} $d --bucket --seed 4 ${more#* } --out "$dir/$d.keras"; lawful "$more $d --bucket"; done
    cmp -s "$dir/points.npz.keras" "$dir/points.tfrecord.keras" || fail "$more --bucket: another model from records"
done
expect 5 "but a step of the model's input has 3" "steps that are not whole" "$MEMFIT" train "$f/point.keras" --data "$f/points.tfrecord" --features x=path,y
# The lists that arrange the batches of many samples are planned for, too. (Files of records may be put one behind the other.)
for i in $(seq 40); do cat "$f/records.tfrecord"; done >"$dir/40"; for i in $(seq 40); do cat "$dir/40"; done >"$dir/many.tfrecord"
"$MEMFIT" train "$f/one.keras" --data "$dir/many.tfrecord" --batch-size 8 --steps 3 --bucket --threads 1 --json >"$dir/out" 2>"$dir/err" || fail "many: $(tail -1 "$dir/err")"
[ "$(key measured_peak_bytes "$dir/out")" -le "$(key planned_peak_bytes "$dir/out")" ] || fail "many samples: more was taken than planned"
rm "$dir/40" "$dir/many.tfrecord"
# Steps with targets and weights of their own.
train each steps.npz --no-shuffle --out "$dir/steps.keras"; lawful steps
near "$(key loss "$dir/out")" "$(key weighted.1 "$f/losses.json")" "weights of each step"
train each steps_ragged.npz --no-shuffle --out "$dir/r.keras"; lawful "steps, ragged"
cmp -s "$dir/steps.keras" "$dir/r.keras" || fail "weights of each step: ragged and padded differ"
train each steps.npz --bucket --seed 4 --out "$dir/steps.keras"; lawful "steps --bucket"
train each steps_ragged.npz --bucket --seed 4 --out "$dir/r.keras"
cmp -s "$dir/steps.keras" "$dir/r.keras" || fail "weights of each step, --bucket: ragged and padded differ"
train each steps.tfrecord --bucket --validation-split 0.2 --gradient-accumulation 2 --allow-changed-numerics; lawful "records --bucket"

# Killed or stopped within an epoch, a run goes on to the same bits, --bucket said again or not.
train one records.tfrecord --bucket --epochs 4 --seed 3 --out "$dir/whole.keras"
for at in 3 11 17 29; do
    train one records.tfrecord --bucket --epochs 4 --seed 3 --steps $at --save-freq 1 --checkpoint "$dir/ck"
    "$MEMFIT" train "$f/one.keras" --data "$f/records.tfrecord" --batch-size 8 --epochs 4 --threads 1 --quiet --resume "$dir/ck" --out "$dir/again.keras" >/dev/null 2>"$dir/err" ||
        fail "resume at $at: $(tail -1 "$dir/err")"
    cmp -s "$dir/whole.keras" "$dir/again.keras" || fail "resumed at $at: another model"
done
expect 2 "goes on as before" "another batch in the middle of an epoch" "$MEMFIT" train "$f/one.keras" --data "$f/records.tfrecord" --batch-size 4 --resume "$dir/ck"
rm -f "$dir/ck" "$dir/kill.keras"
"$MEMFIT" train "$f/one.keras" --data "$f/ragged.npz" --batch-size 8 --epochs 4 --seed 3 --bucket --threads 1 --quiet --save-freq 1 --checkpoint "$dir/ck" >/dev/null 2>&1 &
pid=$!
for _ in $(seq 500); do [ -s "$dir/ck" ] && break; sleep 0.01; done
kill -9 $pid 2>/dev/null; wait $pid 2>/dev/null
"$MEMFIT" train "$f/one.keras" --data "$f/ragged.npz" --batch-size 8 --epochs 4 --threads 1 --quiet --resume "$dir/ck" --out "$dir/kill.keras" >/dev/null 2>"$dir/err" || fail "after a kill: $(tail -1 "$dir/err")"
cmp -s "$dir/whole.keras" "$dir/kill.keras" || fail "killed and resumed: another model"

# A limit holds with several lengths in one arena; what is refused says what would do.
train one ragged.npz --bucket; peak=$(key planned_peak_bytes "$dir/out")
train one ragged.npz --bucket --memory $((peak + 200000)); lawful limited
[ "$(key planned_peak_bytes "$dir/out")" -le $((peak + 200000)) ] || fail "the limit does not hold"
# Wrong use.
expect 2 "exclude each other" "--bucket and --no-shuffle" "$MEMFIT" train "$f/one.keras" --data "$f/ragged.npz" --bucket --no-shuffle
expect 2 "leaves its length open" "--bucket for a fixed input" "$MEMFIT" train "$MEMFIT_SOURCE/tests/fixtures/pictures.keras" --data "$MEMFIT_SOURCE/tests/fixtures/pictures.npz" --bucket
[ $failures = 0 ] && echo "sequences: all passed" || exit 1
