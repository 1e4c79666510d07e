#!/bin/sh
# memfit explain, doctor and ps: exit statuses, what they say of bad input, JSON keys, texts exactly as the docs show them.
set -u
logs=$MEMFIT_SOURCE/tests/fixtures/oom-logs
golden=$MEMFIT_SOURCE/tests/golden
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
failures=0
fail() { echo "FAIL $*"; failures=$((failures + 1)); }
expect() { # expect STATUS TEXT DESCRIPTION COMMAND...: the exit status, and a text that standard error must hold
    want=$1 text=$2 what=$3; shift 3
    out=$("$@" 2>&1 >/dev/null); got=$?
    [ "$got" = "$want" ] || { fail "$what: exit $got, wanted $want"; echo "$out" | head -3; }
    case $out in *"$text"*) ;; *) fail "$what: \"$text\" is not in: $out" ;; esac
}
key() { sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$2" | head -1; }
is() { # is FILE KEY VALUE
    [ "$(key "$2" "$1")" = "$3" ] || fail "$1: $2 is $(key "$2" "$1"), wanted $3"
}

# ---- explain ----
log=$logs/torch-too-large.log
: >"$dir/empty"
mkdir "$dir/folder"
head -c 5000 "$MEMFIT" >"$dir/binary"
expect 2 "did you mean --model" "an unknown option" "$MEMFIT" explain --modle x "$log"
expect 2 "" "no operand" "$MEMFIT" explain
expect 5 "No such file" "a missing file" "$MEMFIT" explain "$dir/missing"
expect 5 "directory" "a directory" "$MEMFIT" explain "$dir/folder"
expect 5 "no text" "a binary file" "$MEMFIT" explain "$dir/binary"
expect 5 "empty" "an empty file" "$MEMFIT" explain "$dir/empty"
"$MEMFIT" explain - <"$dir/empty" >/dev/null 2>&1; [ $? = 5 ] || fail "empty standard input: exit $?"
"$MEMFIT" explain --json "$log" >"$dir/json" || fail "a log: exit $?"
for k in framework cause request_bytes limit_bytes in_use_bytes certainty; do
    [ -n "$(key $k "$dir/json")" ] || fail "explain: no key $k"
done
grep -q '"owners": \[' "$dir/json" && grep -q '"suggestions": \[' "$dir/json" || fail "explain: no owners or suggestions"
is "$dir/json" cause too-large
"$MEMFIT" explain --json - <"$log" | cmp -s - "$dir/json" || fail "standard input reads otherwise than the file"
"$MEMFIT" explain --json "$logs/torch-fragmentation-0.pickle" >"$dir/snapshot" || fail "a snapshot: exit $?"
is "$dir/snapshot" source snapshot
is "$dir/snapshot" cause fragmentation
expect 5 "GLOBAL" "a pickle that is a program" "$MEMFIT" explain "$MEMFIT_SOURCE/tests/fixtures/traces/object.pickle"
printf 'all is well\n' >"$dir/well"
"$MEMFIT" explain --json "$dir/well" >"$dir/json" || fail "a log without failure: exit $?"
is "$dir/json" cause unknown
# A hundred megabytes before the failure; 48 MiB of memory of its own are plenty.
{ yes 'step 17 loss 0.3141 lr 0.001 and some more words that a program prints while it is training' | head -c 100000000
  printf '\n'; cat "$log"; } >"$dir/huge"
( ulimit -d 49152 2>/dev/null; "$MEMFIT" explain --json "$dir/huge" ) >"$dir/json" 2>"$dir/err" || fail "a huge log: exit $?, $(cat "$dir/err")"
is "$dir/json" cause too-large
rm "$dir/huge"
exit $((failures > 0))
