#!/bin/sh
# memfit plan, end to end: verdicts, exit statuses, the keys of --json, the texts of the documentation.
set -eu
models=$MEMFIT_SOURCE/tests/fixtures/plan
golden=$MEMFIT_SOURCE/tests/golden
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAIL: $*" >&2; exit 1; }
# status WANTED ARGUMENT...: runs memfit plan, output to $work/out
status() {
    wanted=$1; shift
    got=0
    "$MEMFIT" plan "$@" >"$work/out" 2>"$work/err" || got=$?
    [ "$got" = "$wanted" ] || { cat "$work/out" "$work/err" >&2; fail "plan $*: exit $got, wanted $wanted"; }
}
# holds EXPRESSION: over the last --json output, j is the object and s its suggestions
holds() {
    python3 -c "
import json, sys
j = json.load(open('$work/out'))
s = j.get('suggestions', [])
sys.exit(0 if ($1) else 1)" || { cat "$work/out" >&2; fail "does not hold: $1"; }
}

# The keys that are always there, and the sums that always hold.
status 0 "$models/mlp.json" --for t4 --json
holds "all(k in j for k in 'model batch memory_bytes basis fits peak_bytes arena_bytes fixed_bytes lower_bound_bytes as_asked breakdown peak_at layers max_batch pieces recomputed_ops slowdown numerics suggestions plan_seconds'.split())"
holds "j['model']['parameters'] == 10*10+10+10*2+2"
holds "j['basis'] == 'table' and j['fixed_margin_percent'] > 0"
for model in mlp conv_pool_128 deep_128 resnet50_10 unet_416x608; do
    status 0 "$models/$model.json" --for h200 --batch-size 8 --json
    holds "j['peak_bytes'] == j['fixed_bytes'] + j['arena_bytes'] == sum(j['breakdown'].values())"
    holds "j['lower_bound_bytes'] <= j['peak_bytes'] and j['bounds']['packing_bytes'] <= j['peak_bytes']"
    holds "j['fits'] and j['as_asked']['fits'] and j['pieces'] == 1 and j['numerics'] == 'bitwise'"
done
holds "j['layers'][1]['output_shape'][0] is None"

# A batch that is far too large: split, reordered, and said so; forbidden, it is suggested; too small a limit is explained.
big="$models/conv_pool_1024.json --batch-size 256 --for rtx-3080"
status 0 $big --json
holds "j['fits'] and not j['as_asked']['fits'] and j['numerics'] == 'reordered' and j['pieces'] > 1"
holds "j['peak_bytes'] <= j['memory_bytes'] < j['as_asked']['peak_bytes']"
status 3 $big --gradient-accumulation off --recompute off --json
holds "not j['fits'] and any(l['fits'] and l['numerics'] == 'reordered' and 'micro-batches' in l['change'] for l in s)"
status 3 $big --memory 300MiB --json
holds "not j['fits'] and 'fixed cost' in j['obstacle']"
status 3 "$models/conv_pool_1024.json" --batch-size 256 --for rtx-3080 --memory 1GiB --json
holds "not j['fits'] and 'parameters, optimizer state' in j['obstacle'] and j['least_bytes'] > 1 << 30"

# BatchNormalization: the exact way is chosen; the changed one is shown and labelled, and chosen only when asked for.
bn="$models/resnet50_10.json --batch-size 192 --for rtx-3080"
status 0 $bn --json
holds "not j['as_asked']['fits'] and j['numerics'] == 'bitwise' and j['pieces'] == 1 and j['recomputed_ops'] > 0"
holds "any(l['numerics'] == 'bitwise' and l['fits'] for l in s) and any(l['numerics'] == 'changed' and 'micro-batches' in l['change'] for l in s)"
status 3 $bn --recompute off --json
status 0 $bn --recompute off --allow-changed-numerics --json
holds "j['numerics'] == 'changed' and j['pieces'] > 1"
status 0 "$models/resnet50_10.json" --batch-size 32 --gradient-accumulation 4 --for rtx-3080 --json
holds "j['pieces'] == 4 and j['numerics'] == 'changed' and j['piece_batch'] == 8"

# The largest batch: it fits, the next one does not.
status 0 "$models/deep_1024.json" --for rtx-3080 --json
max=$(python3 -c "import json; print(json.load(open('$work/out'))['max_batch'])")
[ "$max" -ge 1 ] || fail "no largest batch"
status 0 "$models/deep_1024.json" --for rtx-3080 --gradient-accumulation off --batch-size "$max" --json
status 3 "$models/deep_1024.json" --for rtx-3080 --gradient-accumulation off --batch-size $((max + 1)) --json

# Validation and prediction at another size are part of the plan; what does not fit is split.
status 0 "$models/deep_1024.json" --for rtx-3080 --memory 4GiB --batch-size 4 --validation-batch-size 1024 --json
holds "[p['batch'] for p in j['phases'] if p['name'] == 'validation'][0] < 1024 and not j['as_asked']['fits']"

# More memory is never slower.
status 0 "$models/deep_1024.json" --for a100 --batch-size 32 --gradient-accumulation off --curve --json
holds "len(j['curve']) == 20"
holds "all(a['slowdown'] >= b['slowdown'] for a, b in zip([p for p in j['curve'] if p['fits']], [p for p in j['curve'] if p['fits']][1:]))"
holds "all(p['peak_bytes'] <= p['budget_bytes'] for p in j['curve'] if p['fits'])"

# Precision, optimizer, input size, dump.
status 0 "$models/deep_128.json" --for t4 --precision bf16 --json
status 0 "$models/deep_128.json" --for t4 --optimizer sgd --json
holds "j['breakdown']['optimizer'] < 64 and not j['optimizer_assumed']"
status 0 "$models/deep_128.json" --for t4 --input-shape 64,64,3 --dump-graph "$work/step.dot"
grep -q "^digraph" "$work/step.dot" || fail "no dot file"
status 0 "$models/deep_128.json" --for t4 --dump-graph "$work/step.txt"
grep -q "conv_grad_weights" "$work/step.txt" || fail "no dump of the steps"

# Cards: list, side by side, a slip of the keyboard, a limit above the card.
status 0 --for list
[ "$(wc -l <"$work/out")" -ge 41 ] || fail "fewer than 40 cards"
status 0 "$models/deep_128.json" --for rtx-3080,a100 --json
holds "len(j['cards']) == 2 and j['cards'][1]['memory_bytes'] > j['memory_bytes']"
status 0 "$models/deep_128.json" --for "NVIDIA GeForce RTX 3080 10GB"
status 2 "$models/deep_128.json" --for "" # a variable that is not set
grep -q -e '--for needs a value' "$work/err" || fail "an empty --for is not named"
status 2 "$models/deep_128.json" --for rtx-3080,
grep -q 'a name is missing' "$work/err" || fail "a comma without a name is not named"
status 2 "$models/deep_128.json" --for rtx-3081
grep -q "rtx-3080" "$work/err" || fail "no suggestion for a card"
status 2 "$models/deep_128.json" --for rtx-3080 --memory 20GiB
status 2 "$models/deep_128.json" --batch-size 0
status 2 "$models/deep_128.json" --gradient-accumulation many
status 2
status 5 "$work/nothing.keras"
status 4 "$models/with_lambda.json"
grep -q "double" "$work/err" || fail "the Lambda layer is not named"
status 0 "$models/with_lambda.json" --for t4 --assume double=30,30,8:1MiB
grep -q "1 layer assumed" "$work/out" || fail "the verdict does not say that a layer is assumed"
grep -q "assumed   layer double (Lambda) makes (30, 30, 8)" "$work/out" || fail "the assumption is not stated"
status 0 "$models/with_lambda.json" --for t4 --assume double=30,30,8:1MiB --json
holds "[(a['layer'], a['output_shape'], a['bytes']) for a in j['assumptions']] == [('double', [None, 30, 30, 8], 1 << 20)]"
status 0 "$models/mlp.json" --for t4 --json
holds "j['assumptions'] == []"

# More memory is never slower, and no point of the curve is below the bound.
status 0 "$models/unet_416x608.json" --batch-size 8 --memory 16GiB --curve --json
holds "[p['slowdown'] for p in j['curve'] if p['fits']] == sorted((p['slowdown'] for p in j['curve'] if p['fits']), reverse=True)"
holds "all(p['peak_bytes'] >= j['lower_bound_bytes'] for p in j['curve'])"
status 0 "$models/mlp.json" --memory 1GiB
status 0 "$models/mlp.json"

# Prediction is measurement: the arena training uses is the one planned, and its process stays within the prediction.
status 0 "$models/deep_128.json" --batch-size 2 --json
"$MEMFIT" train "$models/deep_128.json" --data synthetic:4 --batch-size 2 --steps 1 --json >"$work/train" 2>/dev/null ||
    fail "training does not run"
holds "(lambda t: t['arena_bytes'] == t['arena_used_bytes'] == j['arena_bytes'] and t['measured_peak_bytes'] <= j['peak_bytes'])(json.load(open('$work/train')))"

# The texts shown in the documentation, as a terminal of 80 columns shows them.
text() {
    wanted=$1; name=$2; shift 2
    got=0
    COLUMNS=80 "$MEMFIT" plan "$@" >"$work/text" 2>&1 || got=$?
    [ "$got" = "$wanted" ] || fail "plan $*: exit $got, wanted $wanted"
    diff -u "$golden/$name" "$work/text" >&2 || fail "the text of plan $* differs from tests/golden/$name"
    python3 -c "
import sys
sys.exit(0 if open('$golden/$name').read() in open('$MEMFIT_SOURCE/docs/plan.md').read() else 1)" ||
        fail "docs/plan.md does not show tests/golden/$name as it is"
}
cd "$models"
text 0 plan_conv_pool.txt conv_pool_1024.json --batch-size 256 --for rtx-3080
python3 - "$golden/plan_conv_pool.txt" "$MEMFIT_SOURCE/README.md" <<'END' || fail "README.md does not show the plan as it is printed"
import sys
golden, readme = (open(path).read() for path in sys.argv[1:])
shown = readme.split("```")[1].split("\n")[1:-1] # the first block: lines of the plan; "..." stands for what is left out
bad = [l for l in shown if l.strip() != "..." and not any(g.startswith(l[:-3]) if l.endswith(" ...") else g == l for g in golden.split("\n"))]
print("\n".join(bad))
sys.exit(bool(bad) or not shown[0].startswith("DOES NOT FIT in TensorFlow"))
END
text 0 plan_resnet50.txt resnet50_10.json --for rtx-3080
text 4 plan_lambda.txt with_lambda.json --for rtx-3080

# What can be planned but not trained with is said when planning, not only when training refuses it.
sed 's/"kernel_constraint": *null/"kernel_constraint": {"class_name": "Mine", "config": {}}/' conv_pool_128.json >"$work/own.json"
status 0 "$work/own.json" --for t4
grep -q 'note      the model uses a weight constraint of its own, which memfit can plan but not train with' "$work/out" || fail "no note"
status 0 "$work/own.json" --for t4 --json
holds "j['not_trained'] == 'a weight constraint of its own'"
got=0
"$MEMFIT" train "$work/own.json" --data synthetic:4 --steps 1 >/dev/null 2>"$work/err" || got=$?
[ "$got" = 4 ] && grep -q 'constraint' "$work/err" || fail "training with a constraint of its own: exit $got"

# Damaged copies of real files: cut, and with one bit of the stored weights turned. Exit 5 and the place, never a crash.
# Files that are HDF5 without an archive have no check sum: only their cuts can be noticed.
if [ -d "${MEMFIT_SHARED_DATA:-/nonexistent}/keras" ]; then
    for file in "$MEMFIT_SHARED_DATA"/keras/*.keras; do
        python3 - "$file" "$work" <<'EOF'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
open(sys.argv[2] + "/cut.keras", "wb").write(data[:len(data) * 2 // 3])
data[len(data) // 2] ^= 16
open(sys.argv[2] + "/flipped.keras", "wb").write(data)
EOF
        status 5 "$work/cut.keras" --for t4
        grep -q "cut.keras: ." "$work/err" || fail "a cut copy of $file: no place"
        got=0; "$MEMFIT" plan "$file" --for t4 >/dev/null 2>&1 || got=$?
        [ "$got" = 0 ] || continue
        [ "$(head -c 2 "$file")" = PK ] || continue
        status 5 "$work/flipped.keras" --for t4
        grep -q "flipped.keras: ." "$work/err" || fail "a flipped copy of $file: no place"
    done
fi

# The page: its words, that it fetches nothing and is well formed, that names from files stay text, one section a card;
# a page that cannot be written leaves nothing.
page() { python3 "$MEMFIT_SOURCE/tests/e2e/page_text.py" "$1" || fail "the page $1 is not well formed"; }
status 0 mlp.json --for t4 --html "$work/page.html"
page "$work/page.html" >"$work/text"
diff -u "$golden/plan_mlp_page.txt" "$work/text" >&2 || fail "the words of the page differ from tests/golden/plan_mlp_page.txt"
status 0 conv_pool_1024.json --batch-size 256 --for rtx-3080 --html "$work/page.html"
page "$work/page.html" >"$work/text"
head -2 "$work/out" | sed 's/ The exit status is.*//' | while read -r line; do
    grep -qF "p    $line" "$work/text" || fail "the page lacks the verdict: $line"
done
status 0 conv_pool_1024.json --batch-size 256 --for rtx-3080 --json
holds "all(any(x['change'] in line for line in open('$work/text')) for x in s)"
holds "all(any(line.startswith('tr   ' + x['name'] + ' | ') for line in open('$work/text')) for x in j['layers'])"
sed 's/"name": *"conv2d[^"]*"/"name": "<img src=x>\&\\"conv"/' conv_pool_128.json >"$work/hostile.json"
status 0 "$work/hostile.json" --for t4,rtx-5090 --curve --html "$work/hostile.html" --json
page "$work/hostile.html" >"$work/text"
grep -q '<img src=x>&"conv' "$work/text" || fail "a name with markup is lost"
[ "$(grep -c '^h1' "$work/text")" = 2 ] || fail "two cards do not make two sections"
status 1 mlp.json --for t4 --html "$work/no/such/page.html"
grep -q 'cannot write' "$work/err" || fail "a page that cannot be written is not said"
status 3 conv_pool_1024.json --for rtx-3080 --batch-size 256 --memory 1GiB --html "$work/no_fit.html"
page "$work/no_fit.html" >"$work/text"
grep -q '^p    Why: ' "$work/text" || fail "the page of a plan that does not fit gives no reason"
for model in mlp resnet50_10 unet_416x608; do
    status 0 $model.json --for h200 --html "$work/page.html"
    page "$work/page.html" >/dev/null
done
echo "plan: all good"
