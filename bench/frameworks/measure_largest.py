#!/usr/bin/env python3
"""The largest batch that really runs in a part of a card, beside the predicted one, under Keras on torch.

    measure_largest.py draw DIR SEED                                 draws eight models that the margin was not fitted to, writes their files, prints MODEL:PRECISION
    measure_largest.py ask CASES DIR FREE_MIB MODEL:PRECISION...     appends what memfit predicts for the files of DIR; MEMFIT names the program
    measure_largest.py run OUT CASES [--hints FILE] [--most SECONDS] a second process holds all of the card but FREE_MIB, and steps are tried
    measure_largest.py governed OUT CASES [--at-once N] [--most SECONDS] [--card MIB]
                                                                     the same under `memfit run --memory FREE_MIB`, several at once: N, and no more than --card holds
    measure_largest.py judge OUT

The predicted batch is tried, then the first that would make it more than 8 % too small, and further on until one runs and a larger one fails; what lies between is
halved down to one sample, or a percent. A model has one process, forked after PyTorch was read, for all its sizes, the smallest first: the holder gives some back in between. Cases that OUT has are not run
again. --hints names a file of results to begin the search from instead of the prediction.

A try is a training of four steps, of more where there are few layers: Python's collector, which frees what earlier steps left, comes once in so many. Keras runs an LSTM step
by step, without a word, where cuDNN's call finds no memory: such a try counts as failed, and is named in "gave_up".
"""
import argparse
import gc
import json
import os
import random
import subprocess
import sys
import time

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, here)
RESERVE_MIB = 623  # of an H200's memory that the driver keeps: in memfit's fixed cost, in no process's figure
FITTED = {"cnn", "ResNet50", "bn_cnn", "VGG16", "transformer", "InceptionV3", "DenseNet121"}  # the margin at the band's upper end was chosen by these
STEPS, MOST_STEPS, LAYERS = 4, 20, 240  # steps of a try at least and at most, and layers in all of them
HOLDER = """
import ctypes, sys, time
c = ctypes.CDLL("libcuda.so.1")
c.cuInit(0); d = ctypes.c_int(); c.cuDeviceGet(ctypes.byref(d), 0); x = ctypes.c_void_p(); c.cuDevicePrimaryCtxRetain(ctypes.byref(x), d); c.cuCtxSetCurrent(x)
blocks = []  # (address, MiB)
def left():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    c.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return free.value >> 20
def take(mib):
    while mib > 0:
        at, size = ctypes.c_uint64(), min(mib, 1024)
        if c.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size << 20)):
            break
        blocks.append((at, size))
        mib -= size
def give(mib):
    while mib > 0 and blocks:
        at, size = blocks.pop()
        c.cuMemFree_v2(at)
        mib -= size
for line in sys.stdin:
    what, mib = line.split()
    if what == "more":
        blocks.sort(key=lambda b: b[1])
        give(int(mib))
    settled = 0
    for _ in range(60 if what == "only" else 0):  # a process that has just ended may still be there
        over = left() - int(mib)
        settled = settled + 1 if abs(over) <= 4 else 0
        if settled == 4:
            break
        take(over)
        if over < -4:
            give(-over)
        time.sleep(0.1)
    print(left(), flush=True)
"""


def hold():
    """A process that holds what leave() tells it to."""
    return subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def leave(holder, what, mib):
    """Asked `only` N MiB while nobody else is on the card, the holder takes the rest; `more` N gives that back. Returns MiB that are free then."""
    holder.stdin.write("%s %d\n" % (what, mib))
    holder.stdin.flush()
    return int(holder.stdout.readline())


def read(path):
    try:
        return [json.loads(line) for line in open(path)]
    except FileNotFoundError:
        return []


def key(row):
    return row["model"], row["precision"], row["free_mib"]


def draw(folder, seed):
    os.environ["KERAS_BACKEND"] = "torch"
    import framework_cases
    import keras
    framework_cases.empty_weights()
    chance = random.Random(seed)
    names = ["%s@%d" % (name, chance.choice(framework_cases.APPLICATIONS[name][0])) for name in chance.sample(sorted(set(framework_cases.APPLICATIONS) - FITTED), 6)]
    for name in chance.sample(sorted(set(framework_cases.SIZES) - FITTED), 2):
        names.append(name + "@" + ",".join("%s=%d" % (k, chance.choice(v)) for k, v in sorted(framework_cases.SIZES[name][0].items())))
    for i, name in enumerate(names):
        precision = ("float32", "mixed_bfloat16")[i % 2]
        with open(os.path.join(folder, "%s-%s.json" % (name, precision)), "w") as f:
            f.write(framework_cases.build(keras, name, precision).to_json())
        print("%s:%s" % (name, precision))


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


def watch_cudnn(keras_rnn):
    """What Keras makes of a recurrent layer whose call failed is not what was asked for. Returns the list that such calls are put into."""
    given_up = []

    def watched(call):
        def wrapped(*a, **k):
            try:
                return call(*a, **k)
            except Exception as e:
                given_up.append(str(e)[:200])
                raise
        return wrapped
    for name in ("_cudnn_lstm", "_cudnn_gru"):
        setattr(keras_rnn, name, watched(getattr(keras_rnn, name)))
    return given_up


def runs(torch, framework_cases, model, name, batch):
    import numpy as np
    model.zero_grad()
    gc.collect()
    torch.cuda.empty_cache()
    try:
        x, y = framework_cases.data(model, name, 1, 1)
        steps = max(STEPS, min(MOST_STEPS, LAYERS // len(model.layers)))
        x, y = (np.broadcast_to(a[:1], (steps * batch,) + a.shape[1:]) for a in (x, y))  # the values do not matter
        model.fit(x, y, batch_size=batch, epochs=1, verbose=0, shuffle=False)
        torch.cuda.synchronize()
        return True
    except torch.OutOfMemoryError:
        return False
    except RuntimeError as e:
        if "memory" in str(e) or "CUDNN" in str(e) or "CUBLAS" in str(e):
            return False
        raise


def search(tries, start, apart):
    """The largest batch that runs, and the smallest that was seen to fail, at most a percent apart."""
    runs_to, fails_from, at = 0, 0, start
    while not (runs_to and fails_from):
        if tries(at):
            runs_to, at = at, at + apart
        else:
            fails_from, at = at, at - apart
        if at < 1:
            return 0, fails_from
        apart *= 2
    while fails_from - runs_to > max(1, start // 100):
        at = (runs_to + fails_from) // 2
        if tries(at):
            runs_to = at
        else:
            fails_from = at
    return runs_to, fails_from


def find(rows, out, holder, hints):
    """One model in this process, at every size."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import torch
    import framework_cases
    model, start, given_up = None, time.time(), watch_cudnn(sys.modules["keras.src.backend.torch.rnn"])
    for row in rows:
        if holder:
            row["left_mib"] = leave(holder, *(("more", row["free_mib"] - rows[0]["free_mib"]) if model else ("only", row["free_mib"])))
        seen = []
        try:
            model = model or framework_cases.build(keras, row["model"], row["precision"])

            def tries(batch):
                seen.append(batch)
                given_up.clear()
                ran = runs(torch, framework_cases, model, row["model"], batch)
                if ran and given_up:
                    row.setdefault("gave_up", []).append(batch)
                return ran and not given_up
            hint, edge = hints.get(key(row)), int(row["predicted"] / 0.92) + 1
            row["largest"], row["fails"] = search(tries, hint, max(1, hint // 100)) if hint else search(tries, row["predicted"], edge - row["predicted"])
        except Exception as e:  # the next size may still run
            row["error"] = ("%s: %s" % (type(e).__name__, e))[:300]
        row.update(tried=seen, seconds=round(time.time() - start, 1), versions={"torch": torch.__version__, "keras": keras.__version__})
        start = time.time()
        with open(out, "a") as f:
            f.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def missing(out, cases):
    """[[rows of one model, the smallest size first]]"""
    have, groups = {key(r) for r in read(out)}, {}
    for row in sorted(read(cases), key=lambda r: r["free_mib"]):
        if key(row) not in have:
            groups.setdefault((row["model"], row["precision"]), []).append(row)
    return list(groups.values())


def run(out, cases, hints, most):
    os.environ["KERAS_BACKEND"] = "torch"
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asking whether there is a card must not make a context before the fork
    begin, groups = time.time(), missing(out, cases)
    if not groups:
        return
    holder = hold()
    import keras  # noqa: F401
    import torch  # noqa: F401
    try:
        for rows in groups:
            if time.time() - begin > most:
                break
            child = os.fork()
            if not child:
                find(rows, out, holder, {key(r): r["largest"] for r in read(hints) if r.get("largest")})
                os._exit(0)
            os.waitpid(child, 0)
    finally:
        holder.kill()


def governed(out, cases, at_once, most, card_mib):
    """Every case alone in a program of its own under memfit's limit."""
    memfit, begin, children = os.environ.get("MEMFIT", "build/memfit"), time.time(), []
    for row in sorted((row for rows in missing(out, cases) for row in rows), key=lambda r: r["free_mib"]):
        def taken():
            running = [mib for child, mib in children if child.poll() is None]
            return len(running) >= at_once or sum(running) + row["free_mib"] > card_mib
        while taken():
            time.sleep(0.2)
        if time.time() - begin > most:
            break
        children.append((subprocess.Popen([memfit, "run", "--quiet", "--memory", "%dMiB" % row["free_mib"], "--", sys.executable, os.path.abspath(__file__), "one", out,
                                           json.dumps(row)]), row["free_mib"]))
    for child, _ in children:
        child.wait()


def judge(out):
    rows, errors = read(out), []
    for r in sorted(rows, key=lambda r: (r["model"], r["free_mib"])):
        if not r.get("largest"):
            print("%-34s %-16s %6d MiB  predicted %5d  %s" % (*key(r), r["predicted"], r.get("error", "nothing runs")[:60]))
            continue
        errors.append(100 * (r["predicted"] / r["largest"] - 1))
        print("%-34s %-16s %6d MiB  predicted %5d  largest %5d (%d fails)  %+.1f %%" % (*key(r), r["predicted"], r["largest"], r["fails"], errors[-1]))
    if errors:
        print("%d cases, %d within -8 %% to +0: %+.1f to %+.1f %%" % (len(rows), sum(-8 <= e <= 0 for e in errors), min(errors), max(errors)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("draw", "ask", "run", "governed", "one", "judge"))
    parser.add_argument("rest", nargs="+")
    parser.add_argument("--hints", default="")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--most", type=float, default=1e9)
    parser.add_argument("--card", type=int, default=1 << 30)
    a = parser.parse_args()
    if a.what == "draw":
        draw(*a.rest)
    elif a.what == "ask":
        ask(a.rest[0], a.rest[1], int(a.rest[2]), a.rest[3:])
    elif a.what == "run":
        run(a.rest[0], a.rest[1], a.hints, a.most)
    elif a.what == "governed":
        governed(a.rest[0], a.rest[1], a.at_once, a.most, a.card)
    elif a.what == "one":
        find([json.loads(a.rest[1])], a.rest[0], None, {})
    else:
        judge(a.rest[0])


if __name__ == "__main__":
    main()
