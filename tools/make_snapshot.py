#!/usr/bin/env python3
"""A memory snapshot as PyTorch writes them, of N events in steps that rise and fall: make_snapshot.py N FILE [SEED]."""
import pickle
import random
import sys

n, path = int(sys.argv[1]), sys.argv[2]
random.seed(int(sys.argv[3]) if len(sys.argv) > 3 else 7)
layers = 200
frames = []
for l in range(layers):
    for what in ("forward", "backward", "attention", "mlp", "norm"):
        frames.append([{"name": what, "filename": "/home/u/project/model.py", "line": 10 + l},
                       {"name": "_call_impl", "filename": "/usr/lib/python3/torch/nn/modules/module.py", "line": 1501},
                       {"name": "block_%d" % (l // 10), "filename": "/home/u/project/model.py", "line": 400 + l // 10},
                       {"name": "train_step", "filename": "/home/u/project/train.py", "line": 88},
                       {"name": "main", "filename": "/home/u/project/train.py", "line": 120}])
trace, addr, t = [], 1 << 40, 1700000000000000
steps = max(3, n // 30000)
per = n // steps
free_addr = []
for s in range(steps):
    up = per // 2
    ids = []
    for i in range(up):
        k = (i * len(frames)) // up
        size = random.choice((512, 4096, 65536, 1 << 20, 3 << 20)) * random.randint(1, 4)
        a = free_addr.pop() if free_addr else addr
        if a == addr:
            addr += 16 << 20
        t += random.randint(0, 3)
        trace.append({"action": "alloc", "addr": a, "size": size, "stream": 0, "time_us": t, "frames": frames[k]})
        ids.append((a, size, frames[k]))
    ids.pop(0)  # is kept: something grows
    for a, size, f in reversed(ids):
        t += random.randint(0, 3)
        trace.append({"action": "free_completed", "addr": a, "size": size, "stream": 0, "time_us": t, "frames": f})
        free_addr.append(a)
with open(path, "wb") as f:
    pickle.dump({"segments": [], "device_traces": [trace]}, f)
print(len(trace))
