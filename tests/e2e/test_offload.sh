#!/bin/bash
# test_offload.sh: the optimizer's state in host memory gives the same bytes as in the device's: on the far device, whose memory
# is not the host's. Optimizers, pieces, scaled losses, checkpoints, a limit that is lowered; the arena is what was planned.
set -u
f="$MEMFIT_SOURCE/tests/fixtures"
. "$(dirname "$0")/lib.sh"
cd "$dir" || exit 1
export MEMFIT_FAR=1

both() { # both NAME ARGUMENTS...: with the state on the device and in host memory; %D in a word is one's folder
    name=$1; shift
    for way in off optimizer; do
        mkdir -p $way
        "$MEMFIT" train "${@//%D/$way}" --threads 1 --offload $way --out "$way/$name.keras" --quiet --json >"$way/$name.json" 2>"$way/$name.err" ||
            { fail "$name, $way: $(tail -3 "$way/$name.err")"; return; }
        n=$(key allocations_in_steps "$way/$name.json") # null: a sanitizer's build does not count
        [ "$n" = 0 ] || [ "$n" = null ] || fail "$name, $way: $n allocations in steps"
        is "$way/$name.json" arena_used_bytes "$(key arena_bytes "$way/$name.json")"
    done
    for key in loss metrics validation steps epochs pieces numerics; do
        [ "$(key $key "off/$name.json")" = "$(key $key "optimizer/$name.json")" ] || fail "$name: $key differs"
    done
    cmp -s "off/$name.keras" "optimizer/$name.keras" || fail "$name: another model"
    is "off/$name.json" offloaded_bytes 0
}
less() { # less NAME: the arena has two windows in place of the state
    a=$(key arena_bytes "off/$1.json") b=$(key arena_bytes "optimizer/$1.json") state=$(key offloaded_bytes "optimizer/$1.json")
    [ "$state" -gt 0 ] && [ $b -lt $a ] && [ $((a - b)) -lt "$state" ] || fail "$1: arena $a, offloaded $b, state $state"
}

# A wide middle layer: its state is most of the model's, so two windows are, too; many equal layers: two of them are little.
for model in mlp cnn; do
    both $model "$f/train/$model.keras" --data synthetic:150 --batch-size 32 --epochs 3 --validation-split 0.2 --checkpoint "%D/$model-state.keras" --save-freq 2
    less $model
    cmp -s off/$model-state.keras optimizer/$model-state.keras || fail "$model: another checkpoint"
done
for optimizer in rmsprop adamw ftrl adafactor; do
    both $optimizer "$f/train/mlp.keras" --data synthetic:64 --epochs 2 --optimizer $optimizer
done
[ "$(key offloaded_bytes optimizer/rmsprop.json)" -lt "$(key offloaded_bytes optimizer/adamw.json)" ] || fail "rmsprop has as much state as adamw"
both pieces "$f/train/cnn.keras" --data synthetic:60 --batch-size 30 --epochs 2 --gradient-accumulation 4 --debug-poison
both half "$f/train/cnn.keras" --data synthetic:64 --epochs 2 --precision mixed_float16
count=0
for model in "$f"/fit/*.keras; do # averages, clipping, accumulation of Keras's own
    count=$((count + 1))
    [ $((count % 4)) = 1 ] || continue
    both "$(basename "$model" .keras)" "$model" --data synthetic:10 --batch-size 4 --epochs 2
done
[ $count -ge 9 ] || fail "only $count fixtures are there"

# Queued one by one instead of recorded: the same.
MEMFIT_RECORD=0 "$MEMFIT" train "$f/train/cnn.keras" --data synthetic:64 --epochs 2 --precision mixed_float16 --threads 1 --offload optimizer --out queued.keras --quiet >/dev/null 2>&1
cmp -s queued.keras off/half.keras || fail "queued and recorded differ"

# Gone on with from a checkpoint, either way round.
for way in off optimizer; do
    "$MEMFIT" train "$f/train/cnn.keras" --data synthetic:150 --batch-size 32 --epochs 5 --validation-split 0.2 --resume off/cnn-state.keras --threads 1 --offload $way --out $way.keras --quiet >/dev/null 2>err ||
        fail "resume, $way: $(cat err)"
done
cmp -s off.keras optimizer.keras || fail "resumed: another model"

# A limit that is lowered while running: the state goes to the next plan. (A sanitizer's own memory would count.)
if [ "$n" = 0 ]; then
    run=("$f/train/mlp.keras" --data synthetic:4096 --batch-size 4096 --threads 1 --json)
    "$MEMFIT" train "${run[@]}" --epochs 2 --offload optimizer --quiet >as-asked.json 2>err || fail "as asked: $(cat err)"
    limit=$(key planned_peak_bytes as-asked.json)
    echo $((limit * 4)) >limit
    "$MEMFIT" train "${run[@]}" --epochs 100 --offload optimizer --memory-file limit --log-csv log.csv >moved.json 2>err & pid=$!
    for i in $(seq 600); do [ -s log.csv ] && [ "$(wc -l <log.csv)" -gt 3 ] && break; sleep 0.05; done
    echo $((limit * 3 / 4)) >limit.new && mv limit.new limit
    wait $pid || fail "a limit that is lowered: $(tail -2 err)"
    "$MEMFIT" train "${run[@]}" --epochs 100 --quiet >stayed.json 2>err || fail "$(cat err)"
    is moved.json replans 1
    awk -v a="$(key loss moved.json)" -v b="$(key loss stayed.json)" 'BEGIN { d = a - b; exit !(d < 1e-4 && d > -1e-4) }' || fail "another loss after another plan"
fi

# auto: nothing where everything fits; said where it is done.
"$MEMFIT" train "$f/train/cnn.keras" --data synthetic:64 --offload auto --json --quiet >auto.json 2>err || fail "auto: $(cat err)"
is auto.json offloaded_bytes 0
"$MEMFIT" train "$f/train/cnn.keras" --data synthetic:64 --steps 1 --offload optimizer >out 2>&1; grep -q "the optimizer's state are in host memory" out || fail "not said: $(cat out)"
MEMFIT_FAR=0 "$MEMFIT" train "$f/train/cnn.keras" --data synthetic:64 --steps 1 --offload optimizer >out 2>&1; grep -q 'is about cards' out || fail "on cpu: $(cat out)"
expect 2 'must be off, optimizer or auto' "another word" "$MEMFIT" train "$f/train/cnn.keras" --data synthetic:64 --offload all
exit $((failures > 0))
