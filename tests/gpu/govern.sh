#!/bin/bash
# memfit run --memory on a card: govern.sh BUILD. What frameworks see and get, NVML's figure beside it, four jobs at once, a killed one. Needs python3 with
# PyTorch, JAX and CuPy; what is missing fails with its own message and the rest goes on.
build=$(realpath "${1:-build}"); here=$(realpath "$(dirname "$0")")
out=$(mktemp -d); trap 'rm -rf "$out"' EXIT
cd "$here" || exit 1
program="python3 govern_program.py"
limited="timeout 60 $build/memfit run --memory 8GiB"
go() { # go NAME COMMAND...
    n=$1; shift; echo "== $n"; "$@" >"$out/$n" 2>"$out/$n.err"; r=$?
    cut -c1-900 "$out/$n"; grep -a "memfit:" "$out/$n.err" | head -3; grep -a Error "$out/$n.err" | tail -1 | cut -c1-300; echo "exit status $r"
}
go nvml $limited -- $program nvml
go fill $limited -- $program torch-fill
go expandable $limited -- env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True $program torch-fill
go jax $limited -- $program jax
go cupy $limited -- $program cupy
go async $limited -- $program async
go graph $limited -- $program torch-graph
go compile $limited -- $program torch-compile
go step $limited -- $program torch-step
go step-unlimited timeout 60 $program torch-step
echo "== four jobs at a quarter each, and one that asks for more than it may"
for i in 1 2 3 4; do timeout 90 "$build/memfit" run -q --memory 25% -- $program torch-step >"$out/quarter$i" 2>&1 & done
go over $limited -- python3 -c "import torch; torch.empty(20 << 30, dtype=torch.uint8, device='cuda')"
wait
cut -c1-300 "$out"/quarter?
go killed $limited -- sh -c "python3 -c 'import torch, os; x = torch.empty(6 << 30, dtype=torch.uint8, device=\"cuda\"); os.kill(os.getpid(), 9)'; $program torch-fill"
