#!/bin/sh
# tools/gpu-check's own machinery, without a card: the sampler sees what a process held at its most and how often it looked; a case that is there is
# not run again; kinds are run again when the backend changed, all others when the program did; parts run side by side. gpu-check itself: one table,
# and an exit status that says whether all was good, something failed, or something is left.
set -u
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/../.." || exit 1
root=$PWD
[ -n "${FAKE_NVML_LIBRARY:-}" ] || fail "FAKE_NVML_LIBRARY is not set"
mkdir -p "$dir/lib" "$dir/bin" "$dir/models" && ln -s "$FAKE_NVML_LIBRARY" "$dir/lib/libnvidia-ml.so.1"
cp tests/fixtures/train/mlp.keras "$dir/models"
mkdir -p "$dir/fixtures/fit" "$dir/fixtures/train" && cp tests/fixtures/train/mlp.keras "$dir/fixtures/train" && echo '[]' >"$dir/fixtures/fit/cases.json"
export GPU_CHECK_FIXTURES="$dir/fixtures" LD_LIBRARY_PATH="$dir/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" PYTHONDONTWRITEBYTECODE=1 FAKE_NVML_FILE="$dir/held"

# The sampler: a process that holds 100, then 300, then 200 MiB, then goes.
: >"$dir/held"
cat >"$dir/sampler.py" <<END_PY
import sys, time
sys.path.insert(0, "$root/tools")
from gpu_results import MIB, Nvml
nvml = Nvml()
for text in ("0:4242:100,0:77:5", "0:4242:300", "0:4242:200", ""):
    open("$dir/new", "w").write(text)
    __import__("os").replace("$dir/new", "$dir/held")
    before, due = nvml.sampled(4242)[0], time.time() + 20
    while time.time() < due and nvml.sampled(4242)[0] < before + 3 and text:
        time.sleep(0.02)
count, gap, span = nvml.sampled(4242)
assert nvml.peak(4242) == 300 * MIB, nvml.peak(4242)
assert nvml.peak(77) == 5 * MIB and nvml.peak(1) == 0
assert count >= 9 and 0 < gap <= span, (count, gap, span)
# As often as it can, with the whole card between: its use less what no process is shown for is the process's, and what it cost is known.
nvml.every(0.003)
for text in ("0:4343:100", "0:4343:400", "0:4343:300"):
    open("$dir/new", "w").write(text)
    __import__("os").replace("$dir/new", "$dir/held")
    before, due = nvml.sampled(4343)[0], time.time() + 20
    while time.time() < due and nvml.sampled(4343)[0] < before + 5:
        time.sleep(0.02)
card = nvml.whole()
assert card["peak"] - card["rest"][0] == 400 * MIB and card["rest"][0] == card["rest"][1], card
assert card["count"] > card["cost_ms"]["rows"][0] >= 15 and 0 < card["longest"] <= card["span"], card
assert nvml.whole()["count"] < card["count"] and nvml.peak(4343) == 400 * MIB
nvml.end()
assert nvml.child.returncode == 0
END_PY
python3 "$dir/sampler.py" >"$dir/out" 2>&1 || fail "the sampler: $(tail -3 "$dir/out")"

# Programs that count how often they were run; memfit trains on the cpu, and NVML knows nothing of it.
printf '#!/bin/sh\necho x >>"%s/kinds"\necho "conv 10 1.0e-07 - - - - - - 6 2.6e-04 pass"\necho "16 cases, 0 failed"\n' "$dir" >"$dir/bin/check_kinds"
cat >"$dir/bin/memfit" <<END_SH
#!/bin/sh
# 1
[ "\$1" = doctor ] && { echo '{}'; exit 0; }
echo x >>"$dir/trained"
exec "$MEMFIT" train tests/fixtures/train/mlp.keras --data synthetic:64 --steps 2 --json --quiet
END_SH
chmod +x "$dir/bin/check_kinds" "$dir/bin/memfit"
echo first >"$dir/bin/backend.code"
check() { GPU_CHECK_KIND_PARTS=4 python3 tools/gpu_train.py "$dir/bin/memfit" "$dir/results" --models "$dir/models" --together 3 "$@" >"$dir/out" 2>&1; }
ran() { wc -l <"$dir/$1" 2>/dev/null | tr -d ' ' || echo 0; }
touch "$dir/kinds" "$dir/trained"

check kinds:2 curves:2 --table || fail "kinds and curves: $(cat "$dir/out")"
[ "$(ran kinds)" = 4 ] || fail "4 parts of kinds, $(ran kinds) were run: $(cat "$dir/out")"
[ "$(ran trained)" = 4 ] || fail "two curves, cpu and card, $(ran trained) trainings: $(cat "$dir/out")"
grep -q '^| kinds | 4 | 4 | 0 |' "$dir/out" || fail "the table: $(cat "$dir/out")"
grep -q '40, 1.0e-07' "$dir/out" || fail "kinds' parts are not added up: $(cat "$dir/out")"
[ "$(grep '"case": "kinds' "$dir/results" | grep -c '"code": "first"')" = 4 ] || fail "kinds are not keyed by the backend: $(cat "$dir/results")"
sed "/\"case\": \"part /d" "$dir/results" | grep -v -q "\"seconds\": " && fail "a case does not say how long it took: $(cat "$dir/results")"

check kinds,curves
[ "$(ran kinds) $(ran trained)" = "4 4" ] || fail "what was good was run again"

echo second >"$dir/bin/backend.code"
check kinds,curves
[ "$(ran kinds) $(ran trained)" = "8 4" ] || fail "the backend changed: kinds are to be run again, curves are not: $(ran kinds) $(ran trained)"

echo third >"$dir/bin/backend.code" # no time: the next one knows how many are left
check --seconds -1 kinds
python3 tools/gpu_train.py "$dir/bin/memfit" "$dir/results" --show kinds >"$dir/out" 2>&1
[ $? = 3 ] && grep -q '^| kinds | 0 | 0 | 0 | 4 |' "$dir/out" || fail "4 parts of kinds are left: $(cat "$dir/out")"
echo second >"$dir/bin/backend.code"

sed -i 's/^# 1/# 2/' "$dir/bin/memfit"
check kinds,curves
[ "$(ran kinds) $(ran trained)" = "8 8" ] || fail "the program changed: curves are to be run again, kinds are not: $(ran kinds) $(ran trained)"

# Ended while it wrote a line: that case is run again, all others are there.
printf '{"case": "kinds 9' >>"$dir/results"
check kinds,curves || fail "a line that is not whole: $(cat "$dir/out")"
[ "$(ran kinds) $(ran trained)" = "8 8" ] || fail "a line that is not whole: all was run again: $(ran kinds) $(ran trained)"

# What NVML never showed is no fixed cost, a limit that is not refused is none: both fail, and are tried again.
check fixed:2 && fail "fixed is good without NVML"
[ "$(grep -c FAILED "$dir/out")" = 2 ] || fail "fixed without NVML: $(cat "$dir/out")"
[ "$(ran trained)" = 20 ] || fail "ten starts, one that says the cost and a limit: $(ran trained)"
check fixed:2 && fail "fixed is good without NVML, the second time"
[ "$(ran trained)" = 32 ] || fail "what failed was not tried again: $(ran trained)"

check nonsense && fail "a part that is not there"

# Own kernels timed, family by family: what was done stays where the program ends early, 14 of 20 are too few.
cat >"$dir/bin/bench_methods" <<END_SH
#!/bin/sh
[ "\$1" = list ] && { echo "thin one"; echo "deep two"; exit 0; }
shift 2
echo "\$@" >>"$dir/benched"
for f; do
    [ "\$f" = "deep two" ] && [ ! -e "$dir/second" ] && exit 1
    echo "\$f forward: chosen and faster on 20 of 20"
    echo "\$f gradient: chosen and faster on \${WON:-15} of 20"
    echo "\$f: done"
done
END_SH
chmod +x "$dir/bin/bench_methods"
check methods
[ $? = 3 ] || fail "a family is left and nothing says so: $(cat "$dir/out")"
grep -q '^methods thin one *ok .*forward: chosen and faster on 20 of 20; gradient: chosen and faster on 15 of 20' "$dir/out" || fail "the first family: $(cat "$dir/out")"
touch "$dir/second"
WON=14 check methods && fail "14 of 20 are good: $(cat "$dir/out")"
check methods --table || fail "the second family: $(cat "$dir/out")"
grep -q '^| methods | 2 | 2 | 0 | 0 |' "$dir/out" || fail "methods in the table: $(cat "$dir/out")"
[ "$(cat "$dir/benched")" = "thin one deep two
deep two
deep two" ] || fail "families that were good are timed again: $(cat "$dir/benched")"
rm "$dir/bin/bench_methods"

# What a card runs is compiled without one: kinds, models, the small ones in two precisions.
before=$(ran kinds)
MEMFIT_CACHE="$dir/cubin" tools/gpu-check "$dir/bin" prepare >"$dir/out" 2>&1 || fail "prepare: $(cat "$dir/out")"
small=$(ls tests/fixtures/cuda/small/*.keras | wc -l)
[ $(($(ran kinds) - before)) = $((56 + 9 + 2 * small)) ] || fail "prepare ran check_kinds $(($(ran kinds) - before)) times: $(cat "$dir/out")"
[ "$(stat -c %a "$dir/cubin")" = 700 ] || fail "the folder of kernels is open to others: $(ls -ld "$dir/cubin")"

# gpu-check, with a card that nvidia-smi and NVML show.
sed -i 's/^# 2/# 3/' "$dir/bin/memfit"
printf '#!/bin/sh\necho "GPU 0: fake"\n' >"$dir/bin/nvidia-smi"
printf '#!/bin/sh\nexit ${SLICES:-0}\n' >"$dir/bin/s3_limits"
chmod +x "$dir/bin/nvidia-smi" "$dir/bin/s3_limits"
whole() { PATH="$dir/bin:$PATH" GPU_CHECK_KIND_PARTS=4 GPU_CHECK_RESULTS="$dir/whole" tools/gpu-check "$dir/bin" "$@" >"$dir/out" 2>&1; }
if ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
    tools/gpu-check "$dir/bin" >"$dir/out" 2>&1 || fail "without a card gpu-check is skipped: $?"
    grep -q skipped "$dir/out" || fail "nothing says that gpu-check was skipped: $(cat "$dir/out")"
fi
whole nonsense
[ $? = 2 ] || fail "gpu-check takes a part that is not there"
whole kinds slices waits || fail "kinds and slices are good, waits has no program: $? $(cat "$dir/out")"
[ "$(grep -c '^| part ' "$dir/out")" = 1 ] || fail "not one table: $(cat "$dir/out")"
grep -q '^| kinds | 4 | 4 | 0 | 0 |' "$dir/out" || fail "kinds in the table: $(cat "$dir/out")"
grep -q '^| waits | 0 | 0 | 0 | not run: ' "$dir/out" || fail "waits in the table: $(cat "$dir/out")"
mv "$dir/whole" "$dir/apart"
GPU_CHECK_TOGETHER=3 whole kinds slices waits || fail "side by side: $? $(cat "$dir/out")"
grep -q '^| kinds | 4 | 4 | 0 | 0 |' "$dir/out" && grep -q '^| slices | 1 | 1 | 0 | 0 |' "$dir/out" || fail "side by side, the table: $(cat "$dir/out")"
GPU_CHECK_VERSIONS=$(sed -n 's/.*"versions": "\([^"]*\)".*/\1/p' "$dir/whole" | head -1) GPU_CHECK_RESULTS="$dir/whole" tools/gpu-check "$dir/bin" show >"$dir/out" 2>&1
[ $? = 3 ] || fail "parts were never run, and the table does not say so: $(cat "$dir/out")"
grep -q '^| kinds | 4 | 4 | 0 | 0 |' "$dir/out" && grep -q '^| curves | 0 | 0 | 0 | all |' "$dir/out" || fail "the table without a card: $(cat "$dir/out")"
GPU_CHECK_ALL_SECONDS=1 whole side
[ $? = 3 ] || fail "there was no time and nothing is left: $(cat "$dir/out")"
before=$(ran kinds)
whole kinds slices || fail "the second time: $(cat "$dir/out")"
[ "$(ran kinds)" = "$before" ] || fail "gpu-check runs again what was good"
sed -i 's/^# 3/# 4/' "$dir/bin/memfit"
SLICES=7 whole slices
[ $? = 1 ] || fail "slices failed and gpu-check did not: $(cat "$dir/out")"
whole slices || fail "what failed is not tried again: $(cat "$dir/out")"
sed -i 's/^# 4/# 5/' "$dir/bin/memfit"
GPU_CHECK_SECONDS=-1 whole slices versions
[ $? = 3 ] || fail "versions are left and nothing says so: $(cat "$dir/out")"
exit $((failures > 0))
