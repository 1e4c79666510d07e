#!/usr/bin/env python3
"""Training from files larger than any memory, and from JPEGs beside memory; one table each.

    bench_large.py sparse MEMFIT [FOLDER]                     sparse files of 300 GB (they take no disk): time to the first step, memory
    bench_large.py mobilenet MEMFIT FOLDER --tf PYTHON [--steps 12] [--rounds 3] [--side 224] [--batch 32]
                                                              MobileNetV2 from a folder of JPEGs (bench_data.py draw) and from the same
                                                              images in memory, memfit and Keras with tf.data, in turns

`sparse` needs nothing but Python; the model is the fixture tests/fixtures/pictures.keras. Resident memory (RssAnon + RssShmem) is
read from /proc every 20 ms. `mobilenet` shows the best round of each, and beside the ratio what decoding alone would cost: the processor
time of decoding over the processors, as a part of the step.
"""
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

from bench_flat import resident

SHAPE, BYTES = (24, 20, 3), 300 * 10 ** 9
HERE = os.path.dirname(os.path.abspath(__file__))


def npy_header(dtype, shape):
    text = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (dtype, shape)
    text += " " * (117 - len(text)) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def sparse_npy(path):
    count = BYTES // (24 * 20 * 3 * 4)
    head = npy_header("<f4", (count, *SHAPE))
    with open(path, "wb") as f:
        f.write(head)
        f.truncate(len(head) + count * 24 * 20 * 3 * 4)
    return count


def sparse_npz(path):
    """As numpy.savez writes it, with holes: x of 300 GB and one label a sample. Check sums of zeros are not computed."""
    count = BYTES // (24 * 20 * 3 * 4)
    central = b""
    with open(path, "wb") as f:
        for name, dtype, shape, each in (("x.npy", "<f4", (count, *SHAPE), 24 * 20 * 3 * 4), ("y.npy", "|u1", (count,), 1)):
            at, head = f.tell(), npy_header(dtype, shape)
            size = len(head) + count * each
            big = struct.pack("<HHQQ", 1, 16, size, size)
            f.write(struct.pack("<IHHHHHIIIHH", 0x04034b50, 45, 0, 0, 0, 33, 0, 0xffffffff, 0xffffffff, len(name), len(big)) + name.encode() + big + head)
            f.seek(count * each, 1)
            far = struct.pack("<HHQQQ", 1, 24, size, size, at)
            central += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014b50, 45, 45, 0, 0, 0, 33, 0, 0xffffffff, 0xffffffff, len(name), len(far), 0, 0, 0, 0, 0xffffffff)
            central += name.encode() + far
        at = f.tell()
        f.write(central)
        end = f.tell()
        f.write(struct.pack("<IQHHIIQQQQ", 0x06064b50, 44, 45, 45, 0, 0, 2, 2, len(central), at) + struct.pack("<IIQI", 0x07064b50, 0, end, 1) +
                struct.pack("<IHHHHIIH", 0x06054b50, 0, 0, 2, 2, 0xffffffff, 0xffffffff, 0))


def watch(command, seconds=None):
    """Runs it, for so long at most; its standard output and error, the most it held, and how long it ran."""
    began, most = time.time(), 0
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        p = subprocess.Popen(command, stdout=out, stderr=err)
        while p.poll() is None:
            most = max(most, resident(p.pid))
            if seconds and time.time() - began > seconds:
                p.send_signal(signal.SIGINT)
                p.wait()
            time.sleep(0.02)
        took = time.time() - began
        out.seek(0), err.seek(0)
        return out.read().decode(), err.read().decode(errors="replace"), most, took


def sparse(memfit, folder=None):
    folder = folder or tempfile.mkdtemp()
    model = os.path.join(HERE, "..", "tests", "fixtures", "pictures.keras")
    base = [memfit, "train", model, "--batch-size", "32", "--memory", "64MiB", "--json", "--quiet"]
    npy, npz = os.path.join(folder, "sparse.npy"), os.path.join(folder, "sparse.npz")
    count = sparse_npy(npy)
    sparse_npz(npz)
    print("| file | bytes | samples | order | first step ends after | planned | most, from outside | allocations in steps |\n|---|---|---|---|---|---|---|---|")
    for order in ("all", "100000"):
        for steps in (1, 200):
            out, err, most, _ = watch(base + ["--data", npz, "--steps", str(steps), "--shuffle-window", order])
            j = json.loads(out) if out.strip() else None
            if not j:
                print("| .npz | failed: %s |" % err.strip()[-200:])
                continue
            print("| .npz, %d steps | %d | %d | %s | %.2f s | %d | %d | %d |" % (steps, os.path.getsize(npz), count, "whole" if order == "all" else "windows of 100,000",
                  j["first_step_seconds"], j["planned_peak_bytes"], most, j["allocations_in_steps"]), flush=True)
    for seconds in (0.5, 1, 2, 3):  # predictions are written at the end: stopped, it says how far it came
        _, err, most, _ = watch([memfit, "predict", model, "--data", npy, "--batch-size", "32", "--memory", "64MiB"], seconds)
        done = re.search(r"stopped after (\d+) of", err)
        if done and int(done.group(1)) >= 32 or seconds == 3:
            print("| .npy, predict | %d | %d | as stored | within %s s (%s samples done) | | %d | |" % (os.path.getsize(npy), count, seconds, done and done.group(1), most))
            break
    os.remove(npy), os.remove(npz)


# ---- MobileNetV2 ----

MODEL = """
import os, sys; os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
import keras
m = keras.applications.MobileNetV2((int(sys.argv[2]), int(sys.argv[2]), 3), weights=None, classes=2)
m = keras.Sequential([keras.Input(m.input_shape[1:]), keras.layers.Rescaling(1 / 127.5, -1), m])
m.compile('sgd', 'sparse_categorical_crossentropy'); m.save(sys.argv[1])
"""
ARRAYS = """
import os, sys; os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
import keras, numpy as np
side = int(sys.argv[3])
d = keras.utils.image_dataset_from_directory(sys.argv[1], image_size=(side, side), shuffle=False, batch_size=64, verbose=0)
x, y = zip(*((a.numpy(), b.numpy()) for a, b in d))
np.savez(sys.argv[2], x=np.concatenate(x), y=np.concatenate(y))
"""
KERAS = """
import os, sys, time, resource; os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
import keras, numpy as np, tensorflow as tf
model, where, side, batch, steps = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
m = keras.saving.load_model(model)
if where.endswith('.npz'):
    a = np.load(where)
    d = tf.data.Dataset.from_tensor_slices((a['x'], a['y'])).shuffle(len(a['y'])).repeat().batch(batch).prefetch(tf.data.AUTOTUNE)
else:
    d = keras.utils.image_dataset_from_directory(where, image_size=(side, side), batch_size=batch, verbose=0).repeat().prefetch(tf.data.AUTOTUNE)
it = iter(d)
m.make_train_function(); f = m.train_function
f(it)
t = []
for _ in range(steps):
    b = time.time(); f(it); t.append(time.time() - b)
print(sorted(t)[len(t) // 2] * 1000)
"""


def mobilenet(memfit, folder, o):
    side, batch, steps = o.get("--side", "224"), o.get("--batch", "32"), int(o.get("--steps", 12))
    work = tempfile.mkdtemp()
    model, arrays = os.path.join(work, "mobilenet.keras"), os.path.join(work, "arrays.npz")
    subprocess.run([o["--tf"], "-c", MODEL, model, side], check=True, capture_output=True)
    subprocess.run([o["--tf"], "-c", ARRAYS, folder, arrays, side], check=True, capture_output=True)
    processors, rows = os.cpu_count(), {}
    ways = [("all processors for steps", []), ("one processor left for decoding", ["--threads", str(processors - 1), "--workers", "1"])]
    for _ in range(int(o.get("--rounds", 3))):
        for where in (arrays, folder):
            for name, more in ways if processors > 1 else ways[:1]:
                out, err, most, _ = watch([memfit, "train", model, "--data", where, "--batch-size", batch, "--steps", str(steps + 1), "--epochs", "1000", "--json", "--quiet"] + more)
                j = json.loads(out)
                rows.setdefault(("memfit, " + name, where), []).append((j["step_ms"], j["decode_ms"], j["input_share"], j["planned_peak_bytes"], most))
            out = subprocess.run([o["--tf"], "-c", KERAS, model, where, side, batch, str(steps)], capture_output=True, text=True)
            numbers = re.findall(r"^[\d.]+$", out.stdout, re.M)
            rows.setdefault(("Keras and tf.data", where), []).append((float(numbers[-1]) if numbers else float("nan"), 0, 0, 0, 0))
    print("MobileNetV2, %s x %s, batch %s, %d steps, %d processors, %s" % (side, side, batch, steps, processors, time.strftime("%Y-%m-%d")))
    print("| who | ms a step from memory | from JPEGs | ratio | with the cost of decoding alone | decoding, ms an image | waited | planned, most from outside |\n|---|---|---|---|---|---|---|---|")
    for who in dict.fromkeys(k[0] for k in rows):
        a, b = min(rows[who, arrays]), min(rows[who, folder])
        alone = (a[0] + b[1] * int(batch) / processors) / a[0] if b[1] else 0
        print("| %s | %.0f | %.0f | %.3f | %s | %.2f | %.0f %% | %d, %d |" % (who, a[0], b[0], b[0] / a[0], "%.3f" % alone if alone else "", b[1], 100 * b[2], b[3], b[4]), flush=True)


if __name__ == "__main__":
    if len(sys.argv) >= 3 and sys.argv[1] == "sparse":
        sparse(*sys.argv[2:4])
    elif len(sys.argv) >= 6 and sys.argv[1] == "mobilenet":
        mobilenet(sys.argv[2], sys.argv[3], dict(zip(sys.argv[4::2], sys.argv[5::2])))
    else:
        sys.exit(__doc__)
