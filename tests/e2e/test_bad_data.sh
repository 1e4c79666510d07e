#!/bin/bash
# test_bad_data.sh: data that cannot be trained on, and disks that are full: exit status, message, nothing lost.
set -u
f="$MEMFIT_SOURCE/tests/fixtures/train"
t=$(mktemp -d)
disk=""
trap '[ -n "$disk" ] && umount "$disk" 2>/dev/null; rm -rf "$t"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
. "$(dirname "$0")/json.sh"
expect() { # STATUS PATTERN command...
    local want=$1 pattern=$2
    shift 2
    "$@" >"$t/out" 2>"$t/err"
    local got=$?
    [ $got -eq "$want" ] || fail "exit status $got instead of $want: $* ($(cat "$t/err"))"
    [ -z "$pattern" ] || grep -q -- "$pattern" "$t/err" || fail "no \"$pattern\" in the message of: $* ($(cat "$t/err"))"
}
train() { local data=$1; shift; timeout 200 "$MEMFIT" train "$f/mlp.keras" --data "$data" --threads 1 "$@"; }
python3 "$MEMFIT_SOURCE/tests/e2e/make_bad_data.py" "$t" || exit 1
cd "$t" || exit 1

# An older result must survive whatever goes wrong.
train good.npz --out old.keras --quiet || fail "good data"
cp old.keras kept.keras
whole() { cmp -s old.keras kept.keras || fail "$1: the old --out is damaged"; ls ./*.tmp >/dev/null 2>&1 && fail "$1: a temporary file is left"; return 0; }
bad() { local status=$1 pattern=$2 data=$3; shift 3; expect "$status" "$pattern" train "$data" --out old.keras "$@"; whole "$data"; }

# Accepted, as Keras does: a missing last axis of size 1; other types; fewer samples than a batch.
for data in packed.npz no_axis.npz more.npz "$f/digits.h5" "$f/digits_chunked.h5"; do expect 0 "" train "$data" --quiet; done
expect 0 "" train three.npz --quiet --json
holds out "j['steps'] == 1" || fail "three samples are one step"
holds out "j['arena_bytes'] == j['arena_used_bytes']" ||
    fail "three samples: arena used is not arena planned"

# Inputs keep their type, whichever array comes first in the file and whatever the training data's is.
for data in good.npz bytes_first.npz; do expect 0 "" "$MEMFIT" evaluate "$f/mlp.keras" --data $data --quiet --json; json out loss; done >losses
expect 0 "" train bytes.npz --validation-data good.npz --learning-rate 1e-30 --quiet --json
json out validation.loss >>losses
[ "$(sort -u losses | wc -l)" = 1 ] || fail "one data set, several losses: $(tr '\n' ' ' <losses)"

# Shapes: layer, expected, given.
bad 5 "layer input_layer_1 expects samples of shape (8, 8, 1), but x in shape.npz has (8, 7, 1)" shape.npz
bad 5 "expects samples of shape (8, 8, 1), but x in two_axes.npz has (64,)" two_axes.npz
bad 5 "but y in one_hot.npz has (10,)" one_hot.npz
bad 5 "x has 50 samples, y has 49" count.npz
bad 5 "no array for output" no_y.npz
bad 5 "it holds x alone" only.npy
bad 5 "has (1, 8, 8)" first.npz
grep -q "moveaxis" err || fail "channels first: no hint"
bad 5 "sample_weight has shape (50, 2)" weights.npz
bad 5 "sample_weight of sample 0 is nan" weights_nan.npz
bad 5 "y of sample 31 is 4.29497e+09" wide.npz
for kind in text short; do # predictions weigh nothing
    expect 0 "" "$MEMFIT" predict "$f/mlp.keras" --data weights_$kind.npz --out p.npy --quiet
    rm -f p.npy
done
bad 4 "holds texts" weights_text.npz
bad 5 "x has 50 samples, sample_weight has 3" weights_short.npz
for weights in '{"-1": 2, "1": 1}' '{"cat": 2}' '{"1": "x"}' '[1, 2]' '{}' '{"0": 1'; do
    echo "$weights" >weights.json
    bad 5 "weights.json" good.npz --class-weight weights.json
done
bad 5 "no array for input" other_names.npz

# Types.
bad 4 "x holds texts, but inputs must be numbers" text.npz
bad 4 "<c8" complex.npz
bad 5 "line 6, column 1: \"oops\" is not a number" word.csv

# Values: array, sample, element.
for data in nan.npz nan64.npz; do bad 5 "array x is not finite (-*nan) in sample 17, element 5" $data; done
bad 5 "array x is not finite (inf) in sample 17, element 5" inf16.npz
bad 5 "array x is not finite (inf) in sample 17" inf16.npz --precision mixed_float16
bad 5 "y of sample 31 is -1, but output .* has the classes 0 to 9" negative.npz
for data in class10.npz class10_u8.npz; do bad 5 "y of sample 31 is 10, but output .* has the classes 0 to 9" $data; done
bad 5 "y of sample 31 is 2.5" half.npz
bad 5 "y of sample 31 is 10" good.npz --validation-data class10.npz
expect 5 "y of sample 31 is 10" "$MEMFIT" evaluate "$f/mlp.keras" --data class10.npz
expect 5 "not finite" "$MEMFIT" predict "$f/mlp.keras" --data nan.npz --out p.npy
[ -e p.npy ] && fail "predict left a file behind bad data"

# Weights that are not in the file: refused by name, as Keras does, where they count.
# A layer used on two levels of nesting is stored once, and is one: without the mark that says so, its weights are missing.
shared="$MEMFIT_SOURCE/tests/fixtures/keras/shared_levels"
python3 - "$shared.keras" <<'PYTHON'
import re, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as old, zipfile.ZipFile("unmarked.keras", "w") as new:
    for name in old.namelist():
        data = old.read(name)
        new.writestr(name, re.sub(rb', "shared_object_id": \d+', b"", data) if name == "config.json" else data)
PYTHON
for what in "train --steps 1" evaluate "predict --out p.npy"; do
    expect 5 "layer 'shared': its weight kernel (vars/0) is not in the file" "$MEMFIT" ${what%% *} unmarked.keras --data "$shared.npz" ${what#"${what%% *}"}
done
expect 0 "" "$MEMFIT" plan unmarked.keras --quiet
small_loss() { python3 -c 'import json, sys; loss = json.load(open("out"))["loss"]; sys.exit(0 if loss < 1e-12 else f"loss {loss}")' || fail "$1"; }
expect 0 "" "$MEMFIT" evaluate "$shared.keras" --data "$shared.npz" --json # against what Keras predicted
small_loss "a layer shared on two levels"
expect 0 "" "$MEMFIT" train "$shared.keras" --data "$shared.npz" --epochs 2 --learning-rate 0.01 --out trained.keras --quiet
expect 0 "" "$MEMFIT" evaluate trained.keras --data "$shared.npz" --json
small_loss "the same, trained on its own predictions and read again"
expect 0 "" "$MEMFIT" train "$MEMFIT_SOURCE/tests/fixtures/keras/dense_adam.json" --data synthetic:8 --optimizer sgd --loss mse --quiet

# Too few, empty, cut off, damaged.
bad 5 "no samples" none.npz
bad 5 "no rows" header_only.csv
bad 2 "validation split" three.npz --validation-split 0.99
for kind in npy npz h5 csv; do
    : >"empty.$kind"
    bad 5 "empty.$kind is empty" "empty.$kind"
done
bad 5 "cut.npy" cut.npy
bad 5 "head.npy" head.npy
bad 5 "cut_good.npz" cut_good.npz
bad 5 "cut_packed.npz" cut_packed.npz
bad 5 "flipped_packed.npz" flipped_packed.npz
bad 5 "cut.csv, line 6: .* columns" cut.csv
for h5 in digits digits_chunked; do
    size=$(stat -c %s "$f/$h5.h5")
    for part in 4 64 512 $((size / 2)) $((size - 200)); do
        head -c "$part" "$f/$h5.h5" >cut.h5
        bad 5 "cut.h5" cut.h5
    done
done
bad 5 "nowhere.npz" nowhere.npz
bad 5 "two members named x.npy" doubled.npz
bad 5 "never written" "$MEMFIT_SOURCE/tests/fixtures/hdf5/unwritten.h5"

# Pipes and devices: refused by name, not waited for (the time is there to end a test that hangs).
mkfifo pipe.npz
bad 5 "pipe.npz is a pipe" pipe.npz
bad 5 "/dev/zero is a character device" /dev/zero
bad 5 'standard input is empty' - </dev/null
for what in plan "train --data good.npz" "evaluate --data good.npz"; do
    expect 5 "pipe.npz is a pipe" timeout 60 "$MEMFIT" ${what%% *} pipe.npz ${what#"${what%% *}"}
done
expect 5 "pipe.npz is a pipe" timeout 60 "$MEMFIT" train "$f/mlp.keras" --data good.npz --class-weight pipe.npz

# Files that change while they are used: data cut off is an error with its place, a model saved over does not touch what is written.
started() { for _ in $(seq 500); do [ "$(cat log.csv 2>/dev/null | wc -l)" -gt 2 ] && break; sleep 0.02; done; }
cp "$f/digits.npz" used.npz
cp "$f/mlp.keras" used.keras
"$MEMFIT" train used.keras --data used.npz --epochs 1000000 --threads 1 --quiet --log-csv log.csv --checkpoint used_ck.keras --save-freq 1 2>err &
pid=$!
started
head -c 100 /dev/zero >used.keras
lines=$(wc -l <log.csv)
for _ in $(seq 500); do [ "$(wc -l <log.csv)" -gt $((lines + 2)) ] && break; sleep 0.02; done
truncate -s 5000 used.npz
wait $pid
status=$?
[ $status = 5 ] || fail "data cut off while training: exit status $status ($(cat err))"
grep -q "became shorter while it was read" err || fail "data cut off while training: $(cat err)"
expect 0 "" "$MEMFIT" evaluate used_ck.keras --data good.npz --quiet
rm -f log.csv

# What was converted when it was opened is not needed any more: a table may go while it is trained on.
"$MEMFIT" train "$f/mlp.keras" --data used.csv --epochs 1000000 --steps 3000 --threads 1 --quiet --log-csv log.csv 2>err &
pid=$!
started
: >used.csv
wait $pid || fail "a table cut off after it was converted: $(cat err)"
rm -f log.csv

# A place that cannot be written to is refused before the first step.
expect 1 "cannot write" train good.npz --epochs 1000000 --out no/such/folder.keras
expect 1 "cannot write" train good.npz --epochs 1000000 --checkpoint no/such/folder.keras
expect 1 "cannot write" train good.npz --epochs 1000000 --log-csv no/such/log.csv

# Full disks. First as `ulimit -f` shows them: no file may be longer than 8 KiB.
small() { (ulimit -f 8; "$@"); }
expect 1 "cannot write old.keras: .*" small train good.npz --out old.keras
grep -q "what was there before is unchanged" err || fail "the message does not say that nothing is lost"
whole "a limit of file sizes"
cp old.keras ck.keras
expect 1 "cannot write ck.keras" small train good.npz --epochs 2 --checkpoint ck.keras --save-freq 1
cmp -s ck.keras kept.keras || fail "an older checkpoint is damaged"
expect 1 "no room for" env TMPDIR="$t" bash -c 'ulimit -f 8; exec "$@"' - "$MEMFIT" train "$f/mlp.keras" --data packed.npz
train good.npz --checkpoint real.keras --quiet || fail "a checkpoint"
printf 'epoch,loss\r\n%.0s' {1..700} >log.csv
expect 1 "cannot write log.csv" small "$MEMFIT" train "$f/mlp.keras" --data good.npz --epochs 3 --log-csv log.csv --resume real.keras

# A real one, where mounting is allowed: it holds the old file, not a second.
disk="$t/disk"
mkdir "$disk"
if mount -t tmpfs -o size=$(($(stat -c %s kept.keras) / 4096 * 4 + 12))k tmpfs "$disk" 2>/dev/null; then
    cp kept.keras "$disk/old.keras"
    mkdir "$t/spare"
    TMPDIR="$t/spare" expect 1 "No space left" train good.npz --out "$disk/old.keras"
    grep -q "the trained model is in $t/spare/memfit-.*/old.keras" err || fail "full disk: where the model is, is not said"
    "$MEMFIT" evaluate "$t"/spare/memfit-*/old.keras --data good.npz >/dev/null 2>&1 || fail "full disk: the model is lost"
    cmp -s "$disk/old.keras" kept.keras || fail "full disk: the old --out is damaged"
    expect 1 "No space left" train good.npz --epochs 2 --checkpoint "$disk/old.keras" --save-freq 1 --out other.keras
    cmp -s "$disk/old.keras" kept.keras || fail "full disk: the old checkpoint is damaged"
    [ -s other.keras ] || fail "full disk for checkpoints: --out was not written"
    head -c 100000 /dev/zero >"$disk/rest" 2>/dev/null
    rm -f other.keras
    expect 1 "No space left" train good.npz --epochs 2 --log-csv "$disk/log.csv" --out other.keras
    [ -s other.keras ] || fail "full disk for logs: --out was not written"
    rm -f other.keras
    expect 1 "No space left" train good.npz --epochs 2 --tensorboard "$disk/board" --out other.keras
    [ -s other.keras ] || fail "full disk for TensorBoard: --out was not written"
    rm -f other.keras
    # One page is free: the epochs' file has room, the validation's has none for its first record.
    rm -rf "$disk"/*; cat /dev/zero >"$disk/rest" 2>/dev/null; truncate -s -4096 "$disk/rest"
    expect 1 "validation/.*No space left" train good.npz --epochs 2 --tensorboard "$disk/board" --out other.keras
    [ -s other.keras ] || fail "a page for TensorBoard: --out was not written"
    rm -rf other.keras "$disk/board"; cat /dev/zero >>"$disk/rest" 2>/dev/null
    # A trace's ring has its room before the first step: a run that could not be told about does not begin.
    expect 1 "run.trace: cannot be written: No space left" train good.npz --epochs 300 --trace "$disk/run.trace" --out other.keras
    [ -e other.keras ] && fail "full disk for a trace: the run went on without it"
    expect 1 "No space left" "$MEMFIT" predict "$f/mlp.keras" --data "$f/digits.npz" --out "$disk/p.npy"
    [ -e "$disk/p.npy" ] && fail "full disk: half a prediction is left"
    ls "$disk"/*.tmp >/dev/null 2>&1 && fail "full disk: temporary files are left"
else
    echo "mounting is not allowed here: full disks were tested with ulimit only"
fi
echo "bad data: all good"
