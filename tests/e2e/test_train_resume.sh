#!/bin/bash
# test_train_resume.sh: a checkpoint that is gone on from with other settings than it was made with, or by another version.
set -u
. "$(dirname "$0")/lib.sh"
f="$MEMFIT_SOURCE/tests/fixtures/train"
train() { "$MEMFIT" train "$@" --threads 1 --quiet --json >"$dir/out" 2>"$dir/err" || fail "train $*: exit $?: $(tail -2 "$dir/err")"; }
below() { # below NUMBER LIMIT WHAT
    awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && a < b) }' || fail "$3: $1 is not below $2"
}
word() { # word FILE N: word N of a checkpoint's state
    python3 -c 'import struct, sys, zipfile
print(struct.unpack_from("<q", zipfile.ZipFile(sys.argv[1]).read("memfit.state"), 24 + 8 * int(sys.argv[2]))[0])' "$1" "$2"
}
scale() { python3 -c 'import struct, sys; print("%g" % struct.unpack("<d", struct.pack("<q", int(sys.argv[1])))[0])' "$(word "$1" 5)"; }
small=("$f/mlp.keras" --data "$f/digits.npz" --seed 5 --learning-rate 0.0001)

# float16 scales its gradients, float32 does not: each starts as its own kind.
train "${small[@]}" --precision float32 --epochs 6
whole=$(key loss "$dir/out")
for pair in "mixed_float16 float32 1 1" "float32 mixed_float16 1024 32768" "mixed_bfloat16 mixed_float16 1024 32768" "mixed_float16 mixed_bfloat16 1 1"; do
    set -- $pair
    rm -f "$dir"/ck*.keras
    train "${small[@]}" --precision "$1" --steps 4 --save-freq 4 --checkpoint "$dir/ck.keras"
    train "${small[@]}" --precision "$2" --epochs 6 --steps 8 --save-freq 8 --resume "$dir/ck.keras" --checkpoint "$dir/ck2.keras"
    awk -v s="$(scale "$dir/ck2.keras")" -v a="$3" -v b="$4" 'BEGIN { exit !(s >= a && s <= b) }' ||
        fail "$1 to $2: gradients scaled by $(scale "$dir/ck2.keras"), not $3 to $4" # from 32768 on, halved where it is too much
    train "${small[@]}" --precision "$2" --epochs 6 --resume "$dir/ck2.keras"
    below "$(key loss "$dir/out")" "$(awk -v w="$whole" 'BEGIN { print w * 1.1 }')" "$1 to $2: the loss against float32's"
done
# The same precision keeps its scale, whatever it has become.
train "${small[@]}" --precision mixed_float16 --steps 4 --save-freq 4 --checkpoint "$dir/ck.keras"
python3 - "$dir/ck.keras" "$dir/halved.keras" <<'END' || fail "no checkpoint with another scale could be made"
import struct, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as old, zipfile.ZipFile(sys.argv[2], "w") as new:
    for name in old.namelist():
        data = old.read(name)
        if name == "memfit.state":
            data = data[:24 + 40] + struct.pack("<d", 512) + data[24 + 48:]
        new.writestr(name, data)
END
train "${small[@]}" --steps 8 --save-freq 8 --resume "$dir/halved.keras" --checkpoint "$dir/ck2.keras"
[ "$(scale "$dir/ck2.keras")" = 512 ] || fail "the scale of a resumed float16 run is $(scale "$dir/ck2.keras"), not 512"

# In the middle of an epoch of 300 samples, with another batch: what is left of it ends in another last batch than later epochs.
train "${small[@]}" --batch-size 32 --steps 3 --save-freq 3 --checkpoint "$dir/ck.keras"
for batch in 64 7 128 300 1000; do
    train "${small[@]}" --batch-size $batch --resume "$dir/ck.keras" --epochs 3 --save-freq 1000 --checkpoint "$dir/ck2.keras"
    is "$dir/out" steps $((3 + (204 + batch - 1) / batch + 2 * ((300 + batch - 1) / batch)))
done
# In pieces as well: 204 = 2 x 90 + 24, 300 = 3 x 90 + 30, in pieces of 30.
train "${small[@]}" --batch-size 90 --gradient-accumulation 3 --resume "$dir/ck.keras" --epochs 2
is "$dir/out" steps $((3 + 3 + 4))

# --keep-best goes on from what it kept only where that still is.
best=("$f/mlp.keras" --data "$f/digits.npz" --validation-split 0.2 --seed 5)
train "${best[@]}" --epochs 3 --checkpoint "$dir/ck.keras" # nothing was kept: --out is another model's
cp "$f/mlp.keras" "$dir/out.keras"
train "${best[@]}" --epochs 5 --learning-rate 1 --resume "$dir/ck.keras" --keep-best --out "$dir/out.keras"
cmp -s "$f/mlp.keras" "$dir/out.keras" && fail "--resume --keep-best: an untrained model is left in --out"
cp "$f/mlp.keras" "$dir/out.keras"
train "${best[@]}" --epochs 3 --resume "$dir/ck.keras" --keep-best --out "$dir/out.keras" # no step is left
cmp -s "$f/mlp.keras" "$dir/out.keras" && fail "--resume --keep-best with no step left: an untrained model is left in --out"
rm -f "$dir"/*.keras
train "${best[@]}" --epochs 3 --checkpoint "$dir/ck.keras" --keep-best --out "$dir/out.keras"
cp "$dir/out.keras" "$dir/best.keras"
train "${best[@]}" --epochs 5 --learning-rate 1 --resume "$dir/ck.keras" --keep-best --out "$dir/out.keras" # much worse epochs follow
cmp -s "$dir/best.keras" "$dir/out.keras" || fail "--resume --keep-best: the best weights were replaced by worse ones"
cp "$dir/best.keras" "$dir/moved.keras" # the same bytes under another name are the same weights
train "${best[@]}" --epochs 5 --learning-rate 1 --resume "$dir/ck.keras" --keep-best --out "$dir/moved.keras"
cmp -s "$dir/best.keras" "$dir/moved.keras" || fail "--resume --keep-best: the best weights, copied, were replaced by worse ones"

# A number of steps that the checkpoint has done already: nothing is trained, and --quiet does not hide that.
"$MEMFIT" train "$f/mlp.keras" --data synthetic:64 --steps 1 --resume "$dir/ck.keras" --quiet --json >"$dir/out" 2>"$dir/err" || fail "no step left: $(cat "$dir/err")"
grep -q "nothing is left of --steps 1" "$dir/err" || fail "--steps below what is done: $(cat "$dir/err")"
"$MEMFIT" train "$f/unet.json" --data synthetic:8 --steps 1 --quiet --json >"$dir/out" 2>"$dir/err" || fail "an assumed loss: $(cat "$dir/err")"
grep -q "sparse_categorical_crossentropy is assumed" "$dir/err" || fail "--quiet hides an assumed loss: $(cat "$dir/err")"
grep -q "is kept" "$dir/err" && fail "--quiet shows notes: $(cat "$dir/err")"

# Checkpoints of older versions: one that state version 3 wrote after 17 steps of 8 samples; the whole has 3 x 38.
older=("$f/mlp.keras" --data "$f/digits.npz" --seed 5 --batch-size 8 --epochs 3)
train "${older[@]}"
whole=$(key loss "$dir/out")
train "${older[@]}" --resume "$f/checkpoint_v3.keras" --save-freq 114 --checkpoint "$dir/ck.keras"
is "$dir/out" steps 114
[ "$(word "$dir/ck.keras" 0)" = 114 ] || fail "version 3: $(word "$dir/ck.keras" 0) updates instead of 114"
below "$(awk -v a="$whole" -v b="$(key loss "$dir/out")" 'BEGIN { d = a - b; print d < 0 ? -d : d }')" 0.01 "version 3: the loss's difference"
[ $failures = 0 ] && echo "resume: all good"
exit $failures
