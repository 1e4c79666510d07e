#!/bin/bash
# test_train.sh: training through the command line: laws, resuming, bad data, exit statuses.
set -u
f="$MEMFIT_SOURCE/tests/fixtures/train"
t=$(mktemp -d)
trap 'rm -rf "$t"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
. "$(dirname "$0")/json.sh"
key() { json "$1" "$2"; } # key FILE PATH
run() { "$MEMFIT" "$@" >"$t/out" 2>"$t/err"; }
expect() { # STATUS PATTERN command...
    local want=$1 pattern=$2
    shift 2
    run "$@"
    local got=$?
    [ $got -eq "$want" ] || fail "exit status $got instead of $want: $* ($(cat "$t/err"))"
    grep -q -- "$pattern" "$t/err" || fail "no \"$pattern\" in the message of: $* ($(cat "$t/err"))"
}

# Training: the laws.
run train "$f/cnn.keras" --data "$f/digits.npz" --epochs 3 --memory 64MiB --validation-split 0.2 --out "$t/a.keras" --json --quiet ||
    fail "training: $(cat "$t/err")"
[ "$(key "$t/out" arena_bytes)" = "$(key "$t/out" arena_used_bytes)" ] || fail "arena used is not arena planned"
[ "$(key "$t/out" measured_peak_bytes)" -le "$(key "$t/out" planned_peak_bytes)" ] || fail "measured above planned"
[ "$(key "$t/out" planned_peak_bytes)" -le "$(key "$t/out" limit_bytes)" ] || fail "planned above the limit"
n=$(key "$t/out" allocations_in_steps)
[ "$n" = 0 ] || [ "$n" = null ] || fail "$n allocations in steps"
onednn=yes
"$MEMFIT" predict "$f/mlp.keras" --data synthetic:1 2>&1 | grep -q "no oneDNN" && onednn=no
[ $onednn = "${ONEDNN:-$onednn}" ] || fail "this build has oneDNN: $onednn"
[ $onednn = no ] || [ "$(key "$t/out" reference_ops)" -le 4 ] || fail "too many operations on the slow path"
[ -s "$t/a.keras" ] || fail "no output"

# The same seed gives the same bytes; poisoned memory changes nothing.
run train "$f/cnn.keras" --data "$f/digits.npz" --epochs 3 --memory 64MiB --validation-split 0.2 --out "$t/b.keras" --quiet --debug-poison
cmp "$t/a.keras" "$t/b.keras" || fail "a run with poisoned memory gives other weights"

# Evaluate and predict.
run evaluate "$t/a.keras" --data "$f/digits.npz" --json || fail "evaluate: $(cat "$t/err")"
run predict "$t/a.keras" --data "$f/digits.npz" --batch-size 64 --out "$t/p.npy" || fail "predict: $(cat "$t/err")"
[ "$(stat -c %s "$t/p.npy")" = $((128 + 300 * 10 * 4)) ] || fail "predictions have the wrong size"

for command in evaluate predict; do # a thousand times the samples take no byte more
    sizes=$(for n in 100 100000; do
        run $command "$f/mlp.keras" --data synthetic:$n --batch-size 64 --threads 1 --json --quiet || fail "$command: $(cat "$t/err")"
        [ "$(key "$t/out" measured_peak_bytes)" -le "$(key "$t/out" planned_peak_bytes)" ] || fail "$command: measured above planned"
        echo "$(key "$t/out" arena_bytes)"
    done | sort -u | wc -l)
    [ "$sizes" = 1 ] || fail "$command: the arena depends on how much data there is"
done

# Interrupted and resumed: the same weights as undisturbed, bit for bit.
run train "$f/cnn.keras" --data "$f/digits.npz" --epochs 2 --out "$t/whole.keras" --quiet || fail "whole"
run train "$f/cnn.keras" --data "$f/digits.npz" --epochs 2 --steps 7 --checkpoint "$t/ck.keras" --save-freq 7 --quiet || fail "part"
run train "$f/cnn.keras" --data "$f/digits.npz" --epochs 2 --resume "$t/ck.keras" --out "$t/resumed.keras" --quiet || fail "resume: $(cat "$t/err")"
"$MEMFIT" predict "$t/whole.keras" --data "$f/digits.npz" --out "$t/w.npy" --quiet
"$MEMFIT" predict "$t/resumed.keras" --data "$f/digits.npz" --out "$t/r.npy" --quiet
cmp "$t/w.npy" "$t/r.npy" || fail "the resumed run differs"
expect 5 "not a checkpoint" train "$f/cnn.keras" --data "$f/digits.npz" --resume "$f/cnn.keras"

# Refusals.
expect 3 "does not fit" train "$f/cnn.keras" --data "$f/digits.npz" --memory 512KiB
# What a run says it takes is admitted as a limit, what a refusal says is needed too (the fixed cost varies by some pages
# from run to run), and whatever the planner admits is admitted here, with validation and a last batch too.
run train "$f/mlp.keras" --data synthetic:64 --json --quiet || fail "no limit: $(cat "$t/err")"
planned=$(key "$t/out" planned_peak_bytes)
# Without compiled kernels (no AVX-512) the whole process takes little more than 1 MiB, less than planning does: what is named then is at most 1 MiB more.
if ! run train "$f/mlp.keras" --data synthetic:64 --memory $planned --json --quiet; then
    need=$(sed -n 's/.*plan found needs \([0-9.]*\) MiB.*/\1/p' "$t/err")
    awk -v need="$need" -v planned="$planned" 'BEGIN { exit !(planned < 2097152 && need > 0 && need * 1048576 <= planned + 1048576) }' || fail "refused at its own peak: $(cat "$t/err")"
    run train "$f/mlp.keras" --data synthetic:64 --memory "$need"MiB --json --quiet || fail "$need MiB is said to do: $(cat "$t/err")"
fi
for limit in 1MiB 1600KiB $(((planned - 200000) / 1024))KiB $(((planned - 120000) / 1024))KiB; do
    run train "$f/mlp.keras" --data synthetic:64 --memory $limit --quiet && continue
    need=$(sed -n 's/.*\(plan found needs\|takes at least\) \([0-9.]*\) \([KMG]iB\).*/\2\3/p' "$t/err")
    run train "$f/mlp.keras" --data synthetic:64 --memory "$need" --quiet || fail "$limit: $need is said to do: $(cat "$t/err")"
done
for limit in 4500000 5000000 5500000 6000000; do
    run plan "$f/cnn.keras" --memory $limit --quiet || continue
    run train "$f/cnn.keras" --data synthetic:150 --validation-split 0.3 --memory $limit --quiet || fail "planned, not trained: $limit"
done
expect 2 "a unit: --memory 800MiB" train "$f/cnn.keras" --data "$f/digits.npz" --memory 800
expect 5 "nowhere.npz" train "$f/cnn.keras" --data "$t/nowhere.npz"
: >"$t/empty.npz"
expect 5 "is empty" train "$f/cnn.keras" --data "$t/empty.npz"
head -c 9000 "$f/digits.npz" >"$t/cut.npz"
expect 5 "cut.npz" train "$f/cnn.keras" --data "$t/cut.npz"
printf 'a,b,c\n1,2,0\n3,4,1\n' >"$t/wide.csv"
expect 5 "expects samples of shape (8, 8, 1)" train "$f/cnn.keras" --data "$t/wide.csv"
expect 1 "cannot write" train "$f/cnn.keras" --data "$f/digits.npz" --out "$t/no/such/folder.keras"
expect 2 "data SOURCE is missing" train "$f/cnn.keras"

# Logs.
run train "$f/mlp.keras" --data "$f/digits.npz" --epochs 2 --log-csv "$t/log.csv" --tensorboard "$t/board" --quiet || fail "logs"
head -1 "$t/log.csv" | grep -q '^epoch,accuracy,loss' || fail "CSV header: $(head -1 "$t/log.csv")"
[ "$(wc -l <"$t/log.csv")" = 3 ] || fail "CSV lines"
ls "$t/board/train/" | grep -q tfevents || fail "no event file"

# A trace of memory over time: complete, consistent, its peak is the plan's.
run train "$f/cnn.keras" --data "$f/digits.npz" --epochs 2 --validation-split 0.2 --trace "$t/run.trace" --json --quiet || fail "trace: $(cat "$t/err")"
planned=$(key "$t/out" planned_peak_bytes) fixed=$(key "$t/out" fixed_bytes) arena=$(key "$t/out" arena_bytes)
[ "$(key "$t/out" allocations_in_steps)" = 0 ] || [ "$(key "$t/out" allocations_in_steps)" = null ] || fail "allocations while tracing"
run replay "$t/run.trace" --json || fail "replay of the trace: $(cat "$t/err")"
[ "$(key "$t/out" repaired)" = 0 ] || fail "the trace contradicts itself"
live=$(key "$t/out" peak_live_bytes)
[ "$live" -le "$planned" ] || fail "the trace's peak $live is above the plan's $planned"
[ "$live" -gt $((fixed + arena * 8 / 10)) ] || fail "the trace's peak $live misses most of the arena of $arena"
expect 1 "no/such" train "$f/cnn.keras" --data "$f/digits.npz" --trace "$t/no/such/run.trace"
echo "train: all good"
