#!/bin/bash
# test_train_page.sh: the page of memfit train --html: while the run goes on, when it is done, stopped, killed, refused or failed.
set -u
. "$(dirname "$0")/lib.sh"
f="$MEMFIT_SOURCE/tests/fixtures/train"
page() { python3 "$MEMFIT_SOURCE/tests/e2e/page_text.py" "$1" >"$dir/text" || fail "the page $1 is not well formed"; }
says() { grep -qF "$1" "$dir/text" || fail "$2: the page does not say: $1"; }
silent() { ! grep -q "$1" "$dir/text" || fail "$2: the page says: $(grep "$1" "$dir/text" | head -1)"; }

# Done: the figures are the result's own; the drawing has more than one column; --quiet changes nothing of it.
"$MEMFIT" train "$f/cnn.keras" --data "$f/digits.npz" --epochs 60 --html "$dir/p.html" --json --quiet >"$dir/out" 2>"$dir/err" || fail "train: $(cat "$dir/err")"
page "$dir/p.html"
says "h2   Measured" "done"
python3 - "$dir/out" "$dir/p.html" <<'PY' || fail "the page's figures are not the result's"
import json, re, sys
r, page = json.load(open(sys.argv[1])), open(sys.argv[2], encoding="utf-8").read()
def size(b):
    for u in ("B", "KiB", "MiB", "GiB"):
        if b < 1024: return "%d B" % b if u == "B" else "%.2f %s" % (b, u)
        b /= 1024
section = page[page.index("<!-- measured -->"):page.index("<!-- end of measured -->")]
for key in ("planned_peak_bytes", "measured_peak_bytes", "arena_bytes", "arena_used_bytes", "fixed_bytes", "limit_bytes"):
    assert size(r[key]) in section, (key, size(r[key]))
assert r["steps"] == 600 and ">600, " in section and "0 allocations in them" in section
columns = section.count("</title></rect>")
assert 100 < columns <= 256, columns
shown = re.findall(r"steps: (\S+ \S+) measured", section)
units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
most = max(float(n) * units[u] for n, u in map(str.split, shown)) # to 5 KiB, as printed; starting may have held some pages more
assert 0.97 * r["measured_peak_bytes"] <= most <= r["measured_peak_bytes"] + 5300, (most, r["measured_peak_bytes"])
assert "has not ended" not in section and r["allocations_in_steps"] == 0
PY

# Stopped, killed. A page is whole at every moment.
"$MEMFIT" train "$f/mlp.keras" --data synthetic:64 --epochs 100000000 --html "$dir/i.html" --quiet >/dev/null 2>"$dir/err" & run_id=$!
for _ in $(seq 200); do [ -s "$dir/i.html" ] && grep -q "has not ended" "$dir/i.html" && break; sleep 0.1; done
page "$dir/i.html"; says "The run has not ended yet, or was killed" "at the start"
sleep 0.5; kill -TERM $run_id; wait $run_id; got=$?
[ $got = 143 ] || fail "SIGTERM: exit $got"
page "$dir/i.html"; says "Measured until it was stopped" "stopped"; says "The process held at most" "stopped"; silent "has not ended" "stopped"
"$MEMFIT" train "$f/mlp.keras" --data synthetic:64 --epochs 100000000 --html "$dir/k.html" --quiet >/dev/null 2>&1 & run_id=$!
for _ in $(seq 200); do [ -s "$dir/k.html" ] && grep -q "has not ended" "$dir/k.html" && break; sleep 0.1; done
kill -KILL $run_id; wait $run_id 2>/dev/null
page "$dir/k.html"; says "The run has not ended yet, or was killed" "killed"
[ -z "$(ls -A "$dir" | grep -v '^[a-z]*\(\.html\)\?$')" ] || fail "left behind: $(ls -A "$dir")"

# Refused for the limit, failed for its data: the plan, and why.
expect 3 "" "a limit that is too small" "$MEMFIT" train "$f/cnn.keras" --data "$f/digits.npz" --memory 512KiB --html "$dir/r.html"
page "$dir/r.html"; says "h2   Not trained" "refused"; says "512.00 KiB" "refused"; silent "has not ended" "refused"
printf 'x,y\n1,nonsense\n' >"$dir/bad.csv"
expect 5 "" "data that is none" "$MEMFIT" train "$f/cnn.keras" --data "$dir/bad.csv" --html "$dir/b.html"
page "$dir/b.html"; says "h2   Not trained" "failed"; says "bad.csv" "failed"

# Somebody put another page in its place meanwhile: it stays, and that is said; the training counts as done.
"$MEMFIT" train "$f/mlp.keras" --data synthetic:64 --epochs 100000000 --html "$dir/o.html" --quiet >/dev/null 2>"$dir/err" & run_id=$!
for _ in $(seq 200); do [ -s "$dir/o.html" ] && grep -q "has not ended" "$dir/o.html" && break; sleep 0.1; done
echo "my own page" >"$dir/o.html"; sleep 0.3; kill -TERM $run_id; wait $run_id
[ "$(cat "$dir/o.html")" = "my own page" ] || fail "a page of somebody else was changed"
grep -q "the page was not completed: " "$dir/err" || fail "that the page was not completed is not said: $(cat "$dir/err")"

# Names from files stay text, also those of the message.
sed 's/"name": *"[a-z_]*conv2d[^"]*"/"name": "<img src=x>\&\\"conv"/' "$f/unet.json" >"$dir/hostile.json"
"$MEMFIT" train "$dir/hostile.json" --data synthetic:8 --batch-size 8 --html "$dir/h.html" --quiet >/dev/null 2>"$dir/err" || fail "hostile: $(cat "$dir/err")"
page "$dir/h.html"; says "Measured" "hostile"
[ $failures = 0 ] && echo "train page: all good"
exit $failures
