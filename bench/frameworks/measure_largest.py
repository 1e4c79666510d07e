#!/usr/bin/env python3
"""The largest batch that really runs in a part of a card, beside the predicted one, under Keras on torch.

    measure_largest.py ask CASES DIR FREE_MIB MODEL:PRECISION...     plans the files of DIR (frameworks_truth.py models); MEMFIT names the program
    measure_largest.py run OUT CASES [--pool] [--at-once N]
    measure_largest.py judge OUT

From the predicted batch on, the batch grows by 2 % until a step fails, or shrinks by 2 % until one runs. A second process takes all of the card but FREE_MIB
before, or, with --pool, PyTorch's pool is kept to FREE_MIB less what NVML shows beside it (measure_lines.py), for a card that others use at the same time.
"""
import argparse
import gc
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
RESERVE_MIB = 623  # of an H200's memory that the driver keeps: in memfit's fixed cost, in no process's figure
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


def ask(out, folder, free_mib, cases):
    memfit = os.environ.get("MEMFIT", "build/memfit")
    with open(out, "a") as f:
        for text in cases:
            name, precision = text.split(":")
            got = subprocess.run([memfit, "plan", os.path.join(folder, "%s-%s.json" % (name, precision)), "--batch-size", "64", "--for", "h200", "--memory",
                                  "%dMiB" % (free_mib + RESERVE_MIB), "--runtime", "torch", "--json"], capture_output=True, text=True, check=False)
            row = {"model": name, "precision": precision, "free_mib": free_mib, "predicted": json.loads(got.stdout)["in_framework"]["max_batch"]}
            print(row)
            f.write(json.dumps(row) + "\n")


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


def find(row, pool, out):
    import keras
    import torch
    import framework_cases
    import measure_lines
    start, tries = time.time(), []
    if pool:
        row["beside_mib"] = measure_lines.keep_to(torch, row["free_mib"], 8) >> 20
    batch = row["predicted"]
    ok = runs(keras, torch, framework_cases, row["model"], row["precision"], batch)
    best = batch if ok else 0
    while len(tries) < 10:
        step = max(1, batch // 50)
        batch = batch + step if ok else batch - step
        tries.append(batch)
        if batch < 1 or runs(keras, torch, framework_cases, row["model"], row["precision"], batch) != ok:
            best = best if ok else batch
            break
        best = batch if ok else best
    row.update(largest=best, tries=len(tries) + 1, ended=len(tries) < 10, seconds=round(time.time() - start, 1))
    with open(out, "a") as f:
        f.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def run(out, cases, pool, at_once):
    os.environ["KERAS_BACKEND"] = "torch"
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asking whether there is a card must not make a context before the fork
    import keras  # noqa: F401
    import torch  # noqa: F401
    children, rows = set(), [json.loads(line) for line in open(cases)]
    for row in rows:
        while len(children) >= (at_once if pool else 1):
            children.discard(os.wait()[0])
        child = os.fork()
        if child:
            children.add(child)
            continue
        holder = None if pool else hold(row["free_mib"])
        try:
            find(row, pool, out)
        except Exception as e:  # the next case may still run
            print(row, e)
        finally:
            if holder:
                holder.kill()
        os._exit(0)
    for child in children:
        os.waitpid(child, 0)


def judge(out):
    for r in map(json.loads, open(out)):
        print("%-16s %-16s %6d MiB  predicted %5d  largest %5d%s  %+.1f %%" % (r["model"], r["precision"], r["free_mib"], r["predicted"], r["largest"],
                                                                           "" if r["ended"] else " or more", 100 * (r["predicted"] / r["largest"] - 1)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ask", "run", "judge"))
    parser.add_argument("rest", nargs="+")
    parser.add_argument("--pool", action="store_true")
    parser.add_argument("--at-once", type=int, default=1)
    a = parser.parse_args()
    if a.what == "ask":
        ask(a.rest[0], a.rest[1], int(a.rest[2]), a.rest[3:])
    elif a.what == "run":
        run(a.rest[0], a.rest[1], a.pool, a.at_once)
    else:
        judge(a.rest[0])


if __name__ == "__main__":
    main()
