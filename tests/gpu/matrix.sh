#!/bin/bash
# Frameworks at a limit of 8 GiB by preload and by attach: matrix.sh BUILD [FOLDER]. AT_ONCE at a time (4; 112 GiB for all 14); a table at the end. PyTorch's also without a limit, as a yardstick.
# Needs python3 with PyTorch, JAX and CuPy.
build=$(realpath "${1:-build}"); here=$(realpath "$(dirname "$0")"); out=${2:-$(mktemp -d)}; mkdir -p "$out"; out=$(realpath "$out")
export XDG_RUNTIME_DIR="$out/runtime" MEMFIT_PROGRAM="$build/memfit" PYTHONPATH="${PYTHONPATH:-$here/../../python}"; mkdir -p -m 700 "$XDG_RUNTIME_DIR"; cd "$here" || exit 1
python3 nvml_sampler.py "$out/nvml.json" & sampler=$!
one() { # one CASE HOW
    n=m-$1-$2
    if [ "$2" = preload ]; then timeout -k 5 ${SECONDS_EACH:-90} "$build/memfit" run --memory 8GiB --report "$out/$n.json" --trace "$out/$n.trace" -- python3 matrix_program.py $1 $2
    else STORY="$out/$n.json" timeout -k 5 ${SECONDS_EACH:-90} python3 matrix_program.py $1 $2; fi >"$out/$n.out" 2>"$out/$n.err"
    echo "$n: exit status $?, at $SECONDS s"
}
pids=
for c in ${CASES:-compile:preload compile:attach jax:preload jax:attach default:preload default:attach benchmark:preload benchmark:attach graphs:preload graphs:attach expandable:preload expandable:attach cupy:preload cupy:attach default:plain benchmark:plain}; do
    while [ "$(jobs -rp | wc -l)" -gt "${AT_ONCE:-4}" ]; do sleep 0.1; done # one of them is the sampler
    one ${c%:*} ${c#*:} & pids="$pids $!"
done
wait $pids; kill -TERM $sampler; wait $sampler
python3 matrix_table.py "$out"
