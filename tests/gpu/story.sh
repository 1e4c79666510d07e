#!/bin/bash
# The story of a refusal, shares and attaching, on a card: story.sh BUILD. Needs python3 with PyTorch, JAX and CuPy.
build=$(realpath "${1:-build}"); here=$(realpath "$(dirname "$0")")
out=$(mktemp -d); trap 'rm -rf "$out"' EXIT
export XDG_RUNTIME_DIR="$out/runtime" MEMFIT_PROGRAM="$build/memfit" PYTHONPATH="$here/../../python"; mkdir -m 700 "$XDG_RUNTIME_DIR"; cd "$here" || exit 1
run="timeout 60 $build/memfit run"
fill='import torch
xs = []
while True: xs.append(torch.empty(96 << 20, dtype=torch.uint8, device="cuda"))'
$run --memory 8GiB --report "$out/oom.json" --trace "$out/trace" -- python3 -c "$fill"
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True $run --memory 8GiB --report "$out/expandable.json" -- python3 -c "$fill"
$run --memory 8GiB --report "$out/cache.json" -- python3 -c 'import torch
xs = [torch.empty(96 << 20, dtype=torch.uint8, device="cuda") for _ in range(70)]
del xs
y = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")'
$run --memory 8GiB --report "$out/cupy.json" -- python3 -c 'import cupy; x = [cupy.empty(1 << 28, dtype=cupy.float32) for _ in range(20)]'
hold='import torch, time; x = torch.empty(5 << 30, dtype=torch.uint8, device="cuda"); print(torch.cuda.mem_get_info(), flush=True); time.sleep(12)'
$run --share team --memory 12GiB -- python3 -c "$hold" & sleep 0.5; $run --share team -- python3 -c "$hold" & sleep 9
$run --set team --memory 12500MiB; $run --share team --report "$out/third.json" -- python3 -c "$hold"; wait
for what in torch jax cupy late; do echo "== attach, $what"; timeout 60 python3 attach_program.py $what; done
python3 - "$out" <<'P'
import glob, json, sys
for path in sorted(glob.glob(sys.argv[1] + '/*.json')):
    for d in json.load(open(path))['denied']: print(path.split('/')[-1], d['outcome'], 'tries', d['tries'], 'of', d['in_use_bytes'], 'named', sum(o['bytes'] for o in d['owners']), 'in', d['noted_in_ns'] / 1e3, 'us', [(o['library'], o['class'], o['bytes']) for o in d['owners']])
P
for t in "$out"/trace.*; do "$build/memfit" replay "$t" | head -1; done
