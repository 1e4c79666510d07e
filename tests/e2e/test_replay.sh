#!/bin/sh
# memfit replay: its keys, equal runs, limits, and what it says of damaged traces and nonsense options.
set -u
traces=$MEMFIT_SOURCE/tests/fixtures/traces
. "$(dirname "$0")/lib.sh"

for t in generated recorded-part; do
    "$MEMFIT" replay --json "$traces/$t.csv" >"$dir/$t" || fail "$t: exit $?"
    "$MEMFIT" replay --json "$traces/$t.csv" >"$dir/$t.again"
    for k in events buffers peak_live_bytes peak_physical_bytes ratio failed remaps remapped_pages ns_per_event; do
        [ -n "$(key $k "$dir/$t")" ] || fail "$t: no key $k"
    done
    is "$dir/$t" failed 0
    is "$dir/$t" addresses "$(key addresses "$dir/$t.again")"
    is "$dir/$t" repeats true
done
is "$dir/generated" events 1800
is "$dir/generated" buffers 936
is "$dir/generated" peak_live_bytes 25715851
is "$dir/recorded-part" events 2200

"$MEMFIT" replay --json "$traces/snapshot-p4.pickle" >"$dir/snapshot" || fail "snapshot: exit $?"
is "$dir/snapshot" buffers 5
is "$dir/snapshot" before_buffers 2
is "$dir/snapshot" peak_live_bytes 13631488
"$MEMFIT" replay --json --device cpu "$traces/generated.csv" >"$dir/cpu" || fail "cpu: exit $?"
is "$dir/cpu" failed 0
[ -n "$(key repeats "$dir/cpu")" ] || fail "cpu: no key repeats"
"$MEMFIT" replay --json --policy preallocate --memory 1GiB "$traces/generated.csv" >"$dir/pre" || fail "preallocate: exit $?"
is "$dir/pre" failed 0
"$MEMFIT" replay --json --page 64KiB "$traces/generated.csv" >"$dir/page" || fail "page: exit $?"
is "$dir/page" page_bytes 65536
LC_ALL=C.UTF-8 "$MEMFIT" replay "$traces/generated.csv" | grep -q '█' || fail "no blocks in a UTF-8 terminal"
LC_ALL=C "$MEMFIT" replay "$traces/generated.csv" | grep -q '#' || fail "no picture in ASCII"

is "$dir/pre" peak_physical_bytes 1073741824
# The recorded traces: nothing fails, close to the live bytes, few events move pages; also at 1.02 times the peak.
if [ -n "${MEMFIT_SHARED_DATA:-}" ]; then
    for t in "$MEMFIT_SHARED_DATA"/traces/*.csv; do
        "$MEMFIT" replay --json "$t" >"$dir/t" || fail "$t: exit $?"
        is "$dir/t" failed 0
        awk "BEGIN { exit !($(key ratio "$dir/t") <= 1.006) }" || fail "$t: ratio $(key ratio "$dir/t")"
        awk "BEGIN { exit !($(key remaps "$dir/t") <= 0.03 * $(key events "$dir/t")) }" || fail "$t: $(key remaps "$dir/t") remaps"
        limit=$(awk "BEGIN { printf \"%.0f\", $(key peak_live_bytes "$dir/t") * 1.02 }")
        "$MEMFIT" replay --json --memory "$limit" "$t" >"$dir/t" || fail "$t at $limit bytes: exit $?"
        is "$dir/t" failed 0
        awk "BEGIN { exit !($(key ratio "$dir/t") <= 1.006) }" || fail "$t at $limit bytes: ratio $(key ratio "$dir/t")"
    done
fi

expect 3 "failed" "a limit far too small" "$MEMFIT" replay --memory 8MiB "$traces/generated.csv"
expect 5 "missing" "a missing file" "$MEMFIT" replay "$dir/missing"
printf 'time_us,op,id,bytes,stream\n0,alloc,0,256,0\n1,free,1,256,0\n' >"$dir/bad.csv"
expect 5 "line 3" "a free of nothing" "$MEMFIT" replay "$dir/bad.csv"
printf 'time_us,op,id,bytes,stream\n0,alloc,0,25x6,0\n' >"$dir/bad.csv"
expect 5 "line 2, column 4" "a number that is none" "$MEMFIT" replay "$dir/bad.csv"
printf 'MEMFITTRxxxxxxxx' >"$dir/bad.trace"
expect 5 "header" "a cut trace file" "$MEMFIT" replay "$dir/bad.trace"
printf 'hello\n' >"$dir/text"
expect 5 "line 1" "some text" "$MEMFIT" replay "$dir/text"
head -c 300 "$traces/snapshot-p4.pickle" >"$dir/cut.pickle"
expect 5 "byte" "a cut snapshot" "$MEMFIT" replay "$dir/cut.pickle"
expect 5 "GLOBAL" "a pickle that is a program" "$MEMFIT" replay "$traces/object.pickle"
expect 2 "size" "a nonsense size" "$MEMFIT" replay --memory lots "$traces/generated.csv"
expect 2 "power of two" "a nonsense page" "$MEMFIT" replay --page 3MiB "$traces/generated.csv"
expect 2 "did you mean --policy" "an unknown option" "$MEMFIT" replay --polcy growth "$traces/generated.csv"
expect 2 "growth or preallocate" "an unknown policy" "$MEMFIT" replay --policy fast "$traces/generated.csv"
expect 2 "must be one of sim|cpu|cuda" "an unknown device" "$MEMFIT" replay --device tpu "$traces/generated.csv"
expect 2 "which trace?" "no trace" "$MEMFIT" replay
exit $((failures > 0))
