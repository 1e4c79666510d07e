#!/bin/bash
# every_source.sh: one command for each kind of data that `memfit train` reads. Run as a test, from anywhere:
#   MEMFIT=build/memfit MEMFIT_SOURCE=. examples/data/every_source.sh
set -eu
f="$MEMFIT_SOURCE/tests/fixtures"
t=$(mktemp -d)
trap 'rm -rf "$t"' EXIT
step() { echo "== $1"; shift; "$@" >"$t/out" 2>&1 || { cat "$t/out"; exit 1; }; grep '^trained' "$t/out"; }
m=("$MEMFIT" train) mlp="$f/train/mlp.keras" images="$f/pictures.keras" words="$f/sequences/one.keras"

step "arrays, .npz"                          "${m[@]}" "$mlp" --data "$f/labels/numbers.npz" --epochs 2
step "arrays, .h5, in groups"                "${m[@]}" "$mlp" --data "$f/labels/groups.h5" --features x=train/x,y=train/y
step "a table, .csv, with texts as labels"   "${m[@]}" "$mlp" --data "$f/labels/header.csv"
step "several files by a pattern"            "${m[@]}" "$mlp" --data "$f/labels/part-*.npz"
step "samples made up from the seed"         "${m[@]}" "$mlp" --data synthetic:200 --loss sparse_categorical_crossentropy
step "sequences: values and row splits"      "${m[@]}" "$words" --data "$f/sequences/ragged.npz" --batch-size 8 --bucket
step "sequences: TFRecord"                   "${m[@]}" "$words" --data "$f/sequences/records.tfrecord" --batch-size 8 --bucket
step "weights of each step"                  "${m[@]}" "$f/sequences/each.keras" --data "$f/sequences/steps.npz" --batch-size 8
echo "== arrays from another program"
python3 "$MEMFIT_SOURCE/tests/e2e/pipe_npy.py" "$f/train/digits.npz" 50 | "${m[@]}" "$mlp" --data - 2>/dev/null | grep '^trained'
if "$MEMFIT" predict "$images" --data "$f/pictures" 2>&1 | grep -q "built without"; then
    echo "images: skipped, built without libjpeg or libpng"
    exit 0
fi
step "a folder of images"                    "${m[@]}" "$images" --data "$f/pictures" --batch-size 4 --validation-split 0.25
step "the same, decoded once, kept in a file" "${m[@]}" "$images" --data "$f/pictures" --batch-size 4 --epochs 3 --cache "$t/cache"
step "the same, quicker and less exact"      "${m[@]}" "$images" --data "$f/pictures" --batch-size 4 --image-decode scaled --image-type uint8
step "images in TFRecord shards"             "${m[@]}" "$images" --data "$f/tfrecord/two-*.tfrecord" --batch-size 4
step "a packed TFRecord file"                "${m[@]}" "$images" --data "$f/tfrecord/packed.tfrecord.gz" --batch-size 4 --shuffle-window 8
