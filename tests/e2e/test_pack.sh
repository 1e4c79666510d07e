#!/bin/sh
# memfit pack through the command line: keys, exit statuses, the table written.
set -u
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failures=0
. "$(dirname "$0")/json.sh"
fail() { echo "FAIL $*"; failures=$((failures + 1)); }
expect() { # expect STATUS DESCRIPTION COMMAND...
    want=$1 what=$2; shift 2
    "$@" >"$dir/out" 2>"$dir/err"; got=$?
    [ "$got" = "$want" ] || { fail "$what: exit $got, wanted $want"; head -5 "$dir/out" "$dir/err"; }
}
has() { grep -q -- "$1" "$dir/$2" || { fail "$3: no \"$1\" in $2"; head -20 "$dir/$2"; }; }

cat >"$dir/t.csv" <<END
id,lower,upper,size,owner
b1,0,3,4,conv
b2,3,9,4,"relu, first"
b3,0,9,4,dense
b4,9,21,4,x
b5,0,21,4,y
END
expect 0 "least height" "$MEMFIT" pack "$dir/t.csv" --json --out "$dir/o.csv"
for key in buffers capacity height max_load solved optimal seconds; do json "$dir/out" $key >/dev/null || fail "no key $key"; done
holds "$dir/out" "j['height'] == 12 and j['optimal'] is True" || fail "height and proof: $(cat "$dir/out")"
[ "$(wc -l <"$dir/err")" = 0 ] || fail "--json is not silent"
head -1 "$dir/o.csv" | grep -qx 'id,lower,upper,size,owner,offset' || fail "header of the table"
grep -q '^b2,3,9,4,"relu, first",[0-9]*$' "$dir/o.csv" || fail "other columns are kept"
expect 0 "the packing read back as fixed" "$MEMFIT" pack "$dir/o.csv" --capacity 12 --json
expect 0 "packed again" "$MEMFIT" pack "$dir/o.csv" --repack --out "$dir/again.csv" --json
expect 0 "for people" "$MEMFIT" pack "$dir/t.csv"
has 'Packed: 5 buffers in 12 bytes' out "verdict"; has '|.*A' out "picture"
expect 3 "impossible" "$MEMFIT" pack "$dir/t.csv" --capacity 11 --out "$dir/no.csv"
has 'proven' out "says that it is proven"
[ ! -e "$dir/no.csv" ] || fail "a packing over the capacity was written"
expect 3 "impossible, json" "$MEMFIT" pack "$dir/t.csv" --capacity 11 --json
holds "$dir/out" "j['solved'] is False and j['impossible'] is True" || fail "an impossible capacity: $(cat "$dir/out")"
expect 2 "no file named" "$MEMFIT" pack
expect 2 "no capacity" "$MEMFIT" pack "$dir/t.csv" --capacity 0
expect 2 "capacity of letters" "$MEMFIT" pack "$dir/t.csv" --capacity lots
expect 2 "percentage of nothing" "$MEMFIT" pack "$dir/t.csv" --capacity 80%
expect 2 "no time" "$MEMFIT" pack "$dir/t.csv" --time 0
expect 2 "time before now" "$MEMFIT" pack "$dir/t.csv" --time -3
expect 2 "unknown option" "$MEMFIT" pack "$dir/t.csv" --capcity 3
expect 5 "missing file" "$MEMFIT" pack "$dir/none.csv"
printf 'id,lower,upper,size\na,0,3,4\nb,5,2,4\n' >"$dir/bad.csv"
expect 5 "damaged file" "$MEMFIT" pack "$dir/bad.csv"
has 'line 3' err "names the line"
printf 'id,lower,upper,size,offset\na,0,3,4,0\nb,1,2,4,2\n' >"$dir/clash.csv"
expect 5 "fixed buffers that collide" "$MEMFIT" pack "$dir/clash.csv"
printf 'id,lower,upper,size\n' >"$dir/empty.csv"
expect 0 "no buffers" "$MEMFIT" pack "$dir/empty.csv" --json
expect 5 "a directory" "$MEMFIT" pack "$dir"
expect 1 "an output that cannot be written" "$MEMFIT" pack "$dir/t.csv" --out "$dir/none/o.csv"
exit $((failures > 0))
