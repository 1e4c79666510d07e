#!/bin/bash
# test_labels.sh: the same samples from every kind of file, with labels as numbers and as texts, in groups, of either byte
# order, in one file and in several: the same model to the bit.
set -u
. "$(dirname "$0")/lib.sh"
f="$MEMFIT_SOURCE/tests/fixtures/labels"
m=("$MEMFIT_SOURCE/tests/fixtures/train/mlp.keras" --batch-size 5 --threads 1)
train() { "$MEMFIT" train "${m[@]}" --epochs 3 --seed 3 --json "$@" >"$dir/out" 2>"$dir/err" || fail "train $*: exit $?: $(tail -2 "$dir/err")"; }
train --data "$f/numbers.npz" --out "$dir/a.keras"
is "$dir/out" classes '[]'
for d in texts.npz bytes.npz turned.npz header.csv plain.csv texts.h5 turned.h5 inner.h5 'part-*.npz' 'parts-?.npz' 'table-*.csv' 'group-*.h5' texts.tfrecord; do
    train --data "$f/$d" --out "$dir/b.keras"
    cmp -s "$dir/a.keras" "$dir/b.keras" || fail "$d: another model"
    is "$dir/out" allocations_in_steps 0
    [ "$(key measured_peak_bytes "$dir/out")" -le "$(key planned_peak_bytes "$dir/out")" ] || fail "$d: more was taken than planned"
    case $d in part-*|inner*) ;; *)
        [ "$(key classes.0 "$dir/out")$(key classes.9 "$dir/out")" = Neunzero ] || fail "$d: classes are $(key classes "$dir/out")"
        grep -q "numbered as they sort: 0 Neun, 1 acht" "$dir/err" || fail "$d: the names are not told: $(cat "$dir/err")" ;;
    esac
done
# Groups: which is meant must be said where there are several.
expect 5 "train/x" "several arrays x" "$MEMFIT" train "${m[@]}" --data "$f/groups.h5"
train --data "$f/groups.h5" --features x=train/x,y=train/y --out "$dir/b.keras"
cmp -s "$dir/a.keras" "$dir/b.keras" || fail "groups: another model"
expect 2 "has no array nowhere/x" "a feature that is not there" "$MEMFIT" train "${m[@]}" --data "$f/groups.h5" --features x=nowhere/x
# One-hot, from one file and from several.
train --data "$f/texts.npz" --loss categorical_crossentropy --out "$dir/c.keras"
train --data "$f/parts-*.npz" --loss categorical_crossentropy --out "$dir/b.keras"
cmp -s "$dir/c.keras" "$dir/b.keras" || fail "one-hot from parts: another model"
# Weights by class are by number.
echo '{"0": 3, "4": 0.5}' >"$dir/w.json"
train --data "$f/numbers.npz" --class-weight "$dir/w.json" --out "$dir/c.keras"
for d in texts.npz 'parts-*.npz'; do
    train --data "$f/$d" --class-weight "$dir/w.json" --out "$dir/b.keras"
    cmp -s "$dir/c.keras" "$dir/b.keras" || fail "class weights, $d: another model"
done
# Killed and gone on from parts, shuffled.
train --data "$f/parts-*.npz" --steps 7 --save-freq 7 --checkpoint "$dir/ck.keras"
train --data "$f/parts-*.npz" --resume "$dir/ck.keras" --out "$dir/b.keras"
cmp -s "$dir/a.keras" "$dir/b.keras" || fail "parts, stopped and gone on: another model"
# A part of the names: which is which must be given.
expect 5 "cannot tell which is which" "fewer names than classes" "$MEMFIT" evaluate "${m[@]}" --data "$f/parts-0.npz"
all=Neun,acht,drei,fünf,one,sechs,sieben,two,vier,zero
"$MEMFIT" evaluate "${m[@]}" --data "$f/parts-0.npz" --classes $all --json >"$dir/e" 2>/dev/null || fail "evaluate with --classes"
"$MEMFIT" evaluate "${m[@]}" --data "$f/part-0.npz" --json >"$dir/e2" 2>/dev/null || fail "evaluate numbers"
[ "$(key loss "$dir/e")" = "$(key loss "$dir/e2")" ] || fail "--classes: loss $(key loss "$dir/e"), not $(key loss "$dir/e2")"
expect 5 "is not among --classes" "a name that is not given" "$MEMFIT" train "${m[@]}" --data "$f/texts.npz" --classes one,two
expect 5 "10 different names, the model has 2 classes" "more names than classes" "$MEMFIT" train "$MEMFIT_SOURCE/tests/fixtures/pictures.keras" --data "$f/header.csv"
# Parts that do not go together.
cp "$f/part-0.npz" "$dir/q-0.npz"; cp "$f/turned.npz" "$dir/q-1.npz"
expect 5 "q-1.npz: array y has another type" "parts of another type" "$MEMFIT" train "${m[@]}" --data "$dir/q-*.npz"
cp "$f/header.csv" "$dir/r-0.csv"; sed '$s/,[^,]*$/,/' "$f/header.csv" >"$dir/r-1.csv"
expect 5 "label is missing" "a label that is missing" "$MEMFIT" train "${m[@]}" --data "$dir/r-*.csv"
[ "$failures" = 0 ] || exit 1
