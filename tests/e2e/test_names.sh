#!/bin/bash
# test_names.sh: what strangers wrote (names of models, layers, classes, arrays, members; lines of logs) is printed visibly:
# no control character reaches the terminal, and no name makes a line of its own.
set -u
. "$MEMFIT_SOURCE/tests/e2e/lib.sh"
cd "$dir" || exit 1
cat >check.py <<'PYTHON'
import re, sys
for name in sys.argv[1:]:
    data = open(name, "rb").read()
    bad = re.findall(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]", data)
    text = data.decode("utf-8")  # and it is UTF-8 throughout
    forged = [line for line in text.split("\n") if line.lstrip().startswith("FORGED")]
    if bad or forged:
        sys.exit(f"{name}: {bad[:5]} {forged[:3]}")
    if "FORGED" not in text:
        sys.exit(f"{name}: the name is not shown at all: {text[:300]}")
PYTHON
python3 - <<'PYTHON'
import json, struct, zipfile
evil = "a\x1b]0;title\x07\x1b[2K\r\nFORGED fits as asked\x9b31m\u202e\u2067\u2028\t\x7f"
def layer(kind, name, **config):
    return {"class_name": kind, "module": "keras.layers", "registered_name": None, "config": dict(name=name, trainable=True, **config)}
def model(name, layers):
    return {"class_name": "Sequential", "module": "keras", "config": {"name": name, "layers": layers}, "keras_version": "3.0.0",
            "compile_config": {"optimizer": "sgd", "loss": "mse", "metrics": ["mae"]}}
first = layer("InputLayer", "in" + evil, batch_shape=[None, 4])
json.dump(model("m" + evil, [first, layer("Dense", "d" + evil, units=3)]), open("names.json", "w"))
json.dump(model("m", [first, layer("Evil" + evil, "d", units=3)]), open("class.json", "w"))
json.dump(model("m", [first, layer("Dense", "d" + evil, units="x" + evil)]), open("units.json", "w"))
json.dump(model("m", [first, layer("Dense", "d" + evil, units=3, activation="act" + evil)]), open("activation.json", "w"))
def npy(shape, count, descr="<f4"):
    head = ("{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (descr, shape)).ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + bytes(4 * count)
def npz(name, **arrays):
    with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as z:
        for key, value in arrays.items():
            z.writestr(key + ".npy", value)
npz("good.npz", x=npy("(8, 4)", 32), y=npy("(8, 3)", 24))
npz("named.npz", **{"in" + evil: npy("(8, 4)", 32), "d" + evil: npy("(8, 3)", 24)})
npz("arrays.npz", **{"x" + evil: npy("(8, 4)", 32), "y" + evil: npy("(8, 3)", 24)})
npz("text.npz", **{"x": npy("(8, 4)", 32), "y": npy("(8, 3)", 24), "d" + evil: npy("(8,)", 8, "<U1")})
with zipfile.ZipFile("member.npz", "w") as z:
    z.writestr("x" + evil + ".npy", b"no array")
open("table.csv", "w").write("a,b\n1,2\n1,z" + evil.replace("\n", "").replace("\r", "") + "\n")
json.dump({"1" + evil: 2}, open("weights.json", "w"))
open("oom.log", "w").write("tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node __wrapped__Conv" + "evil\x1b]0;t\x07\x9b31m\u202eFORGED"
     + "}} OOM when allocating tensor with shape[32,64,112,112] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Conv\x1b[31mFORGED]\n")
PYTHON
ok() { [ "$1" = "$2" ] || fail "$3: exit $1 instead of $2: $(head -c 300 err)"; }
show() { # show STATUS COMMAND...: its output is clean
    local want=$1; shift
    "$MEMFIT" "$@" >out 2>err
    ok $? "$want" "$*"
    cat out err >both
    python3 check.py both || fail "$*"
}
show 0 plan names.json -v
show 0 plan names.json --batch-size 64 --memory 1GiB
show 3 plan names.json --memory 20KiB -v
show 0 train names.json --data named.npz --epochs 1 -v
show 4 plan class.json
show 5 plan units.json
show 4 plan activation.json
show 5 train names.json --data arrays.npz
show 5 train names.json --data text.npz
show 5 train names.json --data member.npz
show 5 train names.json --data table.csv
show 5 train names.json --data good.npz --class-weight weights.json
show 5 plan "$(printf 'no\033[31m\nFORGED')"
show 0 explain oom.log
show 0 explain oom.log -v
# The same names in JSON are escaped by its own rules.
"$MEMFIT" plan names.json --json >out 2>err || fail "plan --json"
python3 -c 'import json, re; data = open("out", "rb").read(); assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f-\xff]", data); assert "FORGED" in json.loads(data)["model"]["name"]' || fail "JSON"
exit $((failures > 0))
