#!/usr/bin/env python3
"""The largest batch that really runs in the memory that another process leaves free, beside the predicted one.

    measure_largest.py OUT FREE_MIB MODEL:PRECISION:PREDICTED...

A second process takes all of the card but FREE_MIB, before this one makes its context. From the predicted batch on, the batch grows
by 2 % until a step fails, or shrinks by 2 % until one runs.
"""
import gc
import json
import os
import subprocess
import sys
import time

os.environ["KERAS_BACKEND"] = "torch"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
HOLDER = """
import ctypes, sys, time
c = ctypes.CDLL("libcuda.so.1")
c.cuInit(0); d = ctypes.c_int(); c.cuDeviceGet(ctypes.byref(d), 0); x = ctypes.c_void_p(); c.cuCtxCreate_v2(ctypes.byref(x), 0, d)
free, total, p = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
c.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
r = c.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(free.value - (%d << 20)))
c.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print(r, free.value >> 20, total.value >> 20, flush=True)
time.sleep(600)
"""


def hold(free_mib):
    """A process that holds the rest of the card; its figures lie in `left`."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER % free_mib], stdout=subprocess.PIPE, text=True)
    holder.left = holder.stdout.readline().split()
    return holder


def runs(keras, torch, framework_cases, name, precision, batch):
    gc.collect()
    torch.cuda.empty_cache()
    try:
        model = framework_cases.build(keras, name, precision)
        x, y = framework_cases.data(model, name, batch, 2)
        model.fit(x, y, batch_size=batch, epochs=1, verbose=0, shuffle=False)
        torch.cuda.synchronize()
        return True
    except torch.OutOfMemoryError:
        return False
    except RuntimeError as e:
        if "memory" in str(e) or "CUDNN" in str(e) or "CUBLAS" in str(e):
            return False
        raise


def main(out, free_mib, cases):
    holder = hold(free_mib)
    try:
        import keras
        import torch
        import framework_cases
        for text in cases:
            name, precision, predicted = text.split(":")
            start, tries = time.time(), []
            batch = int(predicted)
            ok = runs(keras, torch, framework_cases, name, precision, batch)
            best = batch if ok else 0
            while len(tries) < 10:
                step = max(1, batch // 50)
                batch = batch + step if ok else batch - step
                tries.append(batch)
                if batch < 1 or runs(keras, torch, framework_cases, name, precision, batch) != ok:
                    best = best if ok else batch
                    break
                best = batch if ok else best
            row = {"case": text, "free_mib": holder.left[1], "predicted": int(predicted), "largest": best, "tries": len(tries) + 1,
                   "seconds": round(time.time() - start, 1)}
            with open(out, "a") as f:
                f.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
    finally:
        holder.kill()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
