#!/bin/bash
# test_limits.sh: what training says of memory, held from outside (tools/check_limits.py): the limit is never passed, refused runs
# included, what is said to suffice suffices, and what plan admits train runs, with partial batches and writers, on every set of instructions.
# With real Keras the same tool draws dozens of models: docs/train.md.
set -u
. "$(dirname "$0")/lib.sh"
unset MALLOC_PERTURB_ # Meson sets it: free() then writes what no program touched, 1.5 MB where oneDNN 3.7 drops its kernels
f="$MEMFIT_SOURCE/tests/fixtures/train"
check() {
    python3 "$MEMFIT_SOURCE/tools/check_limits.py" "$MEMFIT" "$@" || fail "a promise was broken"
}
check "$f/attention.json" "$f/unet.json" "$f/cnn.keras" "$f/recurrent.json" \
    --batch 8,40 --factors 1.05,2 --steps 4 --options "--validation-split 0.34 --out $dir/out.keras --checkpoint $dir/ck.keras"
python3 "$MEMFIT_SOURCE/tests/e2e/make_limit_models.py" "$dir"
check "$dir/dilated.json" "$dir/deep.json" --batch 16 --factors 1.3
check "$dir/long.json" --batch 2 --factors 1.3
isas=
for isa in sse2 avx2; do
    MEMFIT_ISA=$isa "$MEMFIT" train "$dir/dilated.json" --data synthetic:2 --batch-size 1 --steps 1 --quiet >/dev/null 2>&1 && isas=$isas${isas:+,}$isa
done
check "$dir/dilated.json" --batch 16 --factors 1.3 --isa "$isas"

# Near the least memory a little more is never too little: plans that were found and given up stayed, and took the room of others.
# (series.json: number 28 of `draw_models.py` with seed 20261116.)
check "$f/series.json" --batch 64 --sweep 1.06

# What a refusal says would suffice is not much more than what a run takes that is not limited: half as much again, or 1.25 MiB (without AVX-512
# nothing is compiled, and a small model's process takes less than planning it).
for model in mlp.keras cnn.keras residual.json; do
    args=("$f/$model" --data synthetic:64 --batch-size 32 --steps 1 --threads 2 --quiet)
    "$MEMFIT" train "${args[@]}" --json >"$dir/free" 2>"$dir/err" || fail "$model: $(cat "$dir/err")"
    took=$(key planned_peak_bytes "$dir/free")
    "$MEMFIT" train "${args[@]}" --memory $((took * 8 / 10)) >/dev/null 2>"$dir/err" && fail "$model runs in eight tenths of what it takes"
    # Where the process alone is above the limit, there is no plan to speak of.
    said=$(sed -nE 's/.*plan found needs ([0-9.]+ .iB).*/\1/p; s/.*at least ([0-9.]+ .iB).*the process alone.*/\1/p' "$dir/err")
    awk -v said="$said" -v took="$took" 'BEGIN { split(said, s); u["KiB"] = 1024; u["MiB"] = 1048576; b = s[1] * u[s[2]]; exit !(b > 0 && (b <= took * 1.5 || b <= took + 1.25 * u["MiB"])) }' ||
        fail "$model takes $took bytes: $(cat "$dir/err")"
done

# What plan counts beside the arena is what training takes at most, with validation and partial batches; and not much more (4 MiB where kernels of fewer
# instructions take less).
"$MEMFIT" plan "$dir/frozen.json" --batch-size 8 --threads 2 --json --quiet >"$dir/plan" 2>"$dir/err" || fail "plan: $(cat "$dir/err")"
"$MEMFIT" train "$dir/frozen.json" --data synthetic:13 --validation-data synthetic:14 --epochs 1 --batch-size 8 --threads 2 --out "$dir/frozen.keras" --json --quiet \
    >"$dir/train" 2>"$dir/err" || fail "train: $(cat "$dir/err")"
said=$(key fixed_bytes "$dir/plan") took=$(key fixed_bytes "$dir/train")
[ "$took" -le "$said" ] && { [ $((said * 100)) -le $((took * 135)) ] || [ $((said - took)) -le 4194304 ]; } || fail "a frozen net: $said bytes fixed are planned, $took measured"

# One convolution on a large image and most of the bytes in one layer's weights: what plan admits at batch 1 trains, at the byte.
large="$MEMFIT_SOURCE/tests/fixtures/plan/conv_pool_1024.json"
"$MEMFIT" plan "$large" --batch-size 1 --threads 2 --json --quiet >"$dir/plan" 2>"$dir/err" || fail "plan: $(cat "$dir/err")"
"$MEMFIT" train "$large" --data synthetic:2 --batch-size 1 --steps 1 --threads 2 --memory "$(key peak_bytes "$dir/plan")" --json --quiet >"$dir/train" 2>"$dir/err" ||
    fail "plan admits $(key peak_bytes "$dir/plan") bytes: $(cat "$dir/err")"
[ "$(key measured_peak_bytes "$dir/train")" -le "$(key peak_bytes "$dir/plan")" ] || fail "more than was planned was taken"

# Showing the plan first takes nothing from the training.
args=("$f/unet.json" --data synthetic:64 --batch-size 64 --threads 1 --quiet --json)
"$MEMFIT" train "${args[@]}" >"$dir/plain" 2>"$dir/err" || fail "train: $(cat "$dir/err")"
limit=$(($(key planned_peak_bytes "$dir/plain") + 65536))
for option in "--html $dir/p.html" "--dump-graph $dir/p.txt" --curve; do
    "$MEMFIT" train "${args[@]}" --memory $limit $option >"$dir/out" 2>"$dir/err" || fail "$option turns a run that fits into exit $?: $(tail -2 "$dir/err")"
done
[ -s "$dir/p.html" ] && [ -s "$dir/p.txt" ] || fail "the plan was not shown"
[ $failures = 0 ] && echo "limits: all good"
exit $failures
