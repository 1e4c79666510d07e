#!/bin/bash
# test_loading.sh: opening models and data is under the limit from the first byte on, watched from outside: it fits, or is
# refused by name with what it needs and what is allowed.
set -u
f="$MEMFIT_SOURCE/tests/fixtures"
. "$MEMFIT_SOURCE/tests/e2e/lib.sh"
cd "$dir" || exit 1
mib=$((1 << 20))
# under LIMIT_MIB STATUS TEXT COMMAND...: the exit status, the text in its messages, and never above the limit.
under() {
    local limit=$1 want=$2 text=$3; shift 3
    "$HELD_PROGRAM" peak "$MEMFIT" "$@" --memory "${limit}MiB" --threads 1 --quiet >out 2>err
    local got=$?
    [ $got = "$want" ] || fail "$*: exit $got instead of $want: $(head -c 300 err)"
    grep -q -- "$text" err || [ -z "$text" ] || fail "$*: no \"$text\" in: $(head -c 300 err)"
    local held; read -r held _ <peak
    [ "$held" -le $((limit * mib)) ] || fail "$*: $held bytes under a limit of $((limit * mib))"
}
python3 - <<'PYTHON'
import struct, zipfile
head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(4)
with zipfile.ZipFile("many.npz", "w") as archive:
    for i in range(20000):
        archive.writestr(f"array{i}.npy", array)
with open("weights.json", "w") as weights:
    weights.write("{" + ", ".join(f'"{i}": 1.0' for i in range(400000)) + "}")
PYTHON
mlp="$f/train/mlp.keras"

# An array in one packed chunk of 12 MiB is unpacked beside memory.
under 8 0 "" train "$mlp" --data "$f/hdf5/one_chunk.h5" --steps 3
# Many arrays cost what they are.
under 24 5 "has no array for input" train "$mlp" --data many.npz --steps 3
under 8 3 "many.npz.*loading needs at least .* the limit is 8.00 MiB" train "$mlp" --data many.npz --steps 3
# The order of many samples is computed; in batches of the data's order all the same.
under 8 0 "" train "$mlp" --data synthetic:1000000000 --steps 3
# A resumed run goes on in the same order, computed or not.
for samples in 5000 1100000; do
    common=("$mlp" --data synthetic:$samples --threads 1 --quiet --learning-rate 0.01)
    "$MEMFIT" train "${common[@]}" --steps 6 --out whole.keras >out 2>err || fail "$samples samples: $(head -c 300 err)"
    "$MEMFIT" train "${common[@]}" --steps 3 --checkpoint half.keras >out 2>err || fail "$samples samples: $(head -c 300 err)"
    "$MEMFIT" train "${common[@]}" --steps 6 --resume half.keras --out resumed.keras >out 2>err || fail "resuming: $(head -c 300 err)"
    cmp whole.keras resumed.keras || fail "$samples samples: a resumed run ends elsewhere"
done
# Class weights.
under 24 3 "weights.json.*loading needs at least .* the limit is 24.00 MiB" train "$mlp" --data "$f/train/digits.npz" --class-weight weights.json
# A model whose configuration is large.
python3 - <<'PYTHON'
with open("wide.json", "w") as out:
    layers = ['{"class_name": "InputLayer", "config": {"batch_shape": [null, 4], "name": "in"}, "name": "in", "inbound_nodes": []}']
    layers += ['{"class_name": "Dense", "module": "keras.layers", "config": {"name": "d%d", "units": 4, "trainable": true, "note": "%s"}}' % (i, "x" * 3000)
               for i in range(4000)]
    out.write('{"class_name": "Sequential", "config": {"name": "wide", "layers": [%s]}}' % ", ".join(layers))
PYTHON
under 8 3 "wide.json.*loading needs at least" train wide.json --data synthetic:100 --optimizer sgd --loss mse
exit $((failures > 0))
