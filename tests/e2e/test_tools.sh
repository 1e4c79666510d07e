#!/bin/sh
# Scripts that nobody runs rot: every Python file compiles, those that need no framework answer --help, the shell scripts parse, the
# checks of the repository run, and bench/run comes to its end whatever fails on the way.
set -u
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/../.." || exit 1
build=$(cd "$(dirname "$MEMFIT")" && pwd)

# Which scripts need more than Python, by what they import when they start.
cat >"$dir/look.py" <<'END_PY'
import ast, sys
for path in sys.argv[1:]:
    source = open(path).read()
    compile(source, path, "exec")
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            names |= {a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.split(".")[0])
    needs = names - set(sys.stdlib_module_names)
    print(path, "argparse" if "argparse" in names and not needs else "needs" if needs else "plain")
END_PY
python3 "$dir/look.py" tools/*.py bench/*.py tests/e2e/*.py >"$dir/list" || fail "a script does not compile"
[ "$(grep -c . "$dir/list")" -gt 15 ] || fail "scripts are missing: $(cat "$dir/list")"
grep -q ' argparse$' "$dir/list" || fail "no script has --help"
while read -r path kind; do
    [ "$kind" = argparse ] || continue
    (cd "$dir" && PYTHONDONTWRITEBYTECODE=1 python3 "$OLDPWD/$path" --help) >"$dir/out" 2>&1 && grep -q '^usage' "$dir/out" ||
        fail "$path --help: $(head -3 "$dir/out")"
done <"$dir/list"

python3 tools/check_layers.py >"$dir/out" 2>&1 || fail "check_layers: $(cat "$dir/out")"
python3 tools/check_coverage.py >"$dir/out" 2>&1 || fail "check_coverage: $(cat "$dir/out")"
# It sees a file that grew long without a reason.
mkdir -p "$dir/house/tools" "$dir/house/src/base" "$dir/house/tests" && cp tools/check_layers.py "$dir/house/tools"
{ echo '/* grown.c: as long as it is, no reason. */'; seq -f '/* %g */' 650; } >"$dir/house/src/base/grown.c"
{ echo '/* table.c: long because it is one table. */'; seq -f '/* %g */' 650; } >"$dir/house/tests/table.c"
python3 "$dir/house/tools/check_layers.py" >"$dir/out" 2>&1 && fail "check_layers passes a long file"
grep -q '^src/base/grown.c: 651 lines' "$dir/out" || fail "check_layers does not name the long file: $(cat "$dir/out")"
grep -q 'table.c' "$dir/out" && fail "check_layers refuses a long file that gives its reason"
if git ls-files --error-unmatch README.md >/dev/null 2>&1; then
    python3 tools/check_docs.py >"$dir/out" 2>&1 || fail "check_docs: $(cat "$dir/out")"
fi
for s in tools/lint tools/sanitize tools/setup tools/run-scenes tools/gpu-check bench/run tests/fuzz/run; do
    case $(head -1 $s) in *bash*) bash -n $s ;; *) sh -n $s ;; esac || fail "$s does not parse"
done

# The commands of README.md, as they stand there, on a fresh clone.
mkdir "$dir/clone" && ln -s "$PWD/tests" "$PWD/examples" "$dir/clone" && mkdir "$dir/bin" && ln -s "$MEMFIT" "$dir/bin/memfit"
sed -n 's/^\$ \(memfit .*\)/\1/p' README.md >"$dir/commands"
[ "$(wc -l <"$dir/commands")" = 2 ] || fail "README.md shows $(wc -l <"$dir/commands") commands"
while read -r command; do
    (cd "$dir/clone" && PATH=$dir/bin:$PATH sh -c "$command") >"$dir/out" 2>&1 </dev/null || fail "$command: $(tail -3 "$dir/out")"
done <"$dir/commands"
[ -s "$dir/clone/trained.keras" ] || fail "README.md: nothing was trained"

# tools/pictures: casts of real runs, well formed, in both colours, none wider than a terminal; here without a browser.
(MEMFIT=$MEMFIT python3 -S tools/pictures "$dir/pictures") >"$dir/out" 2>&1 || fail "tools/pictures: $(tail -3 "$dir/out")"
python3 - "$dir/pictures" <<'PY' || fail "tools/pictures: what it made"
import os, sys, xml.etree.ElementTree as tree
for name, words in {"plan": "micro-batches", "train": "trained: loss", "explain": "growing", "report": "memfit's plan"}.items():
    text = open(os.path.join(sys.argv[1], name + ".svg"), encoding="utf-8").read()
    page = tree.fromstring(text)
    lines = ["".join(e.itertext()) for e in page.iter("{http://www.w3.org/2000/svg}text")]
    assert any(words in line for line in lines), (name, words)
    assert "prefers-color-scheme:dark" in text and "\x1b" not in text and len(text) < 40000, name
    assert max(len(line) for line in lines) <= 82, name
PY

# bench/run: one that fails is named, and the others run.
mkdir -p "$dir/build/bench/bench_objects.p"
for name in explain ops pack plan; do
    printf '#!/bin/sh\necho "%s $*" >>"%s/ran"\n[ %s != ops ]\n' $name "$dir" $name >"$dir/build/bench/bench_$name"
    chmod +x "$dir/build/bench/bench_$name"
done
bench/run "$dir/build" >"$dir/out" 2>"$dir/err"; [ $? = 1 ] || fail "bench/run with one that fails: exit $?"
grep -q 'failed: bench_ops' "$dir/err" || fail "bench/run does not name what failed: $(cat "$dir/err")"
[ "$(sed 's/ .*//' "$dir/ran" | tr '\n' ' ')" = "explain ops pack plan " ] || fail "bench/run ran: $(cat "$dir/ran")"
bench/run "$dir/build" pack >"$dir/out" 2>&1 || fail "bench/run BUILD pack: $(cat "$dir/out")"
# And the real one takes what it is given.
"$build/bench/bench_ops" tests/fixtures/plan/mlp.json 8 rounds 1 >"$dir/out" 2>&1 || fail "bench_ops: $(head -3 "$dir/out")"
exit $((failures > 0))
