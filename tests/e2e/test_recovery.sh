#!/bin/bash
# test_recovery.sh: the machine gives less than was asked, and the limit is lowered from outside while training.
set -u
f="$MEMFIT_SOURCE/tests/fixtures/train"
t=$(mktemp -d)
group=""
cleanup() {
    rm -rf "$t"
    [ -z "$group" ] || rmdir "$group" 2>/dev/null
}
trap cleanup EXIT
fail() { echo "FAIL: $*"; exit 1; }
. "$(dirname "$0")/json.sh"
key() { json "$1" "$2"; } # key FILE PATH
started() { for _ in $(seq 500); do [ "$(cat "$t/log.csv" 2>/dev/null | wc -l)" -gt 2 ] && break; sleep 0.02; done; }
args=("$f/mlp.keras" --data synthetic:16384 --batch-size 16384 --threads 1 --seed 2)

# What it takes, and a limit that only pieces hold.
"$MEMFIT" train "${args[@]}" --epochs 3 --json --quiet --out "$t/whole.keras" >"$t/whole" || fail "undisturbed"
planned=$(key "$t/whole" planned_peak_bytes) arena=$(key "$t/whole" arena_bytes) fixed=$(key "$t/whole" fixed_bytes)
lower=$((fixed + arena * 2 / 3))

# Lowered through --memory-file once training runs; FILE is replaced whole, as a careful program would.
echo "$((planned * 4))" >"$t/limit"
"$MEMFIT" train "${args[@]}" --epochs 60 --json --memory-file "$t/limit" --log-csv "$t/log.csv" --checkpoint "$t/ck.keras" >"$t/out" 2>"$t/err" &
pid=$!
started
echo "$lower" >"$t/limit.new" && mv "$t/limit.new" "$t/limit"
wait $pid || fail "lowered: $(tail -3 "$t/err")"
[ "$(key "$t/out" replans)" = 1 ] || fail "no change of plan: $(cat "$t/out")"
[ "$(key "$t/out" batch)" = 16384 ] || fail "another batch"
[ "$(key "$t/out" planned_peak_bytes)" -le "$lower" ] || fail "planned above the lowered limit"
[ "$(key "$t/out" measured_peak_bytes)" -le "$(key "$t/out" planned_peak_bytes)" ] || fail "measured above planned"
[ "$(key "$t/out" allocations_in_steps)" = 0 ] || fail "allocations in steps"
[ "$(key "$t/out" steps)" = 60 ] || fail "steps were lost"
grep -q "the limit is now" "$t/err" || fail "the change was not said"
echo "answer $(key "$t/out" answer_ms) ms, next step after $(key "$t/out" replan_ms) ms, $(key "$t/out" pieces) pieces, $(key "$t/out" recomputed_ops) recomputed"

# A slip in the file changes nothing, and is said.
echo "$((planned * 4))" >"$t/limit"
rm -f "$t/log.csv"
"$MEMFIT" train "${args[@]}" --epochs 100000 --memory-file "$t/limit" --log-csv "$t/log.csv" >"$t/out" 2>"$t/err" &
pid=$!
started
echo 10 >"$t/limit.new" && mv "$t/limit.new" "$t/limit"
for _ in $(seq 250); do grep -q 'is not a size of 1MiB or more' "$t/err" && break; sleep 0.02; done
kill $pid
wait $pid
grep -q 'limit: "10" is not a size of 1MiB or more' "$t/err" || fail "a slip in --memory-file was not said"
rm -f "$t/log.csv"

# The same for sixty layers: what the next plan keeps must not take up the reserve that steps live from.
{
    printf '{"module":"keras","class_name":"Sequential","config":{"name":"deep","layers":['
    printf '{"module":"keras.layers","class_name":"InputLayer","config":{"name":"in","batch_shape":[null,16]}}'
    for i in $(seq 60); do printf ',{"module":"keras.layers","class_name":"Dense","config":{"name":"d%s","units":32,"activation":"gelu"}}' "$i"; done
    printf ']},"compile_config":{"optimizer":"adam","loss":"mse"}}'
} >"$t/deep.json"
deep=("$t/deep.json" --data synthetic:1024 --batch-size 512 --threads 1 --json --quiet)
"$MEMFIT" train "${deep[@]}" --steps 2 >"$t/out" || fail "sixty layers"
all=$(key "$t/out" planned_peak_bytes) part=$(($(key "$t/out" arena_bytes) / 3))
echo $((all * 4)) >"$t/limit"
rm -f "$t/log.csv"
"$MEMFIT" train "${deep[@]}" --epochs 60 --memory-file "$t/limit" --log-csv "$t/log.csv" >"$t/out" &
pid=$!
started
echo $((all - part)) >"$t/limit.new" && mv "$t/limit.new" "$t/limit"
wait $pid || fail "sixty layers, lowered"
[ "$(key "$t/out" replans)" = 1 ] || fail "sixty layers: no change of plan"
[ "$(key "$t/out" allocations_in_steps)" = 0 ] || fail "sixty layers: allocations in steps after a change of plan"
rm -f "$t/log.csv"

# Lowered below everything: exit status 3, the explanation, and a checkpoint that goes on.
echo "$((planned * 4))" >"$t/limit"
rm -f "$t/log.csv" "$t/ck.keras"
"$MEMFIT" train "${args[@]}" --epochs 100000 --memory-file "$t/limit" --log-csv "$t/log.csv" --checkpoint "$t/ck.keras" --save-freq 1000000 >"$t/out" 2>"$t/err" &
pid=$!
started
echo 1MiB >"$t/limit.new" && mv "$t/limit.new" "$t/limit"
wait $pid
status=$?
[ $status = 3 ] || fail "exit status $status instead of 3: $(tail -3 "$t/err")"
grep -q "the limit was lowered to 1.00 MiB after step" "$t/err" || fail "no explanation: $(tail -3 "$t/err")"
done_steps=$(grep -o "all [0-9]* steps are in" "$t/err" | grep -o "[0-9]*")
[ -n "$done_steps" ] || fail "the message does not name the checkpoint: $(tail -3 "$t/err")"
"$MEMFIT" train "${args[@]}" --epochs 100000 --steps $((done_steps + 5)) --resume "$t/ck.keras" --json --quiet >"$t/out" || fail "resume"
[ "$(key "$t/out" steps)" = $((done_steps + 5)) ] || fail "the checkpoint is not the last finished step"

# The model's file is mapped and read once more for another plan. Replaced by renaming it stays as it was; cut off in place, it ends
# training with a reason, not a signal, and every step is in the checkpoint.
for way in rename truncate; do
    cp "$f/mlp.keras" "$t/model.keras"
    echo "$((planned * 4))" >"$t/limit"
    rm -f "$t/log.csv" "$t/ck.keras"
    "$MEMFIT" train "$t/model.keras" "${args[@]:1}" --epochs 60 --memory-file "$t/limit" --log-csv "$t/log.csv" --checkpoint "$t/ck.keras" >"$t/out" 2>"$t/err" &
    pid=$!
    started
    case $way in
    rename) echo other >"$t/other" && mv "$t/other" "$t/model.keras" ;;
    truncate) truncate -s 100 "$t/model.keras" ;;
    esac
    echo "$lower" >"$t/limit.new" && mv "$t/limit.new" "$t/limit"
    wait $pid
    status=$?
    case $way in
    rename) [ $status = 0 ] && grep -q "the limit is now" "$t/err" || fail "model replaced: exit status $status: $(tail -3 "$t/err")" ;;
    truncate)
        [ $status = 5 ] && grep -q "model.keras was written to while it was in use" "$t/err" || fail "model cut off: exit status $status: $(tail -3 "$t/err")"
        done_steps=$(grep -o "all [0-9]* steps are in" "$t/err" | grep -o "[0-9]*")
        [ -n "$done_steps" ] && "$MEMFIT" train "${args[@]}" --epochs 60 --steps $((done_steps + 1)) --resume "$t/ck.keras" --quiet || fail "model cut off: no checkpoint"
        ;;
    esac
done

# The far device reserves more addresses than any `ulimit -v`.
[ "${MEMFIT_FAR:-}" = 1 ] && { echo "recovery: all good, but for ulimit -v on the far device"; exit 0; }

# Refused at admission: `ulimit -v` leaves about half of what the plan wants (and the 16 MiB that stay free for others). The next
# plan is made for that, and says so. The size of the process comes from one that runs.
rm -f "$t/log.csv"
"$MEMFIT" train "${args[@]}" --epochs 100000 --log-csv "$t/log.csv" --quiet >/dev/null 2>&1 &
pid=$!
started
addresses=$(grep VmSize "/proc/$pid/status" | grep -o '[0-9]*')
kill $pid
wait $pid 2>/dev/null
(
    ulimit -v $((addresses + 16384 - arena / 1024 * 2 / 3))
    exec "$MEMFIT" train "${args[@]}" --epochs 2 --json --memory $((arena * 8)) >"$t/out" 2>"$t/err"
) || fail "refused at admission: $(tail -3 "$t/err")"
grep -q "cannot be had now: planning for" "$t/err" || fail "the refusal was not said: $(cat "$t/err")"
[ "$(key "$t/out" pieces)" -gt 1 ] || [ "$(key "$t/out" recomputed_ops)" -gt 0 ] || fail "no other plan"
[ "$(key "$t/out" batch)" = 16384 ] || fail "another batch"
[ "$(key "$t/out" limit_bytes)" -lt $((arena * 8)) ] || fail "the limit in force is not shown"
# Less and less can be had, until no plan fits: then what the machine has is named, not the limit that was asked for.
for room in 700 0 -700 -1400 -2100 -2800 -3500 none; do
    [ $room = none ] && fail "trained in nothing"
    (
        ulimit -v $((addresses - arena / 1024 + 16384 + room))
        exec "$MEMFIT" train "${args[@]}" --epochs 2 --memory $((arena * 8)) >"$t/out2" 2>"$t/err"
    ) || break
done
grep -Eq "the machine (can give no more than|has) " "$t/err" || fail "what the machine can give is not named: $(cat "$t/err")"
echo "refused at admission: answer $(key "$t/out" answer_ms) ms, $(key "$t/out" pieces) pieces, $(key "$t/out" recomputed_ops) recomputed"

# With nothing to change it is exit status 3, before the first step.
(
    ulimit -v $((addresses + 16384 - arena / 1024 * 2 / 3))
    exec "$MEMFIT" train "${args[@]}" --epochs 2 --gradient-accumulation off --recompute off >"$t/out" 2>"$t/err"
)
status=$?
[ $status = 3 ] || fail "exit status $status instead of 3: $(tail -3 "$t/err")"

# A cgroup's polite limit, where one may be made: lowered from outside, the training becomes smaller.
for root in /sys/fs/cgroup/memory /sys/fs/cgroup; do
    soft=memory.soft_limit_in_bytes
    [ $root = /sys/fs/cgroup ] && soft=memory.high
    if mkdir "$root/memfit-test-$$" 2>/dev/null; then
        group="$root/memfit-test-$$"
        [ -w "$group/$soft" ] && break
        rmdir "$group"
        group=""
    fi
done
if [ -n "$group" ] && (echo $BASHPID >"$group/cgroup.procs") 2>/dev/null; then
    rm -f "$t/log.csv"
    (
        echo $BASHPID >"$group/cgroup.procs"
        exec "$MEMFIT" train "${args[@]}" --epochs 60 --json --log-csv "$t/log.csv" >"$t/out" 2>"$t/err"
    ) &
    pid=$!
    started
    echo "$lower" >"$group/$soft"
    wait $pid || fail "in a cgroup: $(tail -3 "$t/err")"
    [ "$(key "$t/out" replans)" = 1 ] || fail "the cgroup's $soft was not obeyed"
    [ "$(key "$t/out" planned_peak_bytes)" -le "$lower" ] || fail "planned above the cgroup's limit"
    echo "cgroup: $(key "$t/out" pieces) pieces after $soft was lowered"
else
    echo "no cgroup can be made here: that way was not tested"
fi
echo "recovery: all good"
