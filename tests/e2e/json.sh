# json.sh: JSON read by a parser, for the tests of commands; sourced.
# json FILE PATH: the value at PATH ("metrics.accuracy", "owners.0.name"; "" is the whole): strings as they are, the rest as JSON.
# Says so on standard error and fails when FILE is not one JSON value, or has nothing there.
json() {
    python3 -c '
import json, sys
file, path = sys.argv[1:]
try:
    value = json.load(open(file))
    for part in filter(None, path.split(".")):
        value = value[int(part) if isinstance(value, list) else part]
except (ValueError, KeyError, IndexError, TypeError) as e:
    sys.exit("%s: %s: %s %s" % (file, path, type(e).__name__, e))
print(value if isinstance(value, str) else json.dumps(value))' "$1" "$2"
}
# holds FILE EXPRESSION: is the Python expression true, j being the value?
holds() {
    python3 -c '
import json, sys
j = json.load(open(sys.argv[1]))
sys.exit(0 if eval(sys.argv[2]) else 1)' "$1" "$2"
}
