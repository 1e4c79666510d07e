#!/bin/bash
# test_shuffle.sh: --shuffle-window: samples mixed within windows of blocks: another order than the whole one, the same for the
# same seed, and killed runs go on to the same bits, from every source that can be resumed.
set -u
. "$(dirname "$0")/lib.sh"
f="$MEMFIT_SOURCE/tests/fixtures"
m=("$f/train/mlp.keras" --batch-size 16 --threads 1 --epochs 4 --seed 3)
train() { "$MEMFIT" train "${m[@]}" --json "$@" >"$dir/out" 2>"$dir/err" || fail "train $*: exit $?: $(tail -2 "$dir/err")"; }
train --data "$f/train/digits.npz" --out "$dir/whole.keras"
train --data "$f/train/digits.npz" --shuffle-window all --out "$dir/b.keras"
cmp -s "$dir/whole.keras" "$dir/b.keras" || fail "all: another order than by itself"
train --data "$f/train/digits.npz" --shuffle-window 1000000 --out "$dir/b.keras"
cmp -s "$dir/whole.keras" "$dir/b.keras" || fail "one window of all: another order"
expect 2 "must be auto, all or a number" "a window that is none" "$MEMFIT" train "${m[@]}" --data "$f/train/digits.npz" --shuffle-window many
for data in "$f/train/digits.npz" "$f/train/digits_chunked.h5" "$f/labels/part-*.npz" "$f/labels/header.csv"; do
    w=48; case $data in *labels*|*chunked*) w=10 ;; esac
    train --data "$data" --shuffle-window $w --out "$dir/a.keras"
    grep -q "shuffled in blocks of" "$dir/err" || fail "$data: the blocks are not told"
    is "$dir/out" allocations_in_steps 0
    cmp -s "$dir/whole.keras" "$dir/a.keras" && fail "$data: windows change nothing"
    train --data "$data" --shuffle-window $w --out "$dir/b.keras"
    cmp -s "$dir/a.keras" "$dir/b.keras" || fail "$data: another order the second time"
    # Stopped within a window and gone on, without saying the window again.
    train --data "$data" --shuffle-window $w --steps 3 --save-freq 3 --checkpoint "$dir/ck.keras"
    train --data "$data" --resume "$dir/ck.keras" --out "$dir/b.keras"
    cmp -s "$dir/a.keras" "$dir/b.keras" || fail "$data: stopped and gone on: another model"
    rm -f "$dir/ck.keras"
    for i in 1 2 3 4 5; do {
        more=(); [ -f "$dir/ck.keras" ] && more=(--resume "$dir/ck.keras")
        timeout -s KILL 0.$((i * 13 % 60 + 10)) "$MEMFIT" train "${m[@]}" --data "$data" --shuffle-window $w --save-freq 1 --checkpoint "$dir/ck.keras" "${more[@]}" >/dev/null 2>&1
    } 2>/dev/null; done
    more=(); [ -f "$dir/ck.keras" ] && more=(--resume "$dir/ck.keras")
    train --data "$data" --shuffle-window $w --out "$dir/b.keras" "${more[@]}"
    cmp -s "$dir/a.keras" "$dir/b.keras" || fail "$data: killed and gone on: another model"
done
[ "$failures" = 0 ] || exit 1
