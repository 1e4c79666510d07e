#!/bin/sh
# The contract that all commands share: help, options in every spelling, sizes, exit statuses, what is printed where, and what
# happens to files and standard output that cannot be written.
set -u
failures=0
. "$(dirname "$0")/json.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fixtures=$(cd "$(dirname "$0")/../fixtures" && pwd)
model=$fixtures/keras/dense_adam.keras trace=$fixtures/traces/generated.csv
cd "$dir"
fail() { echo "FAIL $*"; failures=$((failures + 1)); }
expect() { # expect STATUS DESCRIPTION COMMAND...
    want=$1 what=$2; shift 2
    out=$("$@" 2>&1); got=$?
    if [ "$got" != "$want" ]; then
        echo "FAIL $what: exit $got, wanted $want"; echo "$out" | head -5; failures=$((failures + 1))
    fi
}
expect 0 "help" "$MEMFIT" --help
expect 0 "version" "$MEMFIT" --version
expect 2 "no command" "$MEMFIT"
expect 2 "unknown command" "$MEMFIT" paln
for c in plan train evaluate predict tune run explain report ps doctor pack replay; do
    expect 0 "$c --help" "$MEMFIT" $c --help
done
expect 0 "alias estimate" "$MEMFIT" estimate --help
"$MEMFIT" paln 2>&1 | grep -q 'did you mean "plan"' || { echo "FAIL no suggestion for paln"; failures=$((failures + 1)); }
expect 0 "help COMMAND" "$MEMFIT" help replay
"$MEMFIT" help replay | grep -q '^usage:   memfit replay' || fail "help replay shows another page"

# ---- every command: what each is given here works; the same with a slip is exit 2, said once, and an object with --json ----
printf 'id,lower,upper,size\na,0,2,4\nb,1,3,4\n' >pack.csv
printf 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 GiB. GPU 0 has a total capacity of 10.00 GiB of which 1.00 GiB is free.\n' >log
arguments() {
    case $1 in
    plan) echo "$model" ;;
    train) echo "$model --data synthetic:8 --steps 1" ;;
    evaluate | predict) echo "$model --data synthetic:8" ;;
    explain) echo log ;;
    doctor) ;;
    pack) echo pack.csv ;;
    replay) echo "$trace" ;;
    esac
}
object() { holds "$1" "isinstance(j, dict)"; } # object FILE: one JSON object, nothing else
for c in plan train evaluate predict explain doctor pack replay; do
    a=$(arguments $c)
    "$MEMFIT" $c $a --json >out 2>err || fail "$c --json: exit $?"
    object out || fail "$c --json: not one object"
    "$MEMFIT" $c --quiet --json $a >out 2>err || fail "$c --quiet --json: exit $?"
    [ -s err ] && fail "$c --quiet --json speaks on standard error"
    "$MEMFIT" $c --quiet $a >out 2>err || fail "$c --quiet: exit $?"
    [ -s err ] && fail "$c --quiet speaks on standard error"
    [ -s out ] || fail "$c --quiet: no answer"
    expect 2 "$c: an unknown option" "$MEMFIT" $c $a --bogus
    "$MEMFIT" $c $a --bogus 2>&1 | grep -q 'did you mean' && fail "$c --bogus: a name that is not near is suggested"
    "$MEMFIT" $c --json $a --bogus >out 2>err
    holds out "j['error']['code'] == 'INVALID' and j['error']['message'] and j['error']['hint']" || fail "$c --json --bogus: no object"
    expect 2 "$c: an argument too many" "$MEMFIT" $c $a x y
    expect 2 "$c: a value for a flag" "$MEMFIT" $c $a --json=1
    "$MEMFIT" $c $a >/dev/full 2>err; [ $? = 1 ] || fail "$c to a full disk: exit $?"
    grep -q 'standard output' err || fail "$c to a full disk: no message"
    "$MEMFIT" $c $a >&- 2>err; [ $? = 1 ] || fail "$c with standard output closed: exit $?"
done
"$MEMFIT" run -- true --json >out 2>err || fail "run: a program's own --json: exit $?"
"$MEMFIT" report --json x >out 2>err; [ $? = 5 ] || fail "report: exit $?"
object out || fail "report --json: no object"

# ---- --quiet: the answer alone ----
"$MEMFIT" plan "$model" --quiet >out; grep -q '^FITS' out && [ "$(wc -l <out)" -le 2 ] || fail "plan --quiet: $(cat out)"
"$MEMFIT" plan "$model" --quiet --memory 1200KiB >out; [ $? = 3 ] && grep -q 'FIT' out && [ "$(wc -l <out)" -le 3 ] || fail "plan --quiet that does not fit: $(cat out)"
"$MEMFIT" plan "$model" --quiet --for t4,h200 >out; grep -q 'in memfit' out && [ "$(wc -l <out)" -le 20 ] || fail "plan --quiet of two cards: $(cat out)"
"$MEMFIT" plan "$model" --quiet --curve | grep -q 'budget\|slowdown\|times' || fail "plan --quiet --curve: no curve"
"$MEMFIT" explain log --quiet >out; grep -q '^what to change' out && ! grep -q 'the figures' out || fail "explain --quiet: $(cat out)"

# ---- of the contract, and not built yet: exit 4, named, with the next step; in the help all the same ----
later() { # later COMMAND OPTION [VALUE]
    c=$1; shift
    "$MEMFIT" $c $(arguments $c) "$@" >out 2>err; got=$?
    [ $got = 4 ] && grep -q 'not built yet' err && [ "$(wc -l <err)" = 2 ] || fail "$c $*: exit $got, $(cat err)"
    "$MEMFIT" $c --help | grep -q -e " $1 \| $1\$" || fail "$c --help does not name $1"
}
for o in "--for t4" "--assume x=3"; do
    later train $o
done
# On cpu every sum has one order: said, and nothing else.
"$MEMFIT" train $(arguments train) --allow-nondeterministic --steps 1 --json >out 2>err; got=$?
[ $got = 0 ] && grep -q 'on cpu every sum has one order' err && grep -q '"nondeterministic_ops": *0' out ||
    fail "train --allow-nondeterministic: exit $got, $(cat err)"
"$MEMFIT" plan $(arguments plan) --allow-nondeterministic >out 2>err || fail "plan --allow-nondeterministic: $(cat err)"
# Nothing to tune without a card: which is said, by what is missing.
"$MEMFIT" tune $model >out 2>err; got=$?
[ $got = 2 ] && grep -q -e '--device cuda is missing' err || fail "tune: exit $got, $(cat err)"

# ---- plan and train read the same words ----
for o in "--precision fp32" "--precision float32" "--precision fp16" "--precision bf16" "--input-shape 8x8x1" "--input-shape (8,8,1)" "--input-shape 8,8,1" \
    "--device host" "--gradient-accumulation auto" "--gradient-accumulation off" "--gradient-accumulation 2" "--recompute off" "--remat auto" "--chunked-loss off"; do
    expect 0 "plan $o" "$MEMFIT" plan "$fixtures/train/cnn.keras" $o
    expect 0 "train $o" "$MEMFIT" train "$fixtures/train/cnn.keras" --data synthetic:32 --steps 1 $o
done
for o in "--precision fp8" "--input-shape 8,8," "--input-shape 8x" "--input-shape 8,-8" "--device tpu" "--gradient-accumulation no" "--gradient-accumulation 0" \
    "--recompute maybe" "--chunked-loss 5000" "--chunked-loss -1" "--threads 1025" "--batch 0" "--batch 1.5" "--dim =3" "--dim x=3y"; do
    expect 2 "plan $o" "$MEMFIT" plan "$fixtures/train/cnn.keras" $o
    expect 2 "train $o" "$MEMFIT" train "$fixtures/train/cnn.keras" --data synthetic:32 --steps 1 $o
    "$MEMFIT" plan "$fixtures/train/cnn.keras" $o 2>plan.err; "$MEMFIT" train "$fixtures/train/cnn.keras" --data synthetic:32 --steps 1 $o 2>train.err
    [ "$(sed 's/^memfit [a-z]*//; s/^memfit//' plan.err | head -1)" = "$(sed 's/^memfit [a-z]*//; s/^memfit//' train.err | head -1)" ] ||
        fail "$o: plan says $(head -1 plan.err), train $(head -1 train.err)"
done

# ---- options that need or exclude each other ----
expect 2 "--validation-data and --validation-split" "$MEMFIT" train "$model" --data synthetic:8 --validation-data synthetic:8 --validation-split 0.5
expect 2 "--shuffle and --no-shuffle" "$MEMFIT" train "$model" --data synthetic:8 --shuffle 5 --no-shuffle
expect 2 "--save-freq alone" "$MEMFIT" train "$model" --data synthetic:8 --save-freq 5
expect 2 "--keep-best alone" "$MEMFIT" train "$model" --data synthetic:8 --keep-best
expect 2 "explain -b alone" "$MEMFIT" explain log -b 5
for o in --early-stopping --reduce-on-plateau; do
    "$MEMFIT" train "$model" --data synthetic:8 $o 0 2>err; [ $? = 2 ] && grep -q 'leave it out for never' err || fail "$o 0: $(cat err)"
done
"$MEMFIT" explain 2>&1 | grep -q 'which log?' || fail "explain without a log asks for something else"
"$MEMFIT" train "$model" --data synthetic:8 --epochs x 2>&1 | grep -q 'must be a whole number' || fail "--epochs x"
"$MEMFIT" plan "$model" --batch-size 18446744073709551616 2>&1 | grep -q 'the number is too large' || fail "--batch-size 2^64"
# --shuffle 0 takes samples as they are stored.
for o in "--shuffle 0" --no-shuffle "--shuffle 9"; do
    "$MEMFIT" train "$fixtures/train/mlp.keras" --data "$fixtures/train/digits.npz" --threads 1 --quiet $o --out "shuffle${o##*[- ]}.keras" >out || fail "train $o"
done
cmp -s shuffle0.keras shuffleshuffle.keras || fail "--shuffle 0 is not --no-shuffle"
cmp -s shuffle0.keras shuffle9.keras && fail "--shuffle 9 does not shuffle"

# ---- options in every spelling ----
for b in "-b 7" -b7 -b=7 "--batch 7" --batch=7 "--batch-size 7" --batch-size=7; do
    "$MEMFIT" plan $b --json "$model" >out; [ "$(json out batch)" = 7 ] || fail "plan $b"
done
"$MEMFIT" train --accumulation 2 "$model" 2>&1 | grep -q 'did you mean --gradient-accumulation' || fail "no suggestion for --accumulation"

# ---- sizes: a limit is never silently none ----
for size in 1GiB 1g 1024MiB 1048576K 1073741824 ' 1 GiB ' 1.0GiB; do
    "$MEMFIT" plan "$model" --json --memory "$size" >out; [ "$(json out memory_bytes)" = 1073741824 ] || fail "plan --memory '$size'"
done
"$MEMFIT" plan "$model" --json --memory .5GiB >out; [ "$(json out memory_bytes)" = 536870912 ] || fail "plan --memory .5GiB"
for size in 0 0% 0MiB -1 -1GiB 101% 1e9 nan x '' 1,5GB 1GiBx 0.8 858993459.2 99999999999999999999GiB 999TiB; do
    expect 2 "plan --memory '$size'" "$MEMFIT" plan "$model" --memory "$size"
    expect 2 "train --memory '$size'" "$MEMFIT" train "$model" --data synthetic:8 --memory "$size"
done
for size in 0 0% 101% x; do expect 2 "replay --memory $size" "$MEMFIT" replay "$trace" --memory $size; done
expect 2 "train --host-memory 999TiB" "$MEMFIT" train "$model" --data synthetic:8 --host-memory 999TiB
expect 3 "train --host-memory 512KiB" "$MEMFIT" train "$model" --data synthetic:8 --host-memory 512KiB
expect 3 "train --memory 100KiB" "$MEMFIT" train "$model" --data synthetic:8 --memory 100KiB
for c in "plan $model" "train $model --data synthetic:8"; do
    for size in 80 100 65535; do # a slip in the unit; bytes in plenty are a limit
        "$MEMFIT" $c --memory $size --quiet >out 2>err; got=$?
        [ $got = 2 ] || fail "$c --memory $size: exit $got"
        grep -q "a bare number is bytes" err && grep -q "${size}MiB" err || fail "$c --memory $size: the missing unit is not named"
    done
done

# ---- train takes the options of plan; a slip in a value is found before anything runs ----
train="$MEMFIT train $model --data synthetic:8 --steps 1"
expect 0 "train --html, --dump-graph" $train --html page.html --dump-graph graph.txt
[ -s page.html ] && [ -s graph.txt ] || fail "train --html, --dump-graph: nothing written"
expect 0 "train --curve" $train --curve
expect 4 "train --for" $train --for t4
expect 4 "train --assume" $train --assume x=3
expect 4 "train --host-memory beside a card" $train --device cuda:0 --host-memory 1GiB
for slip in "--device cuda:x" "--device tpu" "--prefetch x" "--threads 100000" "--threads 4294967297" "--learning-rate 0" "--lr nan" \
    "--input-shape 8," "--dim x" "--dim x=0" "--dim no_such_input=3" "--dim input_layer=77" "--epochs -1" "--seed 1.5" "--batch 9223372036854775808" "--batch 4611686018427387904" "--validation-split 1" "--data synthetic:5:6"; do
    expect 2 "train $slip" $train $slip
done
expect 2 "plan --dim of an input that is not there" "$MEMFIT" plan "$model" --dim no_such_input=3
expect 2 "plan --input-shape that the weights do not suit" "$MEMFIT" plan "$model" --input-shape 3
mkdir saved; expect 5 "a folder that is no model" "$MEMFIT" plan saved
echo x >saved/saved_model.pb; expect 4 "a SavedModel" "$MEMFIT" plan saved
expect 2 "train in more pieces than samples" $train --gradient-accumulation 33
expect 2 "train --save-freq without a checkpoint" $train --save-freq 1
expect 2 "train --keep-best without a file" $train --keep-best
expect 2 "plan --threads 100000" "$MEMFIT" plan "$model" --threads 100000
expect 2 "plan --for seventeen cards" "$MEMFIT" plan "$model" --for t4,t4,t4,t4,t4,t4,t4,t4,t4,t4,t4,t4,t4,t4,t4,t4,t4
expect 5 "train --memory-file that is not there" $train --memory-file nothing
expect 5 "a folder of images" "$MEMFIT" train "$model" --data .
echo x >x.tfrecord
expect 5 "a TFRecord" "$MEMFIT" train "$model" --data x.tfrecord
expect 0 "evaluate --out" "$MEMFIT" evaluate "$model" --data synthetic:8 --out y.npy
"$MEMFIT" predict "$model" --data synthetic:8 --out z.npy --quiet
cmp -s y.npy z.npy || fail "evaluate --out and predict --out differ"

# Nothing to compare with: no loss. Outputs in other types than float32 are written as what they are, where NumPy has a name for it.
"$MEMFIT" predict "$model" --data synthetic:8 | grep -q '^predicted: 1 step' || fail "predict shows another answer"
"$MEMFIT" predict "$model" --data synthetic:8 --json >out 2>err; [ "$(json out loss)" = null ] || fail "predict has a loss"
for p in "float32 <f4" "float16 <f2" "bfloat16 <f4"; do
    expect 0 "predict --precision ${p% *}" "$MEMFIT" predict "$model" --data synthetic:8 --precision ${p% *} --out y.npy
    head -c 128 y.npy | grep -aq "'descr': '${p#* }'" || fail "predict --precision ${p% *}: not ${p#* }"
done

# A device is a name with a number or not; one that is not there is no missing file.
for d in cudax cuda: cuda:x gpu:-1 tpu; do
    expect 2 "plan --device $d" "$MEMFIT" plan "$model" --device $d
    expect 2 "replay --device $d" "$MEMFIT" replay "$trace" --device $d
done
none="env MEMFIT_LIB_CUDA=$dir/none MEMFIT_LIB_NVML=$dir/none $MEMFIT"
expect 1 "plan on a card that is not there" $none plan "$model" --device cuda
for c in train evaluate predict; do
    expect 1 "$c on a card that is not there" $none $c "$model" --data synthetic:8 --device cuda:0
done
expect 1 "replay on a card that is not there" $none replay "$trace" --device cuda:1
expect 1 "ps without a driver" $none ps
expect 0 "doctor without a driver" $none doctor
$none ps 2>&1 | grep -q 'no NVIDIA driver found$' || fail "ps without a driver: $($none ps 2>&1)"
$none ps 2>&1 | grep -q 'memfit doctor' || fail "ps without a driver: no way on"

# A trained file holds the optimizer's state too: evaluating in small batches once wrote it behind the arena.
for b in 1 2 64; do
    "$MEMFIT" evaluate "$fixtures/train/mlp.keras" --data synthetic:8 --batch $b --json >out; json out loss >loss.$b
    expect 0 "predict, batch $b" "$MEMFIT" predict "$fixtures/train/mlp.keras" --data synthetic:8 --batch $b
    [ -s loss.$b ] || fail "evaluate, batch $b"
done

# Metrics of several outputs have their output's name before them, as Keras's have; an area under a curve is one.
cat >two.json <<'END'
{"class_name": "Functional", "config": {"name": "two", "layers": [
 {"class_name": "InputLayer", "name": "x", "config": {"name": "x", "batch_shape": [null, 3], "dtype": "float32"}, "inbound_nodes": []},
 {"class_name": "Dense", "name": "p", "config": {"name": "p", "trainable": true, "dtype": "float32", "units": 1, "activation": "sigmoid"}, "inbound_nodes": [[["x", 0, 0, {}]]]},
 {"class_name": "Dense", "name": "q", "config": {"name": "q", "trainable": true, "dtype": "float32", "units": 1, "activation": "sigmoid"}, "inbound_nodes": [[["x", 0, 0, {}]]]}],
 "input_layers": [["x", 0, 0]], "output_layers": [["p", 0, 0], ["q", 0, 0]]},
 "compile_config": {"optimizer": "adam", "loss": "binary_crossentropy", "metrics": [["accuracy", "AUC"], ["accuracy", "AUC"]]}}
END
"$MEMFIT" evaluate two.json --data synthetic:64 --json >out 2>err || { fail "two outputs: exit $?"; cat err; }
for m in p_accuracy q_accuracy p_AUC q_AUC; do holds out "0 <= j['metrics']['$m'] <= 1" || fail "two outputs: no $m between 0 and 1"; done

"$MEMFIT" predict two.json --data synthetic:8 --out y.npy 2>&1 | grep -q 'output 2 of 2 goes to y.q.npy' || fail "two outputs: predict says nothing of the second"
[ "$(wc -c <y.npy)" = 160 ] && [ "$(wc -c <y.q.npy)" = 160 ] || fail "two outputs: predictions have the wrong size"
"$MEMFIT" predict two.json --data synthetic:8 --out /dev/null 2>&1 | grep -q 'the first is written' || fail "two outputs to one device"

# ---- what is written: a device is not replaced by a file, a link stays one, a folder is found before training ----
mkfifo pipe; timeout 20 cat pipe >read & timeout 20 "$MEMFIT" train "$model" --data synthetic:8 --quiet --out pipe || fail "--out to a pipe: exit $?"
wait; [ -p pipe ] || fail "--out replaced a pipe by a file"
cp read piped.keras; expect 0 "what came through the pipe" "$MEMFIT" evaluate piped.keras --data synthetic:8
cp "$model" real.keras; ln -s real.keras link.keras
"$MEMFIT" train "$model" --data synthetic:8 --quiet --out link.keras || fail "--out to a link: exit $?"
[ -L link.keras ] && "$MEMFIT" plan real.keras >out && ! cmp -s real.keras "$model" || fail "--out replaced a link"
mkdir folder
"$MEMFIT" train "$model" --data synthetic:8 --out folder >out 2>&1; [ $? = 2 ] || fail "--out to a folder: exit $?"
grep -q Epoch out && fail "--out to a folder is found only after training"
expect 2 "--out with an empty name" "$MEMFIT" train "$model" --data synthetic:8 --out ''
cp "$model" 'a b ü.keras'
expect 0 "a name with blanks and letters beyond ASCII" "$MEMFIT" train 'a b ü.keras' --data synthetic:8 --out 'c d é.keras'
[ -s 'c d é.keras' ] || fail "a name with blanks: nothing written"

# ---- a signal: the step is finished, the checkpoint written, --out left as it was; the shell sees the signal ----
# Sent once an epoch is logged, however slow the machine; twice, as `timeout` and terminals do. (A shell starts what runs beside it
# with SIGINT ignored, nohup with SIGHUP ignored, and memfit leaves an ignored signal ignored.)
beside="env --default-signal=INT,TERM,HUP $MEMFIT"
until_there() { for _ in $(seq 1000); do [ -n "$(cat $1 2>/dev/null | head -c 1)" ] && break; sleep 0.02; done; }
for s in INT=130 TERM=143 HUP=129; do
    signal=${s%=*}
    cp "$model" kept.keras
    $beside train "$model" --data synthetic:64 --epochs 1000000 --quiet --checkpoint stop.keras --save-freq 100000000 --log-csv log.csv \
        --out kept.keras 2>err &
    until_there log.csv
    kill -s $signal $! && kill -s $signal $! 2>/dev/null
    wait $!; got=$?
    [ $got = ${s#*=} ] || fail "SIG$signal: exit $got"
    cmp -s kept.keras "$model" || fail "SIG$signal: --out was written"
    grep -q 'resume stop.keras' err || fail "SIG$signal: $(cat err)"
    expect 0 "SIG$signal: the checkpoint" "$MEMFIT" train "$model" --data synthetic:64 --resume stop.keras --steps 1 --epochs 1000000
    rm -f stop.keras log.csv
done
"$MEMFIT" predict "$model" --data synthetic:100000000 --batch 1 --out stopped.npy >out 2>err &
until_there 'stopped.npy*'
kill $!
wait $!
grep -q 'stopped after [0-9]* of 100000000 samples, nothing is written' err || fail "predict, SIGTERM: $(cat err)"
[ -e stopped.npy ] && fail "predict, SIGTERM: half a file"

# ---- a resumed run that has nothing left says so, and does nothing ----
"$MEMFIT" train "$model" --data synthetic:64 --checkpoint done.keras --quiet >out || fail "a checkpoint"
"$MEMFIT" train "$model" --data synthetic:64 --resume done.keras >out 2>err || fail "resumed with nothing left: exit $?"
grep -q 'nothing is left of --epochs 1' err && grep -q 'no step was left' out || fail "resumed with nothing left: $(cat err out)"
grep -q 'time:\|0 samples a second\|allocations in' out && fail "a time of steps that nobody did: $(cat out)"
"$MEMFIT" train "$model" --data synthetic:64 --resume done.keras --epochs 3 --steps 2 --json >out 2>err
[ "$(json out steps)" = 2 ] && grep -q 'nothing is left of --steps 2' err || fail "resumed with its steps done: $(cat err)"

ls | grep -q '\.tmp$' && fail "temporary files are left"
exit $((failures > 0))
