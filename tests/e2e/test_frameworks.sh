#!/bin/bash
# test_frameworks.sh: what a step takes in TensorFlow, PyTorch and JAX, through the command line: keys, verdicts, exit
# status, and that every answer says whose memory it is about.
set -u
t=$(mktemp -d)
trap 'rm -rf "$t"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
. "$(dirname "$0")/json.sh"
key() { json "$1" "$2"; } # key FILE PATH
models=$MEMFIT_SOURCE/tests/fixtures/frameworks
run() { "$MEMFIT" plan "$@" >"$t/out" 2>"$t/err"; }

# The contract's keys, for each runtime; memfit's own keep their meaning.
run "$models/cnn-float32.json" -b 64 --for rtx-4090 --runtime memfit --json || fail "memfit"
own=$(key "$t/out" peak_bytes)
[ "$(key "$t/out" runtime)" = memfit ] || fail "runtime memfit is not named"
grep -q in_framework "$t/out" && fail "memfit is no framework"
for runtime in tensorflow torch jax; do
    run "$models/cnn-float32.json" -b 64 --for rtx-4090 --runtime $runtime --json || fail "$runtime: $(cat "$t/err")"
    [ "$(key "$t/out" peak_bytes)" = "$own" ] || fail "$runtime changes memfit's figure"
    [ "$(key "$t/out" runtime)" = $runtime ] && [ "$(key "$t/out" in_framework.runtime)" = $runtime ] || fail "$runtime is not named"
    [ "$(key "$t/out" in_framework.fits)" = yes ] || fail "$runtime: $(key "$t/out" in_framework.fits)"
    python3 - "$t/out" <<'END' || fail "$runtime: keys"
import json, sys
f = json.load(open(sys.argv[1]))["in_framework"]
assert f["low_bytes"] < f["peak_bytes"] < f["high_bytes"]
assert f["peak_bytes"] == f["fixed_bytes"] + f["pool_bytes"]
assert 0 < f["live_bytes"] <= f["pool_bytes"] and f["workspace_bytes"] > 0
assert f["basis"] in ("table", "modelled") and (f["basis"] == "modelled") == (f["runtime"] == "tensorflow")
assert f["max_batch"] >= 64 and f["max_input"] and f["version"] and f["suggestions"] == []
END
done

# Three verdicts; with --runtime the exit status is the runtime's, without it memfit's.
verdict() { # BATCH CARD RUNTIME STATUS WORDS
    run "$models/cnn-float32.json" -b "$1" --for "$2" --runtime "$3"
    got=$?
    [ $got = "$4" ] || fail "$*: exit $got"
    head -1 "$t/out" | grep -q "^$5" || fail "$*: $(head -1 "$t/out")"
}
verdict 32 rtx-4060 torch 0 "FITS in PyTorch: "
verdict 128 rtx-4060 torch 0 "TIGHT in PyTorch: "
verdict 256 rtx-4060 torch 3 "DOES NOT FIT in PyTorch: "
verdict 128 rtx-4060 tensorflow 0 "TIGHT in TensorFlow: "
verdict 256 rtx-4060 jax 3 "DOES NOT FIT in JAX: "
verdict 256 rtx-4060 memfit 0 "FITS in memfit"
grep -q "in memfit .*: fits" "$t/out" && fail "memfit beside itself"
run "$models/cnn-float32.json" -b 256 --for rtx-4060 || fail "without --runtime the status is memfit's"
head -1 "$t/out" | grep -q "^DOES NOT FIT in TensorFlow: .*; in memfit .*: fits. The exit status is memfit's" || fail "$(head -1 "$t/out")"
run "$models/cnn-float32.json" -b 2 || fail "cpu"
head -1 "$t/out" | grep -q "^FITS in memfit" || fail "cpu: $(head -1 "$t/out")"

# The largest batch holds at the band's upper end, and lines of code were tried.
run "$models/cnn-float32.json" -b 256 --for rtx-4060 --runtime torch --json
most=$(key "$t/out" in_framework.max_batch)
python3 - "$t/out" <<'END' || fail "lines"
import json, sys
j = json.load(open(sys.argv[1]))
lines = j["in_framework"]["suggestions"]
assert any("gradient_accumulation_steps=" in l["line"] for l in lines), lines
assert any('set_global_policy("mixed_bfloat16")' in l["line"] for l in lines), lines
assert all(l["peak_bytes"] < j["in_framework"]["peak_bytes"] <= 1 << 40 for l in lines)
assert all((l["fits"] == "yes") == (l["high_bytes"] <= j["memory_bytes"]) for l in lines)
END
run "$models/cnn-float32.json" -b "$most" --for rtx-4060 --runtime torch --json || fail "largest batch"
[ "$(key "$t/out" in_framework.fits)" = yes ] || fail "the largest batch is $(key "$t/out" in_framework.fits)"
run "$models/cnn-float32.json" -b $((most + 1)) --for rtx-4060 --runtime torch --json
[ "$(key "$t/out" in_framework.fits)" = yes ] && fail "a larger batch fits"
run "$models/cnn-mixed_bfloat16.json" -b 512 --for rtx-4060 --runtime torch --json
grep -q set_global_policy "$t/out" && fail "a policy that is in force already is suggested"

# What is not known is said.
run "$models/cnn-float32.json" --runtime torch; [ $? = 4 ] || fail "torch on a cpu"
head -1 "$t/out" | grep -q "^NOT KNOWN in PyTorch: .*--for CARD" || fail "$(head -1 "$t/out")"
run "$models/cnn-float32.json" --for t4 --runtime mxnet; [ $? = 2 ] || fail "mxnet"
grep -q "must be memfit, tensorflow, torch or jax" "$t/err" || fail "$(cat "$t/err")"

# Float32 products run in TF32 on cards that have it: an A100 is faster than an RTX 3090, both than a V100's float32.
step() { run "$MEMFIT_SOURCE/tests/fixtures/plan/resnet50_10.json" -b 64 --for rtx-3090,"$1" && sed -n 's/^  estimated step *//p' "$t/out" | tr -s ' ' | sed 's/ ms//g'; }
step a100 | awk '{ exit !($2 < $1 * 0.8) }' || fail "an A100 against an RTX 3090: $(step a100)"
step rtx-4090 | awk '{ exit !($2 < $1) }' || fail "an RTX 4090 against an RTX 3090: $(step rtx-4090)"

# Every answer in the documentation says whose memory it is about.
python3 - "$MEMFIT_SOURCE" <<'END' || fail "an answer in the documentation does not name the runtime"
import pathlib, re, sys
bad = []
root = pathlib.Path(sys.argv[1])
for page in [root / "README.md"] + sorted((root / "docs").rglob("*.md")):
    for line in page.read_text().splitlines():
        if re.match(r"(FITS|TIGHT|DOES NOT FIT|NOT KNOWN)\b", line) and not re.match(
                r"(FITS|TIGHT|DOES NOT FIT|NOT KNOWN) in (memfit|TensorFlow|PyTorch|JAX)\b", line):
            bad.append("%s: %s" % (page.relative_to(root), line))
print("\n".join(bad))
sys.exit(bool(bad))
END
echo ok
