#!/bin/bash
# Frameworks at a limit of 8 GiB by preload and by attach: matrix.sh BUILD [FOLDER]. Four at a time; a table at the end. Needs python3 with PyTorch, JAX and CuPy.
build=$(realpath "${1:-build}"); here=$(realpath "$(dirname "$0")"); out=${2:-$(mktemp -d)}; mkdir -p "$out"; out=$(realpath "$out")
export XDG_RUNTIME_DIR="$out/runtime" MEMFIT_PROGRAM="$build/memfit" PYTHONPATH="${PYTHONPATH:-$here/../../python}"; mkdir -p -m 700 "$XDG_RUNTIME_DIR"; cd "$here" || exit 1
python3 nvml_sampler.py "$out/nvml.json" & sampler=$!
one() { # one CASE HOW
    n=m-$1-$2
    if [ "$2" = preload ]; then timeout -k 5 ${SECONDS_EACH:-90} "$build/memfit" run --memory 8GiB --report "$out/$n.json" --trace "$out/$n.trace" -- python3 matrix_program.py $1 $2
    else STORY="$out/$n.json" timeout -k 5 ${SECONDS_EACH:-90} python3 matrix_program.py $1 $2; fi >"$out/$n.out" 2>"$out/$n.err"
    echo "$n: exit status $?, at $SECONDS s"
}
lane() { for c in "$@"; do one ${c%:*} ${c#*:}; done; }
lane default:preload jax:attach cupy:preload benchmark:attach & lanes=$!
lane compile:preload expandable:attach graphs:preload & lanes="$lanes $!"
lane compile:attach expandable:preload default:attach & lanes="$lanes $!"
lane jax:preload benchmark:preload graphs:attach cupy:attach & lanes="$lanes $!"
wait $lanes; kill -TERM $sampler; wait $sampler
python3 matrix_table.py "$out"
