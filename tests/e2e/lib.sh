# lib.sh: what the tests of commands share; sourced. A failure is said and counted, and the test goes on.
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
failures=0
fail() { echo "FAIL $*"; failures=$((failures + 1)); }
expect() { # expect STATUS TEXT DESCRIPTION COMMAND...: the exit status, and a text that standard error must hold
    want=$1 text=$2 what=$3; shift 3
    out=$("$@" 2>&1 >/dev/null); got=$?
    [ "$got" = "$want" ] || { fail "$what: exit $got, wanted $want"; echo "$out" | head -3; }
    case $out in *"$text"*) ;; *) fail "$what: \"$text\" is not in: $out" ;; esac
}
. "$(dirname "$0")/json.sh"
key() { json "$2" "$1"; } # key PATH FILE
is() { # is FILE KEY VALUE
    [ "$(key "$2" "$1")" = "$3" ] || fail "$1: $2 is $(key "$2" "$1"), wanted $3"
}
