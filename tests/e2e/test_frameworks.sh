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
verdict 132 rtx-4060 torch 0 "TIGHT in PyTorch: "
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

# On a CPU TensorFlow is known: what its process has resident. Nothing is suggested that makes no sense there.
run "$models/cnn-float32.json" -b 8 --runtime tensorflow --memory 2GiB --json || fail "TensorFlow on a cpu"
python3 - "$t/out" <<'END' || fail "in TensorFlow on a cpu"
import json, sys
x = json.load(open(sys.argv[1]))["in_framework"]
assert x["runtime"] == "tensorflow" and x["fits"] == "yes" and 700 << 20 < x["live_bytes"] < 900 << 20, x
assert x["peak_bytes"] == x["pool_bytes"] + x["fixed_bytes"] and x["low_bytes"] < x["peak_bytes"] < x["high_bytes"] <= 2 << 30, x
END
run "$models/cnn-float32.json" -b 64 --runtime tensorflow --memory 2GiB; [ $? = 3 ] || fail "too much for TensorFlow on a cpu"
head -1 "$t/out" | grep -q "^DOES NOT FIT in TensorFlow" || fail "$(head -1 "$t/out")"
grep -q set_global_policy "$t/out" && fail "narrow types on a cpu"
grep -q "gradient_accumulation_steps=" "$t/out" || fail "no line for TensorFlow on a cpu"

# What is not known is said.
run "$models/cnn-float32.json" --runtime torch; [ $? = 4 ] || fail "torch on a cpu"
head -1 "$t/out" | grep -q "^NOT KNOWN in PyTorch: .*--for CARD" || fail "$(head -1 "$t/out")"
run "$models/cnn-float32.json" --for t4 --runtime mxnet; [ $? = 2 ] || fail "mxnet"
grep -q "must be memfit, tensorflow, torch or jax" "$t/err" && grep -q "names the version" "$t/err" || fail "$(cat "$t/err")"

# Files of other programs are named, with the next step.
foreign() { # FILE WORDS
    run "$1"; got=$?
    [ $got = 4 ] && grep -q "$2" "$t/err" && grep -q "reads Keras models" "$t/err" || fail "$1: exit $got, $(cat "$t/err")"
}
other=$MEMFIT_SOURCE/tests/fixtures/foreign
foreign "$other/weights.pt" "weights saved by PyTorch"
foreign "$other/module.pt" "a module saved by PyTorch"
foreign "$other/script.pt" "a TorchScript program"
foreign "$other/program.pt2" "an exported program of PyTorch"
foreign "$other/old.pth" "a file of PyTorch"
grep -q "memfit.torch_trace" "$t/err" || fail "no way to plan a PyTorch program: $(cat "$t/err")"
printf '\010\010\022\007pytorch\032\0052.0.0' >"$t/m.onnx"; foreign "$t/m.onnx" "an ONNX model"
printf '\010\001\022\100savedmodel' >"$t/saved_model.pb"; foreign "$t/saved_model.pb" "a SavedModel"
printf '\100\0\0\0\0\0\0\0{"a":{}}' >"$t/m.safetensors"; foreign "$t/m.safetensors" "a safetensors file"
printf '\200\004\225junk' >"$t/m.pkl"; foreign "$t/m.pkl" "a Python pickle"
mkdir "$t/saved" && cp "$t/saved_model.pb" "$t/saved"
run "$t/saved"; [ $? = 4 ] && grep -q "a SavedModel" "$t/err" || fail "a folder with a SavedModel: $(cat "$t/err")"
mkdir "$t/empty"; run "$t/empty"; [ $? = 5 ] && grep -q "a folder without config.json" "$t/err" && grep -q "name a .keras" "$t/err" || fail "an empty folder: $(cat "$t/err")"

# Float32 products run in TF32 on cards that have it: an A100 is faster than an RTX 3090, both than a V100's float32.
step() { run "$MEMFIT_SOURCE/tests/fixtures/plan/resnet50_10.json" -b 64 --for rtx-3090,"$1" && sed -n 's/.* \([0-9.]*\) ms$/\1/p' "$t/out" | tr '\n' ' '; }
step a100 | awk '{ exit !($2 < $1 * 0.8) }' || fail "an A100 against an RTX 3090: $(step a100)"
step rtx-4090 | awk '{ exit !($2 < $1) }' || fail "an RTX 4090 against an RTX 3090: $(step rtx-4090)"

# One table for several batches, cards and precisions; any card of a size.
run "$models/cnn-float32.json" -b 16,32 --for rtx-4060,t4 --precision float32,bf16 --runtime torch || fail "a table: $(cat "$t/err")"
[ "$(grep -c ' ms$' "$t/out")" = 8 ] || fail "no eight rows: $(cat "$t/out")"
[ "$(grep -c ' bfloat16 ' "$t/out")" = 8 ] && grep -q '^in PyTorch$' "$t/out" && grep -q '^in memfit$' "$t/out" || fail "$(cat "$t/out")"
run "$models/cnn-float32.json" -b 16,32 --for 8GB --runtime torch --json || fail "8GB: $(cat "$t/err")"
python3 -c "
import json
j = json.load(open('$t/out'))
a, b = j['cards']
assert (a['batch'], b['batch']) == (16, 32) and a['device'] == 'any card of 8GB', a['device']
assert 7600 << 20 <= a['memory_bytes'] <= 8192 << 20, a['memory_bytes']
assert a['in_framework']['peak_bytes'] < b['in_framework']['peak_bytes']" || fail "8GB"
run "$models/cnn-float32.json" --for 7.5GB || fail "a size without a card"
run "$models/cnn-float32.json" -b 16,x --for t4; [ $? = 2 ] || fail "a list with a word"
run "$models/cnn-float32.json" -b 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17 --for t4; [ $? = 2 ] || fail "17 plans"
run "$models/cnn-float32.json" --precision float32,half --for t4; [ $? = 2 ] || fail "an unknown precision in a list"

# Plans that are kept: no difference from itself, by layer against another, a baseline with a tolerance.
run "$models/cnn-float32.json" -b 100 --for t4 --runtime torch --save "$t/kept.json" || fail "--save: $(cat "$t/err")"
run "$models/cnn-float32.json" -b 100 --for t4 --runtime torch --diff "$t/kept.json" || fail "--diff: $(cat "$t/err")"
[ -s "$t/out" ] && fail "it differs from itself: $(cat "$t/out")"
run "$models/cnn-float32.json" -b 101 --for t4 --runtime torch --diff "$t/kept.json" || fail "--diff"
grep -q "^peak in memfit: " "$t/out" && grep -q "^peak in torch: " "$t/out" && grep -q "conv2d.* saved  *+" "$t/out" || fail "$(cat "$t/out")"
run "$models/cnn-float32.json" -b 101 --for t4 --runtime torch --diff "$t/kept.json" --json || fail "--diff --json"
cp "$t/out" "$t/difference"
run "$models/cnn-float32.json" -b 101 --for t4 --runtime torch --save "$t/other.json" || fail "--save"
python3 - "$t" <<'END' || fail "sums by layer"
import json, sys
kept, other = (json.load(open(sys.argv[1] + "/" + n))["plan"] for n in ("kept.json", "other.json"))
d = json.load(open(sys.argv[1] + "/difference"))
total = lambda plan: sum(l["saved_bytes"] for l in plan["layers"])
assert sum(l["saved_bytes"] for l in d["layers"]) == total(other) - total(kept) > 0
assert d["peak_difference_bytes"] == other["peak_bytes"] - kept["peak_bytes"]
assert d["in_framework_difference_bytes"] == other["in_framework"]["peak_bytes"] - kept["in_framework"]["peak_bytes"]
END
run "$models/cnn-float32.json" -b 101 --for t4 --runtime torch --baseline "$t/kept.json" --tolerance 2% || fail "+1 % is above 2 %"
run "$models/cnn-float32.json" -b 104 --for t4 --runtime torch --baseline "$t/kept.json" --tolerance 2%; [ $? = 3 ] || fail "+4 % is within 2 %"
grep -q "the peak in torch is .*more than the baseline's" "$t/err" || fail "$(cat "$t/err")"
run "$models/cnn-float32.json" -b 104 --for t4 --baseline "$t/kept.json" --tolerance 5% || fail "memfit's own peak"
run "$models/cnn-float32.json" -b 104 --for t4 --runtime jax --baseline "$t/kept.json"; [ $? = 2 ] || fail "another runtime's baseline"
run "$models/cnn-float32.json" --for t4 --tolerance 2%; [ $? = 2 ] || fail "a tolerance of nothing"
run "$models/cnn-float32.json" --for t4 --diff "$models/cnn-float32.json"; [ $? = 5 ] || fail "a model is no kept plan"
sed 's/"version": 1/"version": 9/' "$t/kept.json" >"$t/later.json"
run "$models/cnn-float32.json" --for t4 --diff "$t/later.json"; [ $? = 4 ] || fail "a later version"
cp "$models/cnn-float32.json" "$t/mine.json"
run "$t/mine.json" --for t4 --save "$t/mine.json"; [ $? = 2 ] || fail "--save over the model"
cmp -s "$t/mine.json" "$models/cnn-float32.json" || fail "--save destroyed the model"
run "$models/cnn-float32.json" -b 4000 --for t4 --runtime memfit || fail "memfit's own ways"
run "$models/cnn-float32.json" -b 4000 --for t4 --runtime memfit --fail-unless-as-asked; [ $? = 3 ] || fail "--fail-unless-as-asked"

# A recorded step of PyTorch's.
printf 'time_us,op,id,bytes,kind,owner\n0,alloc,0,6442450944,parameters,a\n1,alloc,1,1073741824,activations,b\n2,free,1,1073741824,activations,b\n' >"$t/step.csv"
run "$t/step.csv" --runtime torch --for t4 --json || fail "a recorded step: $(cat "$t/err")"
python3 - "$t/out" <<'END' || fail "a recorded step's figures"
import json, sys
d = json.load(open(sys.argv[1]))
x = d["in_framework"]
assert x["fits"] == "yes" and x["runtime"] == "torch" and x["live_bytes"] == 7 << 30, x
assert sum(d["breakdown"].values()) == d["peak_bytes"] == x["peak_bytes"]
END
for key in model model.name model.layers model.parameters batch arena_bytes lower_bound_bytes as_asked.fits as_asked.peak_bytes peak_at layers \
    max_batch pieces recomputed_ops slowdown numerics suggestions; do
    python3 -c 'import functools, json, sys; functools.reduce(lambda o, k: o[k], sys.argv[2].split("."), json.load(open(sys.argv[1])))' \
        "$t/out" $key 2>/dev/null || fail "a recorded step: no key $key"
done
run "$t/step.csv" --runtime torch --for rtx-2060; [ $? = 3 ] || fail "7 GiB in 6"
run "$t/step.csv" --runtime jax --for t4; [ $? = 2 ] || fail "a recorded step in JAX"
run "$t/step.csv" --runtime torch; [ $? = 2 ] || fail "a recorded step without a card"
run "$t/step.csv" --for t4 -b 7; [ $? = 2 ] || fail "the batch of a recorded step"
printf 'time_us,op,id,bytes\n0,alloc,zero,5\n' >"$t/bad.csv"
run "$t/bad.csv" --for t4; [ $? = 5 ] || fail "a damaged trace"

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
