#!/bin/bash
# test_train_keep.sh: what was learned is kept, whatever becomes of those who listen; and a run that is refused touches no file.
set -u
. "$(dirname "$0")/lib.sh"
f="$MEMFIT_SOURCE/tests/fixtures/train"
args=("$f/mlp.keras" --data "$f/digits.npz" --threads 1 --epochs 30 --seed 3)
whole() { # whole FILE WHAT: a model that can be evaluated
    "$MEMFIT" evaluate "$1" --data "$f/digits.npz" --threads 1 --quiet >/dev/null 2>"$dir/err" || fail "$2: $1: $(cat "$dir/err")"
}

# An output without a loss: its weights and the optimizer's state for them are as they were, and everything is written.
twice=("$f/unjudged.json" --data synthetic:64 --threads 1 --seed 3 --quiet)
"$MEMFIT" train "${twice[@]}" --epochs 4 --out "$dir/one.keras" >/dev/null || fail "an output without a loss: exit $?"
"$MEMFIT" train "${twice[@]}" --epochs 2 --checkpoint "$dir/ck.keras" >/dev/null || fail "an output without a loss: checkpoint: exit $?"
"$MEMFIT" train "${twice[@]}" --epochs 4 --resume "$dir/ck.keras" --out "$dir/two.keras" >/dev/null || fail "an output without a loss: resumed: exit $?"
"$MEMFIT" predict "$dir/one.keras" --data synthetic:8 --out "$dir/one.npy" --threads 1 --quiet >/dev/null || fail "an output without a loss: predict: exit $?"
"$MEMFIT" predict "$dir/two.keras" --data synthetic:8 --out "$dir/two.npy" --threads 1 --quiet >/dev/null || fail "an output without a loss: predict: exit $?"
cmp "$dir/one.npy" "$dir/two.npy" || fail "an output without a loss: resumed, the judged output is another"
cmp "$dir/one.unjudged.npy" "$dir/two.unjudged.npy" || fail "an output without a loss: resumed, its weights are others"

# A reader that leaves: the training goes on to its end. The answer that nobody took is a failure, as on a full disk; without one
# (standard error alone is closed) it is none.
heard() { # heard WHAT WANTED_STATUS OUT; the run's exit status is in $dir/status
    [ "$(cat "$dir/status")" = "$2" ] || fail "$1: exit $(cat "$dir/status"), wanted $2"
    whole "$3" "$1"
}
(trap - PIPE; "$MEMFIT" train "${args[@]}" --out "$dir/both.keras" --checkpoint "$dir/both-ck.keras"; echo $? >"$dir/status") 2>&1 | head -1 >/dev/null
heard "both closed" 1 "$dir/both.keras"
whole "$dir/both-ck.keras" "both closed"
(trap - PIPE; "$MEMFIT" train "${args[@]}" --out "$dir/out.keras" 2>/dev/null; echo $? >"$dir/status") | true
heard "standard output closed" 1 "$dir/out.keras"
(trap - PIPE; "$MEMFIT" train "${args[@]}" --json --out "$dir/json.keras" 2>/dev/null; echo $? >"$dir/status") | true
heard "standard output closed, JSON" 1 "$dir/json.keras"
{ (trap - PIPE; "$MEMFIT" train "${args[@]}" --out "$dir/err.keras" 2>&1 >"$dir/answer"; echo $? >"$dir/status") | head -1 >/dev/null; }
heard "standard error closed" 0 "$dir/err.keras"
grep -q "^trained: loss" "$dir/answer" || fail "standard error closed: no answer"
cmp "$dir/both.keras" "$dir/err.keras" && cmp "$dir/out.keras" "$dir/json.keras" && cmp "$dir/out.keras" "$dir/err.keras" || fail "who listens changes what is learned"

# Refused: logs, traces and models that are there stay as they are.
for name in log.csv trace.mft out.keras ck.keras; do echo "what was here before" >"$dir/$name"; done
mkdir "$dir/board"
kept() {
    for name in log.csv trace.mft out.keras ck.keras; do
        echo "what was here before" | cmp -s - "$dir/$name" || fail "$1: $name was touched"
    done
    [ -z "$(ls "$dir/board")" ] || fail "$1: TensorBoard's folder was written to"
    [ -z "$(ls "$dir" | grep '\.tmp$')" ] || fail "$1: temporary files were left"
}
files=(--log-csv "$dir/log.csv" --trace "$dir/trace.mft" --tensorboard "$dir/board" --out "$dir/out.keras" --checkpoint "$dir/ck.keras" --force)
"$MEMFIT" train --help | grep -q -e --force || files=("${files[@]:0:10}")
"$MEMFIT" train "${args[@]}" "${files[@]}" --memory 1200KiB >/dev/null 2>"$dir/err"
[ $? = 3 ] || fail "a limit that is too small: $(cat "$dir/err")"
kept "a limit that is too small"
tight=("$f/unet.json" --data synthetic:64 --batch-size 64 --threads 1 --recompute off --gradient-accumulation off)
"$MEMFIT" train "${tight[@]}" --json --quiet >"$dir/whole" 2>"$dir/err" || fail "without a limit: $(cat "$dir/err")"
"$MEMFIT" train "${tight[@]}" "${files[@]}" --memory $(($(key planned_peak_bytes "$dir/whole") - 200000)) >/dev/null 2>"$dir/err"
[ $? = 3 ] || fail "a limit that turns out too small: $(cat "$dir/err")"
kept "a limit that turns out too small"
"$MEMFIT" train "${args[@]}" "${files[@]}" --resume "$f/mlp.keras" >/dev/null 2>"$dir/err"
[ $? = 5 ] || fail "a model as a checkpoint: $(cat "$dir/err")"
kept "a model as a checkpoint"

# Told to stop before the first step is done: at once, and nothing is written.
"$MEMFIT" train "$f/cnn.keras" --data synthetic:60000 --batch-size 60000 --threads 1 --gradient-accumulation off "${files[@]}" >/dev/null 2>"$dir/err" &
pid=$!
for _ in $(seq 1000); do [ -s "$dir/log.csv" ] || break; sleep 0.01; done # a new log is begun right before the first step
kill -TERM $pid
wait $pid
status=$?
[ $status = 143 ] || fail "interrupted in the first step: exit $status"
grep -q "stopped before the first step was done" "$dir/err" || fail "interrupted in the first step: $(cat "$dir/err")"
[ $failures = 0 ] && echo "keep: all good"
exit $failures
