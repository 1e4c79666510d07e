#!/bin/sh
# The dispatcher's contract: help, unknown commands and options, exit statuses.
set -u
failures=0
expect() { # expect STATUS DESCRIPTION COMMAND...
    want=$1 what=$2; shift 2
    out=$("$@" 2>&1); got=$?
    if [ "$got" != "$want" ]; then
        echo "FAIL $what: exit $got, wanted $want"; echo "$out" | head -5; failures=$((failures + 1))
    fi
}
expect 0 "help" "$MEMFIT" --help
expect 0 "version" "$MEMFIT" --version
expect 2 "no command" "$MEMFIT"
expect 2 "unknown command" "$MEMFIT" paln
for c in plan train evaluate predict run explain report ps doctor pack replay; do
    expect 0 "$c --help" "$MEMFIT" $c --help
done
expect 0 "alias estimate" "$MEMFIT" estimate --help
"$MEMFIT" paln 2>&1 | grep -q 'did you mean "plan"' || { echo "FAIL no suggestion for paln"; failures=$((failures + 1)); }
exit $((failures > 0))
