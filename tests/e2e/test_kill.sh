#!/bin/bash
# test_kill.sh: kill -9 at random moments of a training with checkpoints; resuming gives the undisturbed run's weights, and
# every file that is there is whole; nothing else is left in the folder once the next run has saved there. A third of the rounds
# kill the resumed run once more. ROUNDS sets how often (10; runs that
# ended before they were killed do not count), SEED which moments.
set -u
f="$MEMFIT_SOURCE/tests/fixtures/train"
t=$(mktemp -d)
trap 'rm -rf "$t"' EXIT
fail() { echo "FAIL: round $i: $*"; exit 1; }
i=0
args=("$f/cnn.keras" --data "$f/digits.npz" --epochs 6 --seed 3 --threads 1 --validation-split 0.1 --quiet)
"$MEMFIT" train "${args[@]}" --out "$t/whole.keras" || exit 1
"$MEMFIT" predict "$t/whole.keras" --data "$f/digits.npz" --out "$t/whole.npy" --quiet || exit 1

# Moments are counted in processor time of the training, not by the clock: a machine that is busy, or stops the script and its
# child together for a while, then shifts none of them. Up to 2 ms by the clock come on top, so that waiting for the disk is met too.
now() { echo $((${EPOCHREALTIME/[.,]/})); }
spent() { # nanoseconds of processor time of process $1, into `cpu`; false when it has ended
    read -r cpu _ 2>/dev/null <"/proc/$1/schedstat" && kill -0 "$1" 2>/dev/null
}
spent $$ || { echo "no processor times in /proc: skipped"; exit 77; }
run() { "$MEMFIT" train "${args[@]}" "$@" --checkpoint "$t/ck.keras" --save-freq 1 --out "$t/out.keras" 2>/dev/null & }
length=0
for _ in 1 2 3; do
    run
    pid=$!
    while spent $pid; do [ "$cpu" -gt $length ] && length=$cpu; done
    wait $pid || exit 1
done

RANDOM=${SEED:-42}
before=0 amid=0 after=0 twice=0
disturbed() { # runs, kills at a random moment
    local moment=$(((RANDOM * 32768 + RANDOM) % length)) more=$((RANDOM % 2000))
    run "$@"
    local pid=$!
    while spent $pid && [ "$cpu" -lt $moment ]; do :; done
    local until=$(($(now) + more))
    while [ ${EPOCHREALTIME/[.,]/} -lt $until ]; do :; done
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    [ ! -e "$t/ck.keras" ] || "$MEMFIT" evaluate "$t/ck.keras" --data "$f/digits.npz" --threads 1 --quiet || fail "the checkpoint is damaged"
}
rounds=${ROUNDS:-10}
for ((i = 0; before + amid < rounds && i < 4 * rounds; i++)); do
    rm -f "$t/ck.keras" "$t/out.keras" # and nothing else: what killed runs left is for the next run to remove
    disturbed
    resume=()
    [ -e "$t/ck.keras" ] && resume=(--resume "$t/ck.keras")
    if [ -e "$t/out.keras" ]; then
        after=$((after + 1))
    elif [ -e "$t/ck.keras" ]; then
        amid=$((amid + 1))
        if [ $((i % 3)) -eq 0 ]; then
            disturbed "${resume[@]}"
            twice=$((twice + 1))
        fi
    else
        before=$((before + 1))
    fi
    if [ ! -e "$t/out.keras" ]; then
        "$MEMFIT" train "${args[@]}" "${resume[@]}" --checkpoint "$t/ck.keras" --save-freq 1 --out "$t/out.keras" || fail "resume"
        left=$(cd "$t" && ls -A | grep -v -x -e '\(whole\|ck\|out\)\.keras' -e '\(whole\|out\)\.npy')
        [ -z "$left" ] || fail "left after the next save: $left"
    fi
    "$MEMFIT" predict "$t/out.keras" --data "$f/digits.npz" --out "$t/out.npy" --quiet || fail "damaged"
    cmp "$t/whole.npy" "$t/out.npy" || fail "other outputs"
    # Weights and optimizer state too, byte for byte: the files differ in nothing.
    cmp "$t/whole.keras" "$t/out.keras" || fail "other weights"
done
[ $amid -gt 0 ] || fail "no kill met a training with a checkpoint"
echo "kill: $((before + amid)) rounds, all the same: $before before the first checkpoint, $amid after it, of these $twice killed twice; $after more had ended before"

# A trace of a training that is killed holds what happened until then: it is read, ends amid steps, and what is alive at its end is more than
# after a whole run, which gives everything back.
"$MEMFIT" train "${args[@]}" --epochs 100000 --trace "$t/killed.trace" 2>/dev/null &
pid=$!
n=0; until [ -s "$t/killed.trace" ] && spent $pid && [ "$cpu" -gt $length ]; do sleep 0.05; n=$((n + 1)); [ $n -lt 1200 ] || fail "no trace"; done
kill -9 $pid; wait $pid 2>/dev/null
"$MEMFIT" replay --json "$t/killed.trace" >"$t/replay" || fail "the trace of a killed training is not read"
grep -q '"failed": 0' "$t/replay" && [ "$(sed -n 's/.*"events": \([0-9]*\).*/\1/p' "$t/replay")" -gt 1000 ] || fail "the trace of a killed training: $(cat "$t/replay")"
