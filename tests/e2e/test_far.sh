#!/bin/bash
# test_far.sh: the far device, whose memory the host cannot reach, gives the cpu device's bytes: weights, optimizer, checkpoints,
# logs, predictions. Every kind of variable, input and file on its way in and out.
set -u
f="$MEMFIT_SOURCE/tests/fixtures"
. "$(dirname "$0")/lib.sh"
cd "$dir" || exit 1

both() { # both NAME COMMAND...: the same on both; %D in a word is the device's folder
    name=$1; shift
    for device in cpu far; do
        mkdir -p $device
        far=0; [ $device = far ] && far=1
        MEMFIT_FAR=$far "$MEMFIT" "${@//%D/$device}" --quiet --json >"$device/$name.json" 2>"$device/$name.err" ||
            { fail "$name on $device: $(tail -3 "$device/$name.err")"; return; }
    done
    for key in loss metrics validation steps epochs arena_bytes; do
        [ "$(key $key "cpu/$name.json")" = "$(key $key "far/$name.json")" ] || fail "$name: $key differs"
    done
    is "far/$name.json" arena_used_bytes "$(key arena_bytes "far/$name.json")"
}
same() { for file in "$@"; do cmp -s "cpu/$file" "far/$file" || fail "$file differs, or is not there"; done; }

# Validation, a last batch of another size, logs, checkpoints in between and the best weights.
for model in mlp cnn; do
    both $model train "$f/train/$model.keras" --data synthetic:150 --batch-size 32 --epochs 3 --validation-split 0.2 --out "%D/$model.keras" \
        --checkpoint "%D/$model-state.keras" --save-freq 2 --log-csv "%D/$model.csv" --keep-best
    same $model.keras $model-state.keras $model.csv
done
# Gone on with from the other device's checkpoint.
cp cpu/mlp-state.keras state.keras
both resumed train "$f/train/mlp.keras" --data synthetic:150 --batch-size 32 --epochs 5 --validation-split 0.2 --resume state.keras --out %D/resumed.keras
same resumed.keras

# Pieces with a rest, recomputation and poisoned bytes; 16 bits with a scaled loss, which must overflow at least once.
both pieces train "$f/train/cnn.keras" --data synthetic:60 --batch-size 30 --epochs 2 --gradient-accumulation 4 --debug-poison --out %D/pieces.keras
both half train "$f/train/cnn.keras" --data synthetic:64 --epochs 2 --precision mixed_float16 --out %D/half.keras --checkpoint %D/half-state.keras
same pieces.keras half.keras half-state.keras

# Averages of weights, clipping, regularizers, recurrent layers, embeddings, BatchNormalization: every third of the fixtures.
count=0
for model in "$f"/fit/*.keras; do
    count=$((count + 1))
    [ $((count % 3)) = 1 ] || continue
    name=$(basename "$model" .keras)
    both "$name" train "$model" --data synthetic:10 --batch-size 4 --epochs 2 --threads 1 --out "%D/$name.keras"
    same "$name.keras"
done
[ $count -ge 9 ] || fail "only $count fixtures are there"

# One batch, again and again: what the device has is not sent twice; nor is it where the batch changes, or its pieces.
both one train "$f/train/cnn.keras" --data synthetic:32 --batch-size 32 --epochs 4 --no-shuffle --out %D/one.keras
both two train "$f/train/cnn.keras" --data synthetic:64 --batch-size 32 --epochs 3 --no-shuffle --out %D/two.keras
both few train "$f/train/cnn.keras" --data synthetic:40 --batch-size 20 --epochs 3 --no-shuffle --validation-split 0.5 --gradient-accumulation 3 --out %D/few.keras
same one.keras two.keras few.keras
# Samples of 100 KiB under a limit that leaves room for all of them stay on the device, in whatever order they come; the bytes are the same
# as those of a limit that does not.
python3 - "$f/train/cnn.keras" <<'P' || fail "no model with large samples"
import sys, zipfile
small = zipfile.ZipFile(sys.argv[1])
with zipfile.ZipFile("large.keras", "w") as large:
    for name in ("config.json", "metadata.json"):
        large.writestr(name, small.read(name).decode().replace("[null, 8, 8, 1]", "[null, 160, 160, 1]"))
P
both kept train large.keras --data synthetic:10 --batch-size 4 --epochs 3 --memory 600MiB --out %D/kept.keras
if [ "$(key allocations_in_steps far/kept.json)" != null ]; then # a sanitizer's own memory would not fit
    both sent train large.keras --data synthetic:10 --batch-size 4 --epochs 3 --memory 40MiB --out %D/sent.keras
    same kept.keras sent.keras
    cmp -s far/kept.keras far/sent.keras || fail "samples that stayed on the device and samples that were sent: other bytes"
    more=$(($(key fixed_bytes far/kept.json) - $(key fixed_bytes far/sent.json)))
    [ $more -ge $((10 * 160 * 160 * 4)) ] || fail "only $more bytes more with the samples on the device"
    # For samples that stay a batch is cut into a few more pieces at most, not into crumbs.
    for device in cpu far; do
        far=0; [ $device = far ] && far=1
        MEMFIT_FAR=$far "$MEMFIT" train "$f/plan/conv_pool_128.json" --data synthetic:300 --batch-size 300 --steps 1 --memory 200MiB --quiet --json >$device/crumbs.json 2>/dev/null
    done
    [ "$(key pieces far/crumbs.json)" -le $((3 * $(key pieces cpu/crumbs.json))) ] ||
        fail "$(key pieces far/crumbs.json) pieces with samples on the device, $(key pieces cpu/crumbs.json) without"
fi
# In bfloat16 samples of float32 are sent as what they are cast to: the same bytes of weights, half of them beside the arena.
both narrow train "$f/plan/conv_pool_128.json" --data synthetic:24 --batch-size 8 --epochs 2 --precision mixed_bfloat16 --memory 1GiB --out %D/narrow.keras
same narrow.keras
both wide train "$f/plan/conv_pool_128.json" --data synthetic:24 --batch-size 8 --epochs 2 --memory 1GiB
[ "$(key allocations_in_steps far/wide.json)" = null ] || # a sanitizer's own memory is no measure
    [ $(($(key fixed_bytes far/wide.json) - $(key fixed_bytes far/narrow.json))) -ge $((24 * 128 * 128 * 3)) ] || fail "float32 is sent in place of bfloat16"
# Other types arrive as they are stored: the same bytes of weights.
python3 - <<'P' || fail "no arrays"
import struct, zipfile
def npy(kind, data, shape):
    head = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data
n, each = 20, 64
y = npy("<i4", struct.pack(f"<{n}i", *[i % 10 for i in range(n)]), (n,))
values = [(i * 37) % 101 - 50 for i in range(n * each)]
for name, kind, code in (("i8", "|i1", "b"), ("i16", "<i2", "h"), ("f16", "<f2", "e"), ("bool", "|b1", "?"), ("u8", "|u1", "B")):
    data = struct.pack(f"<{n * each}{code}", *[v % 2 == 0 if code == "?" else v + 50 if code == "B" else v for v in values])
    with zipfile.ZipFile(f"{name}.npz", "w") as z:
        z.writestr("x.npy", npy(kind, data, (n, 8, 8, 1)))
        z.writestr("y.npy", y)
P
for name in i8 i16 f16 bool u8; do
    both $name train "$f/train/cnn.keras" --data $name.npz --batch-size 8 --epochs 2 --threads 1 --out %D/$name.keras
    same $name.keras
done
# Queued one by one, the bytes are the same as those of what was recorded.
MEMFIT_FAR=1 MEMFIT_RECORD=0 "$MEMFIT" train "$f/train/cnn.keras" --data synthetic:64 --batch-size 32 --epochs 3 --no-shuffle --out queued.keras --quiet >/dev/null 2>&1
cmp -s queued.keras far/two.keras || fail "queued and recorded differ"

# The device is lost: it is said, with what is kept; nothing hangs, the checkpoint is whole and gone on from.
lost=("$MEMFIT" train "$f/train/mlp.keras" --data synthetic:96 --batch-size 32 --epochs 4 --quiet)
expect 1 "--checkpoint FILE" "lost without a checkpoint" env MEMFIT_FAR=1 MEMFIT_FAR_LOST=7 "${lost[@]}"
expect 1 "the first 6 steps are in lost.keras" "lost" env MEMFIT_FAR=1 MEMFIT_FAR_LOST=11 "${lost[@]}" --checkpoint lost.keras --save-freq 2
expect 1 "lost.keras is as it was" "lost again" env MEMFIT_FAR=1 MEMFIT_FAR_LOST=5 "${lost[@]}" --resume lost.keras
MEMFIT_FAR=1 "${lost[@]}" --resume lost.keras --out found.keras >/dev/null 2>&1 || fail "not gone on from the checkpoint"
MEMFIT_FAR=1 "${lost[@]}" --out never_lost.keras >/dev/null 2>&1
cmp -s found.keras never_lost.keras || fail "gone on from the checkpoint: other bytes"

# Results of evaluation and prediction.
both evaluated evaluate "$f/train/cnn.keras" --data synthetic:40
both predicted predict "$f/train/cnn.keras" --data synthetic:40 --out %D/predicted.npy
same predicted.npy
echo "far: $failures failures"
[ $failures = 0 ]
