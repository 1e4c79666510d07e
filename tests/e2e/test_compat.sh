#!/bin/bash
# test_compat.sh: files that earlier versions of memfit wrote, and this one, are read: checkpoints, traces, kept plans, records of doctor. Made by
# the program of that time (tests/fixtures/README.md); a change of a format adds a file here and keeps the old ones. One that is newer is refused by name.
set -u
. "$(dirname "$0")/lib.sh"
f="$MEMFIT_SOURCE/tests/fixtures/train" c="$MEMFIT_SOURCE/tests/fixtures/compat"
train() { "$MEMFIT" train "$@" --threads 1 --quiet --json >"$dir/out" 2>"$dir/err" || fail "train $*: exit $?: $(tail -2 "$dir/err")"; }

# Checkpoints after 17 steps of 8 samples: gone on from, the whole of 3 x 38 steps ends as if it had never stopped.
whole=("$f/mlp.keras" --data "$f/digits.npz" --seed 5 --batch-size 8 --epochs 3)
train "${whole[@]}"
loss=$(key loss "$dir/out")
for version in 2 3 4; do
    path=$c/checkpoint_v$version.keras; [ $version = 3 ] && path=$f/checkpoint_v3.keras
    [ "$(python3 -c 'import struct, sys, zipfile; print(struct.unpack_from("<q", zipfile.ZipFile(sys.argv[1]).read("memfit.state"), 8)[0])' "$path")" = $version ] ||
        fail "$path is no checkpoint of version $version"
    train "${whole[@]}" --resume "$path"
    is "$dir/out" steps 114
    awk -v a="$loss" -v b="$(key loss "$dir/out")" 'BEGIN { d = a - b; exit !(b != "" && d < 0.01 && d > -0.01) }' ||
        fail "a checkpoint of version $version: loss $(key loss "$dir/out"), without a stop $loss"
done
python3 - "$c/checkpoint_v4.keras" "$dir/newer.keras" <<'END' || fail "no checkpoint of a newer version could be made"
import struct, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as old, zipfile.ZipFile(sys.argv[2], "w") as new:
    for name in old.namelist():
        data = old.read(name)
        new.writestr(name, data[:8] + struct.pack("<q", 99) + data[16:] if name == "memfit.state" else data)
END
"$MEMFIT" train "${whole[@]}" --resume "$dir/newer.keras" --quiet >"$dir/out" 2>&1; [ $? = 4 ] || fail "a checkpoint of version 99: $(cat "$dir/out")"

# Traces: what the version that wrote them said of them.
for row in "1 114 57 2797148" "2 114 57 2862684"; do
    read -r version events buffers peak <<<"$row"
    for command in replay report; do
        "$MEMFIT" $command "$c/trace_v$version.trace" --json >"$dir/out" 2>"$dir/err" || fail "$command of a trace of version $version: $(cat "$dir/err")"
        is "$dir/out" events $events; is "$dir/out" buffers $buffers; is "$dir/out" peak_live_bytes $peak
    done
done
{ head -c 8 "$c/trace_v2.trace"; printf '\143\000\000\000'; tail -c +13 "$c/trace_v2.trace"; } >"$dir/newer.trace"
expect 4 "version 99" "a trace of version 99" "$MEMFIT" replay "$dir/newer.trace"

# A kept plan, as CI keeps one: its peaks are this version's within what a planner may improve.
plan=("$f/cnn.keras" --for t4 --batch-size 8)
"$MEMFIT" plan "${plan[@]}" --baseline "$c/plan_v1.json" --tolerance 10% --json >"$dir/out" 2>"$dir/err" || fail "a plan kept by version 1 as baseline: $(cat "$dir/err")"
"$MEMFIT" plan "${plan[@]}" --diff "$c/plan_v1.json" --json >"$dir/out" 2>"$dir/err" || fail "a plan kept by version 1: $(cat "$dir/err")"
[ -n "$(key peak_difference_bytes "$dir/out")" ] || fail "plan --diff: no difference is told"
sed 's/"version": 1,/"version": 99,/' "$c/plan_v1.json" >"$dir/newer.json"
expect 4 "" "a kept plan of version 99" "$MEMFIT" plan "${plan[@]}" --baseline "$dir/newer.json"

# A record of doctor: a made-up machine, as version 1 kept it.
"$MEMFIT" doctor --compare "$c/record_v1.json" --json >"$dir/out" 2>"$dir/err" || fail "a record of version 1: $(cat "$dir/err")"
python3 -c 'import json, sys; j = json.load(open(sys.argv[1])); sys.exit(not any(d["there"] == "580.159.04" for d in j["differences"]))' "$dir/out" || fail "a record of version 1 is not read: $(cat "$dir/out")"
sed 's/"version": 1,/"version": 99,/' "$c/record_v1.json" >"$dir/newer.json"
expect 4 "" "a record of version 99" "$MEMFIT" doctor --compare "$dir/newer.json"

# Public structs: members lie where programs compiled against an earlier header have them.
python3 "$MEMFIT_SOURCE/tools/check_layout.py" >"$dir/out" 2>&1 || fail "the layout of public structs: $(cat "$dir/out")"
exit $((failures > 0))
