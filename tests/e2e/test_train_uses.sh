#!/bin/bash
# test_train_uses.sh: reasonable but unusual uses of train: data put together in other ways, options that are not given again when a
# run is resumed.
set -u
f="$MEMFIT_SOURCE/tests/fixtures/train"
t=$(mktemp -d)
trap 'rm -rf "$t"' EXIT
failures=0
. "$(dirname "$0")/json.sh"
fail() { echo "FAIL: $*"; failures=$((failures + 1)); }
run() { "$MEMFIT" "$@" --threads 1 >"$t/out" 2>"$t/err" || fail "$* ($(tail -30 "$t/err"))"; }
loss() { run evaluate "$@" --json; json "$t/out" loss; }
validation() { run train "$@" --json; json "$t/out" validation.loss; }
near() { # DESCRIPTION A B
    python3 -c 'import sys; a, b = map(float, sys.argv[1:]); sys.exit(abs(a - b) > 1e-6 * abs(b))' "$2" "$3" || fail "$1: $2 instead of $3"
}
python3 "$MEMFIT_SOURCE/tests/e2e/make_bad_data.py" "$t" || exit 1

# The input is the array of that name, not the first of the file: floats beside labels in bytes stay floats.
near "labels first in the file" "$(loss "$f/cnn.keras" --data "$t/labels_first.npz")" "$(loss "$f/cnn.keras" --data "$t/good.npz")"
# A table with an image in each row.
near "images in a table" "$(loss "$f/cnn.keras" --data "$t/images.csv")" "$(loss "$f/cnn.keras" --data "$t/good.npz")"
# Bytes to train on, fractions to validate with.
v=$(validation "$f/cnn.keras" --data "$t/bytes.npz" --validation-data "$t/good.npz" --out "$t/o.keras")
near "validation data of another type" "$v" "$(loss "$t/o.keras" --data "$t/good.npz")"
# Bytes for one of two inputs, fractions for the other.
two="$MEMFIT_SOURCE/tests/fixtures/keras/functional_shared.keras"
near "bytes beside floats" "$(loss "$two" --data "$t/mixed.npz" --loss mse)" "$(loss "$two" --data "$t/floats.npz" --loss mse)"
# Arrays in the groups of an HDF5 file are read; a model file has none that fits.
"$MEMFIT" train "$f/cnn.keras" --data "$MEMFIT_SOURCE/tests/fixtures/keras/dense_adam.h5" >/dev/null 2>"$t/err"
[ $? = 5 ] && grep -q "has no array for input input_layer" "$t/err" || fail "arrays in groups: $(cat "$t/err")"
# Weights in the validation data alone.
v=$(validation "$f/cnn.keras" --data "$t/good.npz" --validation-data "$t/weighed.npz" --out "$t/o.keras")
near "weights of validation samples" "$v" "$(loss "$t/o.keras" --data "$t/weighed.npz")"
# Weights beside targets that are named by their layer.
near "weights beside named targets" "$(loss "$f/cnn.keras" --data "$t/by_name.npz" --loss categorical_crossentropy)" \
    "$(loss "$f/cnn.keras" --data "$t/by_letter.npz" --loss categorical_crossentropy)"
# One table of class weights, two outputs.
echo '{"1": 2.0}' >"$t/weights.json"
"$MEMFIT" train "$MEMFIT_SOURCE/tests/fixtures/keras/functional_shared.keras" --data synthetic:9 --class-weight "$t/weights.json" 2>"$t/err"
[ $? = 2 ] && grep -q "one output" "$t/err" || fail "class weights with two outputs: $(cat "$t/err")"

changed() { # MODEL OLD NEW FILE [MEMBER]: the model with another text in its configuration
    python3 - "$@" <<'END'
import sys, zipfile
model, before, after, file, member = (sys.argv[1:] + ["config.json"])[:5]
with zipfile.ZipFile(model) as old, zipfile.ZipFile(file, "w") as new:
    for name in old.namelist():
        data = old.read(name)
        if name == member:
            assert before.encode() in data
            data = data.replace(before.encode(), after.encode())
        new.writestr(name, data)
END
}
# Sizes that the model leaves open are the data's.
changed "$f/cnn.keras" '"batch_shape": [null, 8, 8, 1]' '"batch_shape": [null, null, null, 1]' "$t/open.keras"
near "sizes left open" "$(loss "$t/open.keras" --data "$t/good.npz")" "$(loss "$f/cnn.keras" --data "$t/good.npz")"

# Long names are written whole.
changed "$f/cnn.keras" '["accuracy"]' '["sparse_top_k_categorical_accuracy"]' "$t/named.keras"
run evaluate "$t/named.keras" --data "$t/good.npz" --json
holds "$t/out" "'sparse_top_k_categorical_accuracy' in j['metrics']" || fail "a metric's name is cut: $(grep metrics "$t/out")"

# resumed DESCRIPTION MODEL DATA OPTIONS: twelve epochs at once, against eight and, with nothing said again but $again, four.
fit="$MEMFIT_SOURCE/tests/fixtures/fit"
resumed() {
    what=$1 model=$2 data=$3
    shift 3
    run train "$model" --data "$data" --quiet --epochs 12 --out "$t/whole.keras" $again "$@"
    run train "$model" --data "$data" --quiet --epochs 8 --checkpoint "$t/ck.keras" $again "$@"
    run train "$model" --data "$data" --quiet --epochs 12 --resume "$t/ck.keras" --out "$t/parts.keras" $again
    cmp -s "$t/whole.keras" "$t/parts.keras" || fail "resumed, $what: not what the undisturbed run gives"
}
again="--validation-split 0.3 --reduce-on-plateau 1" resumed "a reduced rate" "$fit/model_39a23f5e.keras" "$fit/data_ed6ab4b4.npz"
again="" resumed "a rate instead of a schedule" "$fit/model_f3cba12a.keras" "$fit/data_7f6735e9.npz" --learning-rate 0.0123
again="" resumed "16 bits" "$f/cnn.keras" "$t/good.npz" --precision mixed_bfloat16
run train "$f/cnn.keras" --data "$t/good.npz" --batch-size 16 --checkpoint "$t/ck.keras"
run train "$f/cnn.keras" --data "$t/good.npz" --epochs 2 --resume "$t/ck.keras"
grep -q "batches of 16" "$t/err" || fail "resumed with another batch: nothing is said ($(cat "$t/err"))"

# A checkpoint at the very end of an epoch: what the epoch logs then is the epoch's.
run train "$f/cnn.keras" --data "$t/good.npz" --save-freq 2 --checkpoint "$t/ck.keras" --log-csv "$t/first.csv"
run train "$f/cnn.keras" --data "$t/good.npz" --resume "$t/ck.keras" --log-csv "$t/again.csv"
cmp -s "$t/first.csv" "$t/again.csv" || fail "the log of an epoch resumed at its end: $(cat "$t/again.csv")"
grep -q "Epoch 1/1" "$t/err" || fail "a resumed epoch has no head line: $(cat "$t/err")"

# A checkpoint of state version 2, which had 16 words: goes on just so.
run train "$f/mlp.keras" --data "$f/digits.npz" --batch-size 8 --epochs 3 --out "$t/whole.keras" --log-csv "$t/first.csv"
run train "$f/mlp.keras" --data "$f/digits.npz" --batch-size 8 --epochs 3 --steps 17 --save-freq 17 --checkpoint "$t/ck.keras"
python3 - "$t/ck.keras" "$t/older.keras" <<'END' || fail "no checkpoint of version 2 could be made"
import struct, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as old, zipfile.ZipFile(sys.argv[2], "w") as new:
    for name in old.namelist():
        data = old.read(name)
        if name == "memfit.state":
            assert data[:8] == b"memfit01" and struct.unpack("<QQ", data[8:24]) == (4, 24)
            data = data[:8] + struct.pack("<QQ", 2, 16) + data[24:24 + 16 * 8] + data[24 + 24 * 8:]
        new.writestr(name, data)
END
run train "$f/mlp.keras" --data "$f/digits.npz" --batch-size 8 --epochs 3 --resume "$t/older.keras" --out "$t/parts.keras" --log-csv "$t/again.csv"
cmp -s "$t/whole.keras" "$t/parts.keras" && cmp -s "$t/first.csv" "$t/again.csv" || fail "a checkpoint of version 2: not what the undisturbed run gives"

# Killed after an epoch was logged, before it was in a checkpoint: its row is not there twice.
best=(--data "$t/good.npz" --validation-data "$t/moved.npz" --quiet)
run train "$f/cnn.keras" "${best[@]}" --epochs 3 --steps 5 --save-freq 3 --checkpoint "$t/ck.keras" --log-csv "$t/killed.csv"
run train "$f/cnn.keras" "${best[@]}" --epochs 3 --resume "$t/ck.keras" --log-csv "$t/killed.csv"
run train "$f/cnn.keras" "${best[@]}" --epochs 3 --log-csv "$t/first.csv"
cmp -s "$t/first.csv" "$t/killed.csv" || fail "the log of a resumed run: $(cat "$t/killed.csv")"
run train "$f/cnn.keras" "${best[@]}" --epochs 3 --steps 5 --save-freq 3 --checkpoint "$t/ck.keras" --tensorboard "$t/board"
sleep 1 # files are read in the order of their seconds
run train "$f/cnn.keras" "${best[@]}" --epochs 3 --resume "$t/ck.keras" --tensorboard "$t/board"
python3 - "$t/board" <<'END' || fail "TensorBoard's events of a resumed run"
import glob, os, struct, sys


def fields(data):  # number, value of each field of a message
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(data):
        key = varint()
        size = {0: None, 1: 8, 5: 4}.get(key & 7, 0)
        if size is None:
            yield key >> 3, varint()
            continue
        size = size or varint()
        yield key >> 3, data[at:at + size]
        at += size


for part in ("train", "validation"):
    steps = []  # of epoch_loss, as TensorBoard reads them: a start at a step replaces what follows it
    for name in sorted(glob.glob(os.path.join(sys.argv[1], part, "*"))):
        data = open(name, "rb").read()
        while data:
            size = struct.unpack("<Q", data[:8])[0]
            event = dict(fields(data[12:12 + size]))
            data = data[16 + size:]
            if event.get(7) == b"\x08\x01":
                steps = [s for s in steps if s < event[2]]
            if b"epoch_loss" in event.get(5, b""):
                steps.append(event[2])
    if steps != [0, 1, 2]:
        sys.exit(f"{part}: epochs {steps}")
END
"$MEMFIT" train "$f/cnn.keras" "${best[@]}" --resume "$f/cnn.keras" --log-csv "$t/killed.csv" 2>/dev/null >/dev/null
cmp -s "$t/first.csv" "$t/killed.csv" || fail "a refused --resume changed the log"

# Each of several outputs has its loss in the log: the same in pieces, and for a run resumed within an epoch.
two=("$MEMFIT_SOURCE/tests/fixtures/keras/functional_shared.keras" --data synthetic:70 --quiet --validation-split 0.2)
run train "${two[@]}" --epochs 2 --log-csv "$t/first.csv" --json
holds "$t/out" "all(any(k.endswith('_loss') for k in j[part]) for part in ('metrics', 'validation'))" || fail "losses of two outputs: $(grep -A1 metrics "$t/out")"
run train "${two[@]}" --epochs 2 --log-csv "$t/pieces.csv" --gradient-accumulation 4
python3 - "$t/first.csv" "$t/pieces.csv" <<'END' || fail "losses of two outputs, in pieces: $(cat "$t/first.csv" "$t/pieces.csv")"
import csv, sys
a, b = (list(csv.DictReader(open(n, newline=""))) for n in sys.argv[1:])
same = all(abs(float(p[k]) - float(q[k])) <= 1e-5 * max(abs(float(q[k])), 1e-3) for p, q in zip(a, b) for k in p)
sys.exit(not same or len(a) != len(b) or sum(k.endswith("_loss") for k in a[0]) != 5)
END
run train "${two[@]}" --epochs 2 --steps 3 --save-freq 3 --checkpoint "$t/ck.keras"
run train "${two[@]}" --epochs 2 --resume "$t/ck.keras" --log-csv "$t/again.csv"
cmp -s <(tail -1 "$t/first.csv") <(tail -1 "$t/again.csv") || fail "losses of two outputs, resumed: $(cat "$t/first.csv" "$t/again.csv")"

# --keep-best, resumed with another --out: never somebody else's file for the best weights.
fit="$MEMFIT_SOURCE/tests/fixtures/fit"
best=("$fit/model_39a23f5e.keras" --data "$fit/data_ed6ab4b4.npz" --validation-split 0.3 --keep-best)
run train "${best[@]}" --epochs 12 --checkpoint "$t/ck.keras" --out "$t/best.keras"
cp "$t/best.keras" "$t/kept.keras"
(cd "$t" && "$MEMFIT" train "${best[@]}" --epochs 13 --resume ck.keras --out ./best.keras --threads 1 --quiet >/dev/null) || fail "resumed with --keep-best"
cmp -s "$t/best.keras" "$t/kept.keras" || fail "--keep-best: a worse epoch took the place of the best"
cp "$f/mlp.keras" "$t/other.keras"
run train "${best[@]}" --epochs 13 --resume "$t/ck.keras" --out "$t/other.keras"
cmp -s "$t/other.keras" "$f/mlp.keras" && fail "--keep-best: another model was left in --out"
grep -q "best weights so far are not in" "$t/err" || fail "--keep-best with another --out: nothing is said"

# Stopped while validating: at once, and whoever resumes validates anew.
"$MEMFIT" train "$f/mlp.keras" --data "$f/digits.npz" --validation-data synthetic:1000000000 --checkpoint "$t/ck.keras" --save-freq 1000 \
    --log-csv "$t/stopped.csv" 2>"$t/err" >/dev/null &
pid=$!
for _ in $(seq 500); do grep -q "Epoch 1/1" "$t/err" && break; sleep 0.02; done
sleep 0.3
kill -TERM $pid
wait $pid
[ $? = 143 ] || fail "stopped while validating: exit status $? ($(cat "$t/err"))"
[ ! -s "$t/stopped.csv" ] || fail "stopped while validating: an epoch was logged"
run train "$f/mlp.keras" --data "$f/digits.npz" --validation-data "$f/digits.npz" --resume "$t/ck.keras" --log-csv "$t/again.csv" --out "$t/parts.keras"
run train "$f/mlp.keras" --data "$f/digits.npz" --validation-data "$f/digits.npz" --log-csv "$t/first.csv" --out "$t/whole.keras"
cmp -s "$t/whole.keras" "$t/parts.keras" || fail "stopped while validating: other weights"

# Control-C (shells start what is in the background with it ignored): the step is finished, the checkpoint is there, and the program
# ends by the signal; pressed twice at once it costs nothing.
python3 - "$MEMFIT" "$f/cnn.keras" "$t" <<'END' || fail "Control-C"
import os, signal, subprocess, sys
program, model, folder = sys.argv[1:]
for presses in (1, 2):
    checkpoint = os.path.join(folder, f"pressed{presses}.keras")
    p = subprocess.Popen([program, "train", model, "--data", "synthetic:100000", "--epochs", "100", "--threads", "1", "--checkpoint", checkpoint],
                         stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    said = p.stderr.readline()  # "Epoch 1/100": before that, it ends at once
    while said and "Epoch" not in said:
        said = p.stderr.readline()
    for _ in range(presses):
        p.send_signal(signal.SIGINT)
    said = p.stderr.read()
    if p.wait() != -signal.SIGINT or "--resume" not in said or not os.path.getsize(checkpoint):
        sys.exit(f"{presses}: {p.returncode}: {said}")
END

"$MEMFIT" train "$f/mlp.keras" --data synthetic:32 --early-stopping 0 >/dev/null 2>"$t/err"
[ $? = 2 ] || fail "--early-stopping 0 is not refused: $(cat "$t/err")"
run predict "$f/mlp.keras" --data synthetic:32
grep -q "without --out" "$t/err" || fail "predict without --out says nothing"

# A cgroup's limit is kept in whole pages: one given in bytes to both is not more than there is.
total=$(($(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo) * 1024))
if "$MEMFIT" train "$f/mlp.keras" --data synthetic:32 --memory $total >/dev/null 2>&1; then # else this runs in such a cgroup
    run train "$f/mlp.keras" --data synthetic:32 --memory $((total + 100))
    "$MEMFIT" train "$f/mlp.keras" --data synthetic:32 --memory $((total + 1000000)) >/dev/null 2>&1
    [ $? = 2 ] || fail "a limit above the machine's memory is not refused"
fi

# What 16 bits save is said, and when it is nothing.
run plan "$f/cnn.keras" --precision mixed_bfloat16 --json
holds "$t/out" "j['precision']['float32_peak_bytes'] - j['peak_bytes'] == j['precision']['saved_bytes']" || fail "plan: what 16 bits save: $(cat "$t/out")"
run train "$f/cnn.keras" --data "$t/good.npz" --precision mixed_float16
grep -q "mixed_float16 .* in float32 .* times its time" "$t/err" || fail "train: what 16 bits save: $(cat "$t/err")"

# A model that came as .h5: checkpoints too, and names under which Keras finds what it expects.
h="$MEMFIT_SOURCE/tests/fixtures/keras/dense_adam.h5"
run train "$h" --data synthetic:96 --epochs 3 --out "$t/whole.h5"
run train "$h" --data synthetic:96 --epochs 3 --steps 4 --save-freq 4 --checkpoint "$t/ck.h5"
run train "$h" --data synthetic:96 --epochs 3 --resume "$t/ck.h5" --out "$t/parts.h5"
for n in whole parts; do run predict "$t/$n.h5" --data synthetic:96 --out "$t/$n.npy"; done
cmp -s "$t/whole.npy" "$t/parts.npy" || fail "resumed, .h5: not what the undisturbed run gives"
for n in "$h:o.keras" "$f/mlp.keras:o.h5"; do
    "$MEMFIT" train "${n%%:*}" --data synthetic:32 --out "$t/${n##*:}" 2>"$t/err" >/dev/null
    [ $? = 2 ] && grep -q "end the name in" "$t/err" || fail "--out ${n##*:} for ${n%%:*}: $(cat "$t/err")"
done

# An archive of Keras 2 goes back as it came, and that is said.
changed "$f/mlp.keras" '"keras_version": "3.' '"keras_version": "2.' "$t/old.keras" metadata.json
run train "$t/old.keras" --data synthetic:32 --out "$t/o.keras"
grep -q "saved by Keras 2" "$t/err" || fail "--out of a model of Keras 2: nothing is said ($(cat "$t/err"))"
run train "$f/mlp.keras" --data synthetic:32 --out "$t/o.keras"
grep -q "saved by Keras" "$t/err" && fail "--out of a model of Keras 3: something is said"

# What asks for memory while steps run is counted, and named: a library that is not memfit's own. A sanitizer's build does not count.
run train "$f/mlp.keras" --data synthetic:64 --epochs 2000 --json --quiet
if [ "$(json "$t/out" allocations_in_steps)" != null ]; then
    [ "$(json "$t/out" allocations_in_steps)" = 0 ] || fail "allocations in steps: $(grep -A3 allocations_in_steps_by "$t/out")"
    LD_PRELOAD=$ALLOCATING_LIBRARY run train "$f/mlp.keras" --data synthetic:64 --epochs 2000 --json --quiet
    n=$(json "$t/out" allocations_in_steps)
    [ "$n" -gt 0 ] || fail "a library that allocates in steps is not counted"
    grep -q "\"${ALLOCATING_LIBRARY##*/}\": $n" "$t/out" || fail "it is not named: $n, $(grep -A3 allocations_in_steps_by "$t/out")"
fi

# On a card a limit is a share of the card's memory, not of the machine's. The fake driver runs no kernels: what is reached is that it
# cannot load them, or the word about the limit.
card() { # STATUS TEXT BYTES-OF-THE-CARD ARGUMENTS...
    want=$1 text=$2 bytes=$3; shift 3
    MEMFIT_LIB_CUDA=$FAKE_CUDA_LIBRARY FAKE_CUDA_BYTES=$bytes FAKE_CUDA_DEVICES=2 "$MEMFIT" train "$f/mlp.keras" --data synthetic:64 "$@" >"$t/out" 2>"$t/err"
    got=$?
    [ $got = "$want" ] && grep -q "$text" "$t/err" || fail "a card of $bytes bytes, $*: exit $got, $(cat "$t/err")"
}
card 2 "a limit of 2.00 GiB is more than cuda:1 has: 1.00 GiB" $((1 << 30)) --device cuda:1 --memory 2GiB
card 4 "cannot load kernels" $((1 << 50)) --device cuda --memory 900TiB
card 1 "cuda:7: the driver shows 2 cards" $((1 << 30)) --device cuda:7 --memory 50%
card 2 "more than the whole" $((1 << 30)) --device cuda:7 --memory 200%

# LossScaleOptimizer around an optimizer: its rate and schedule are the inner one's, and what was trained goes back in the form Keras reads.
scaled() { # NAME OPTIMIZER
    cat >"$t/$1.json" <<EOF
{"module":"keras","class_name":"Sequential","registered_name":null,"config":{"name":"m","layers":[
 {"module":"keras.layers","class_name":"InputLayer","config":{"name":"in","batch_shape":[null,6],"dtype":"float32"},"registered_name":null},
 {"module":"keras.layers","class_name":"Dense","config":{"name":"d","units":2},"registered_name":null}]},
 "compile_config":{"loss":"mse","optimizer":$2}}
EOF
    run train "$t/$1.json" --data synthetic:64 --batch-size 8 --epochs 2 --no-shuffle --log-csv "$t/$1.csv" --out "$t/$1.keras"
    run train "$t/$1.keras" --data synthetic:64 --batch-size 8 --epochs 2 --no-shuffle --log-csv "$t/$1.again.csv" --out "$t/$1.again.keras"
}
for rate in 0.2 '{"module":"keras.optimizers.schedules","class_name":"ExponentialDecay","config":{"initial_learning_rate":0.2,"decay_steps":3,"decay_rate":0.5},"registered_name":null}'; do
    sgd='{"module":"keras.optimizers","class_name":"SGD","config":{"learning_rate":'$rate',"momentum":0.5},"registered_name":null}'
    scaled plain "$sgd"
    scaled scaled '{"module":"keras.optimizers","class_name":"LossScaleOptimizer","config":{"inner_optimizer":'$sgd',"initial_scale":8.0,"dynamic_growth_steps":100},"registered_name":null}'
    cmp "$t/plain.csv" "$t/scaled.csv" || fail "LossScaleOptimizer trains otherwise than the optimizer in it"
    cmp "$t/plain.again.csv" "$t/scaled.again.csv" || fail "LossScaleOptimizer's state is not taken up"
    grep -q inner_optimizer "$t/scaled.keras" || fail "no arrays of the inner optimizer"
done

# No step is no step: the model goes out as it came in.
run train "$f/cnn.keras" --data "$t/good.npz" --steps 0 --out "$t/untrained.keras" --json
[ "$(json "$t/out" steps)" = 0 ] || fail "--steps 0 did $(json "$t/out" steps) steps"
near "--steps 0" "$(loss "$t/untrained.keras" --data "$t/good.npz")" "$(loss "$f/cnn.keras" --data "$t/good.npz")"

# A model in which nothing can change says so, also when it is asked to be quiet.
sed 's/"units":2/"units":2,"trainable":false/' "$t/plain.json" >"$t/frozen.json"
run train "$t/frozen.json" --data synthetic:8 --quiet
grep -q "no weight will be trained: every layer is frozen" "$t/err" || fail "a frozen model trains without a word"

# Class weights numbered from 1, as people do: the last of them weighs nothing.
echo '{"1": 1.0, "10": 5.0}' >"$t/from_one.json"
run train "$f/cnn.keras" --data "$t/good.npz" --steps 1 --class-weight "$t/from_one.json" --quiet
grep -q "weighs label 10, which no sample has: the labels are 0 to 9" "$t/err" || fail "a class weight without a class: $(cat "$t/err")"

[ $failures = 0 ] && echo "train, uses: all good"
exit $failures
