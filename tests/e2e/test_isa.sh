#!/bin/bash
# test_isa.sh: the laws of training on every set of instructions: nothing is allocated in steps, the limit holds, what is
# planned is what is used; on layers for which libraries fall to implementations with memory of their own.
set -u
f="$MEMFIT_SOURCE/tests/fixtures/train"
t=$(mktemp -d)
trap 'rm -rf "$t"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
key() { python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$1" "$2"; }
run() { "$MEMFIT" "$@" >"$t/out" 2>"$t/err"; }
train() { # MODEL options...
    run train "$f/$1" --data synthetic:36 --batch-size 16 --loss sparse_categorical_crossentropy --epochs 1 --seed 3 --json --quiet "${@:2}" ||
        fail "$MEMFIT_ISA, $*: $(cat "$t/err")"
    [ "$(key "$t/out" arena_bytes)" = "$(key "$t/out" arena_used_bytes)" ] || fail "$MEMFIT_ISA, $*: arena used is not arena planned"
    [ "$(key "$t/out" measured_peak_bytes)" -le "$(key "$t/out" planned_peak_bytes)" ] || fail "$MEMFIT_ISA, $*: measured above planned"
    [ "$(key "$t/out" planned_peak_bytes)" -le "$(key "$t/out" limit_bytes)" ] || fail "$MEMFIT_ISA, $*: planned above the limit"
    local n
    n=$(key "$t/out" allocations_in_steps)
    [ "$n" = 0 ] || [ "$n" = None ] || fail "$MEMFIT_ISA, $*: $n allocations in steps"
}

# A team of many threads is one large piece of memory.
MEMFIT_ISA='' train ../plan/deep_128.json --data synthetic:2 --batch-size 1 --steps 2 --threads 33 --loss mse

sets=
for isa in sse2 avx2 avx512; do
    export MEMFIT_ISA=$isa
    run plan "$f/mlp.keras" --quiet
    case $? in
    0) sets="$sets $isa" ;;
    2) grep -q "MEMFIT_ISA=$isa: this processor does not have" "$t/err" || fail "$isa: $(cat "$t/err")" ;;
    *) fail "$isa: $(cat "$t/err")" ;;
    esac
done
case $sets in *sse2*) ;; *) fail "no set of instructions serves" ;; esac

losses=
for isa in $sets; do
    export MEMFIT_ISA=$isa
    for model in unusual.json attention.json recurrent.json cnn.keras; do
        train $model
        [ $model = unusual.json ] && losses="$losses $(key "$t/out" loss)"
        peak=$(key "$t/out" planned_peak_bytes)
        [ $model = unusual.json ] && train $model --memory $((peak * 3 / 4))
    done
done
python3 -c 'import sys; v = [float(x) for x in sys.argv[1:]]; sys.exit(max(v) - min(v) > 1e-4 * max(v))' $losses ||
    fail "the sets of instructions lead to other losses: $losses"

# A name that is none is refused, by every command that would compute.
for wrong in sse avx512f AVX2 " "; do
    for command in "plan $f/mlp.keras" "train $f/mlp.keras --data synthetic:8" "predict $f/mlp.keras --data synthetic:8"; do
        # shellcheck disable=SC2086
        MEMFIT_ISA=$wrong run $command
        [ $? = 2 ] || fail "MEMFIT_ISA=$wrong $command: not refused"
        grep -q "MEMFIT_ISA=$wrong: must be sse2, avx2 or avx512" "$t/err" || fail "MEMFIT_ISA=$wrong: $(cat "$t/err")"
    done
done
echo "as it must be on:$sets"
