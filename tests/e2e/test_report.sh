#!/bin/sh
# memfit report: the keys of its JSON, the same peak as replay, two traces, folders, hostile names, exit statuses.
set -u
traces=$MEMFIT_SOURCE/tests/fixtures/traces
. "$(dirname "$0")/lib.sh"
export LC_ALL=C.UTF-8

recorded=
[ -z "${MEMFIT_SHARED_DATA:-}" ] || recorded=$(ls "$MEMFIT_SHARED_DATA"/traces/*.csv "$MEMFIT_SHARED_DATA"/traces/*.pickle 2>/dev/null)
python3 - "$MEMFIT" $traces/generated.csv $traces/recorded-part.csv $traces/snapshot-p0.pickle $traces/snapshot-p2.pickle $traces/snapshot-p4.pickle $recorded <<'END' || fail "what report says of traces"
import json, os, subprocess, sys
program, traces, bad = sys.argv[1], sys.argv[2:], 0
def run(*arguments, **env):
    p = subprocess.run([program, *arguments], capture_output=True, encoding="utf-8", env={**os.environ, **env})
    assert p.returncode == 0, (arguments, p.returncode, p.stderr)
    return p.stdout
for t in traces:
    r, p = json.loads(run("report", "--json", t)), json.loads(run("replay", "--json", t))
    texts = {80: run("report", t), 120: run("report", "-v", t, COLUMNS="120"), 100: run("report", t, traces[0], COLUMNS="100")}
    same = json.loads(run("report", "--json", t, t))
    for what, holds in {
        "replay's figures": all(r[k] == p[k] for k in ("events", "peak_live_bytes")) and r["pool_peak_bytes"] == p["peak_physical_bytes"],
        "keys": set(r) >= {"events", "peak_live_bytes", "peak_at", "owners", "growing", "held_longest"} and set(r["owners"][0]) >= {"name", "kind", "bytes"},
        "owners add up": sum(o["bytes"] for o in r["owners"]) == r["peak_live_bytes"] == sum(r["kinds"].values()),
        "the moment": 0 <= r["peak_at"] <= r["seconds"],
        "widths": all(len(line) <= n for n, text in texts.items() for line in text.split("\n")),
        "uses the width": any(len(line) > 80 for line in texts[120].split("\n")),
        "owners in the text": "\nat the peak\n" in texts[80],
        "the same as itself": same["peak_difference_bytes"] == 0 and same["differences"] == [],
    }.items():
        if not holds:
            print("FAIL %s: %s" % (t, what))
            bad = 1
sys.exit(bad)
END

# A plan inside the limit of a run of ours; plans of what is no model, and of a batch without one.
narrow="$MEMFIT_SOURCE/tests/fixtures/plan/conv_pool_128.json"
"$MEMFIT" train "$narrow" --data synthetic:64 -b 64 --memory 120MiB --steps 1 --trace "$dir/narrow.trace" -q >/dev/null 2>"$dir/err" || fail "train in a limit: $(cat "$dir/err")"
"$MEMFIT" report --json "$dir/narrow.trace" --model "$narrow" -b 64 --html "$dir/planned.html" >"$dir/n" 2>"$dir/err" || fail "--model of a limited run: $(cat "$dir/err")"
holds "$dir/n" '0 <= j["plan"]["bytes"] - j["peak_live_bytes"] < 4096 and j["plan"]["bytes"] < j["plan"]["as_asked_bytes"] and j["plan"]["bytes"] < j["limit_bytes"]' || fail "--model of a limited run: $(key plan "$dir/n"), peak $(key peak_live_bytes "$dir/n")"
grep -q "memfit's plan of the model</dt><dd>.*inside the limit of 120.00 MiB" "$dir/planned.html" || fail "the page has no plan"
"$MEMFIT" report --json "$traces/generated.csv" --model "$narrow" >"$dir/n" || fail "--model of a CSV trace: exit $?"
holds "$dir/n" 'j["plan"]["as_asked_bytes"] > 0 and j["plan"]["bytes"] is None and j["plan"]["batch"] == 32' || fail "--model of a CSV trace"
expect 5 "neither a .keras archive" "a trace as the model" "$MEMFIT" report "$traces/generated.csv" --model "$traces/generated.csv"
expect 2 "means nothing without --model" "a batch without a model" "$MEMFIT" report "$traces/generated.csv" -b 8

# Two traces (the unit test has every pair of the recorded ones).
"$MEMFIT" report --json "$traces/generated.csv" "$traces/snapshot-p4.pickle" >"$dir/d" || fail "two traces: exit $?"
holds "$dir/d" 'j["differences"] and sum(c["bytes"] for c in j["differences"]) == j["peak_difference_bytes"]' || fail "differences do not add up"
holds "$dir/d" 'set(j["differences"][0]) >= {"name", "kind", "bytes"}' || fail "keys of differences"
"$MEMFIT" report "$traces/generated.csv" "$traces/snapshot-p4.pickle" | grep -q "the peak changes by -" || fail "no verdict of a difference"
[ "$("$MEMFIT" report -q "$traces/generated.csv" | grep -c .)" -le 4 ] || fail "--quiet prints more than the verdict"

# A run of ours: marks are steps, kinds have names.
if "$MEMFIT" train "$MEMFIT_SOURCE/tests/fixtures/pictures.keras" --data synthetic:64 -b 16 --steps 4 --trace "$dir/run.trace" -q >/dev/null 2>"$dir/err"; then
    "$MEMFIT" report --json "$dir/run.trace" >"$dir/r" || fail "a trace of train: exit $?"
    holds "$dir/r" 'j["step_count"] == 4 and j["steps_from"] == "marks" and j["growing"] == [] and j["kinds"]["parameters"] > 0 and j["limit_bytes"] > 0' || fail "a trace of train: $(key step_count "$dir/r") steps"
    "$MEMFIT" replay --json "$dir/run.trace" >"$dir/p"
    is "$dir/r" peak_live_bytes "$(key peak_live_bytes "$dir/p")"
    # A plan of the model is the one that ran, to the padding between tensors, which a trace does not have; no folder is told.
    "$MEMFIT" report --json "$dir/run.trace" --model "$MEMFIT_SOURCE/tests/fixtures/pictures.keras" -b 16 >"$dir/m" || fail "--model: exit $?"
    holds "$dir/m" '0 <= j["plan"]["as_asked_bytes"] - j["peak_live_bytes"] < 4096 and j["plan"]["model"] == "pictures.keras" and j["plan"]["batch"] == 16' || fail "--model: $(key plan "$dir/m")"
    "$MEMFIT" report "$dir/run.trace" --model "$MEMFIT_SOURCE/tests/fixtures/pictures.keras" -b 16 | grep -q "^memfit's plan .*1.000 times the peak" || fail "--model in the text"
    mkdir "$dir/ranks"; cp "$dir/run.trace" "$dir/ranks/rank-0.trace"; cp "$dir/run.trace" "$dir/ranks/rank-1.trace"
    "$MEMFIT" report --json "$dir/ranks" >"$dir/m" || fail "two processes: exit $?"
    holds "$dir/m" 'any(o["name"].startswith("rank-1: ") for o in j["owners"])' || fail "two processes: names"
    [ "$(key events "$dir/m")" = $((2 * $(key events "$dir/r"))) ] || fail "two processes: events"
    [ "$(key peak_live_bytes "$dir/m")" = $((2 * $(key peak_live_bytes "$dir/r"))) ] || fail "two equal processes: the peak is not doubled"
    cp "$dir/run.trace" "$dir/job.41.0"; cp "$dir/run.trace" "$dir/job.42.0"; echo x >"$dir/job.43"
    "$MEMFIT" report --json "$dir/job" >"$dir/m" || fail "the traces of memfit run: exit $?"
    holds "$dir/m" 'any(o["name"].startswith("process 42: ") for o in j["owners"])' || fail "the traces of memfit run: names"
    # Two runs have other processes: they are compared in the order in which they began.
    cp "$dir/run.trace" "$dir/again.1041.0"; cp "$dir/run.trace" "$dir/again.999.0"
    "$MEMFIT" report --json "$dir/job" "$dir/again" >"$dir/same" || fail "two runs of several processes: exit $?"
    holds "$dir/same" 'j["differences"] == [] and j["peak_difference_bytes"] == 0' || fail "two equal runs of several processes differ"
    "$MEMFIT" report "$dir/job" "$dir/again" | grep -q "^Both peaks are " || fail "two equal runs: no sentence"
    # What is no trace is left out and said; a pipe and a folder are passed over; steps are the first's that has some; a
    # file that is called a trace is refused where it is none; times that no clock shows are none.
    echo notes >"$dir/ranks/README"; mkfifo "$dir/ranks/pipe"; mkdir "$dir/ranks/old"; cp "$traces/recorded-part.csv" "$dir/ranks/a.csv"
    timeout 60 "$MEMFIT" report --json "$dir/ranks" >"$dir/more" || fail "a folder with other files: exit $?"
    holds "$dir/more" 'j["step_count"] == 4 and any(o["name"] == "a: (no name)" for o in j["owners"])' || fail "a folder with other files: $(key step_count "$dir/more") steps"
    "$MEMFIT" report "$dir/ranks" | grep -q "; 1 file of the folder is not a trace" || fail "a file that was left out is not said"
    echo nonsense >"$dir/ranks/rank-2.trace"
    expect 5 "rank-2.trace: line 1" "a damaged trace in a folder" "$MEMFIT" report "$dir/ranks"
    python3 -c 'import sys; d = bytearray(open(sys.argv[1], "rb").read()); d[32:40] = b"\xff" * 8; open(sys.argv[2], "wb").write(d)' "$dir/run.trace" "$dir/ranks/rank-2.trace"
    "$MEMFIT" report --json "$dir/ranks" >"$dir/late" || fail "a time that no clock shows: exit $?"
    holds "$dir/late" 'j["seconds"] < 3600' || fail "a time that no clock shows: $(key seconds "$dir/late") s"
    mkdir "$dir/texts"; echo a >"$dir/texts/b"
    expect 5 "is a trace" "a folder without traces" "$MEMFIT" report "$dir/texts"
    [ "$(key peak_live_bytes "$dir/m")" = $((2 * $(key peak_live_bytes "$dir/r"))) ] || fail "the traces of memfit run: the peak"
else
    fail "train --trace: $(head -1 "$dir/err")"
fi

# Names from strangers, folders, no paths.
mkdir -p "$dir/secret-folder"
python3 - "$dir/secret-folder/hostile.csv" <<'END'
import sys
names = ["<script>alert(1)</script>", "\x1b]0;owned\x07\x1b[2J", "\u202egnp.exe", "a" * 3000, "f (/home/alice/secret.py:3)", "C:\\Users\\alice\\x.py"]
with open(sys.argv[1], "w", encoding="utf-8") as f:
    f.write("time_us,op,id,bytes,owner\n")
    for i, n in enumerate(names):
        f.write('%d,alloc,%d,%d,"%s"\n' % (i, i, 1000 * (i + 1), n.replace('"', '""')))
END
"$MEMFIT" report "$dir/secret-folder/hostile.csv" >"$dir/text" || fail "hostile names: exit $?"
LC_ALL=C grep -q "$(printf '[\001-\011\013-\037\177]')" "$dir/text" && fail "control characters reach the terminal"
grep -q 'alice\|secret-folder' "$dir/text" && fail "folders are shown"
"$MEMFIT" report --json "$dir/secret-folder/hostile.csv" >"$dir/r"
grep -q 'alice\|secret-folder' "$dir/r" && fail "folders are in the JSON"
"$MEMFIT" report --with-names "$dir/secret-folder/hostile.csv" | grep -q alice || fail "--with-names hides names"

# The page: one file, names as text, nothing of the user's replaced.
"$MEMFIT" report -q --html "$dir/page.html" "$dir/secret-folder/hostile.csv" >/dev/null || fail "--html: exit $?"
grep -q '<title>memfit report: hostile.csv' "$dir/page.html" || fail "--html: no title"
grep -q 'alice\|secret-folder' "$dir/page.html" && fail "folders are in the page"
grep -q '<script>alert' "$dir/page.html" && fail "a name became a script"
grep -qE '(src|href)=|https?://|@import|url\(' "$dir/page.html" && fail "the page points elsewhere: $(grep -oE '.{20}((src|href)=|https?://|@import|url\().{20}' "$dir/page.html" | head -1)"
"$MEMFIT" report -q --html "$dir/page.html" "$traces/generated.csv" "$traces/recorded-part.csv" >/dev/null || fail "--html over a page: exit $?"
grep -q 'id="data1"' "$dir/page.html" || fail "--html of two traces holds one"
cp "$traces/generated.csv" "$dir/mine.csv"
expect 2 "mine.csv" "a page over its trace" "$MEMFIT" report --html "$dir/mine.csv" "$dir/mine.csv"
echo precious >"$dir/notes"
expect 2 "notes" "a page over something else" "$MEMFIT" report --html "$dir/notes" "$dir/mine.csv"
[ "$(cat "$dir/notes")" = precious ] || fail "a file was replaced"
expect 1 "" "a page on a full disk" "$MEMFIT" report --html /dev/full "$dir/mine.csv"

# Other viewers: files of our own are replaced, others and snapshots of PyTorch's are not; one trace at a time.
for o in "--perfetto x.perfetto" "--memory-viz x.pickle" "--flame x.folded"; do
    (cd "$dir" && "$MEMFIT" report -q $o "$traces/generated.csv" >/dev/null && "$MEMFIT" report -q $o "$traces/recorded-part.csv" >/dev/null) || fail "$o: exit $?"
    cp "$traces/snapshot-p4.pickle" "$dir/theirs"
    expect 2 "theirs" "${o% *} over a snapshot of PyTorch's" "$MEMFIT" report ${o% *} "$dir/theirs" "$dir/mine.csv"
    expect 2 "one trace" "${o% *} of two traces" "$MEMFIT" report ${o% *} "$dir/new" "$dir/mine.csv" "$dir/mine.csv"
    [ -e "$dir/new" ] && fail "${o% *}: a file in spite of wrong usage"
    expect 1 "" "${o% *} on a full disk" "$MEMFIT" report ${o% *} /dev/full "$dir/mine.csv"
done
"$MEMFIT" report -q --tensorboard "$dir/tb" "$traces/generated.csv" >/dev/null || fail "--tensorboard: exit $?"
[ -s "$dir/tb/plugins/profile/memfit/memfit.xplane.pb" ] || fail "--tensorboard: no file"
"$MEMFIT" report --json "$dir/x.pickle" >"$dir/r" || fail "a trace for memory_viz cannot be read: exit $?"
"$MEMFIT" report --json "$traces/recorded-part.csv" >"$dir/p"
for k in events peak_live_bytes owners steps; do [ "$(key $k "$dir/r")" = "$(key $k "$dir/p")" ] || fail "memory_viz: $k differs"; done
"$MEMFIT" report -q --memory-viz "$dir/h.pickle" --perfetto "$dir/h.perfetto" --flame "$dir/h.folded" --tensorboard "$dir/htb" "$dir/secret-folder/hostile.csv" >/dev/null || fail "hostile names: exit $?"
grep -rq 'alice\|secret-folder' "$dir/h.pickle" "$dir/h.perfetto" "$dir/h.folded" "$dir/htb" && fail "folders are in what was written for others"

expect 5 "missing" "a missing file" "$MEMFIT" report "$dir/missing"
printf 'time_us,op,id,bytes\n' >"$dir/empty.csv"
expect 5 "" "a trace without events" "$MEMFIT" report "$dir/empty.csv"
expect 5 "GLOBAL" "a pickle that is a program" "$MEMFIT" report "$traces/object.pickle"
mkdir "$dir/nothing"
expect 5 "holds no files" "an empty folder" "$MEMFIT" report "$dir/nothing"
expect 2 "which trace?" "no trace" "$MEMFIT" report
expect 2 "" "three traces" "$MEMFIT" report "$traces/generated.csv" "$traces/generated.csv" "$traces/generated.csv"
exit $((failures > 0))
