#!/usr/bin/env python3
"""Is memory flat? A data set of 20 times the limit (decoded), 3 epochs, from every kind of source, measured from outside.

    bench_flat.py make FOLDER PICTURES          the same samples as every kind of file (needs NumPy, h5py, TensorFlow); PICTURES: tests/fixtures/pictures
    bench_flat.py run MEMFIT MODEL FOLDER [NAME...]        MODEL: tests/fixtures/pictures.keras

`run` reads RssAnon + RssShmem of the process from /proc every 10 ms, and shows the most of each third of the run, what was planned and
the limit. `spread` is what the thirds after the first differ by. Models for sequences and random layers are taken from beside MODEL.
"""
import glob
import json
import os
import subprocess
import sys
import tempfile
import time

LIMIT, TIMES, SHAPE = 8 << 20, 20, (24, 20, 3)
COUNT = LIMIT * TIMES // (24 * 20 * 3 * 4)


def make(folder, pictures):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import h5py
    import numpy as np
    import tensorflow as tf
    os.makedirs(folder, exist_ok=True)
    at = lambda name: os.path.join(folder, name)
    x = np.random.default_rng(1).integers(0, 256, (COUNT, *SHAPE)).astype(np.float32)
    y = (np.arange(COUNT) % 2).astype(np.int32)
    np.savez(at("stored.npz"), x=x, y=y)
    np.savez_compressed(at("packed.npz"), x=x, y=y)
    with h5py.File(at("plain.h5"), "w") as f:
        f["x"], f["y"] = x, y
    with open(at("stream.bin"), "wb") as f:  # for standard input: batches of inputs and targets in turns
        for i in range(0, COUNT, 256):
            np.save(f, x[i:i + 256]), np.save(f, y[i:i + 256])
    with h5py.File(at("chunked.h5"), "w") as f:
        f.create_dataset("x", data=x, chunks=(64, *SHAPE), compression="lzf")
        f["y"] = y
    for i in range(8):
        part = slice(i * COUNT // 8, (i + 1) * COUNT // 8)
        np.savez(at("part-%d.npz" % i), x=x[part], y=y[part])
    line = ",".join("%d" % v for v in x[0].ravel()[:1440])
    with open(at("table.csv"), "w") as f:
        for i in range(COUNT):
            f.write(line + ",%d\n" % y[i])
    jpegs = sorted(glob.glob(os.path.join(pictures, "jpeg", "*.[jJ]*")))
    for i in range(COUNT):
        name = at("folder/%s/%06d.jpg" % ("ab"[i % 2], i))
        os.makedirs(os.path.dirname(name), exist_ok=True)
        kept = at("kept-%d.jpg" % (i % len(jpegs)))
        if not os.path.exists(kept):
            open(kept, "wb").write(open(jpegs[i % len(jpegs)], "rb").read())
        os.link(kept, name)
    ragged = np.minimum(1 + np.random.default_rng(2).geometric(0.1, 60 * COUNT // 24), 60)  # sequences of whole numbers
    ints = lambda v: tf.train.Feature(int64_list=tf.train.Int64List(value=v))
    with tf.io.TFRecordWriter(at("sequences.tfrecord")) as w:
        for i, n in enumerate(ragged):
            feature = {"x": ints([1 + (i + k) % 29 for k in range(n)]), "y": ints([i % 2])}
            w.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    splits = np.concatenate([[0], np.cumsum(ragged)])
    np.savez(at("sequences.npz"), x=(np.arange(splits[-1]) % 29 + 1).astype("i4"), x_row_splits=splits, y=(np.arange(len(ragged)) % 2).astype("i4"))
    for name, packed in (("records.tfrecord", None), ("packed.tfrecord", "GZIP")):
        with tf.io.TFRecordWriter(at(name), packed) as w:
            for i in range(COUNT):
                image = open(at("kept-%d.jpg" % (i % len(jpegs))), "rb").read()
                feature = {"image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])), "label": ints([i % 2])}
                w.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def resident(pid):
    try:
        lines = open("/proc/%d/status" % pid).read().splitlines()
    except OSError:
        return 0
    return sum(int(l.split()[1]) << 10 for l in lines if l.startswith(("RssAnon", "RssShmem")))


def watch(command, given):
    seen, began = [], time.time()
    with tempfile.TemporaryFile() as out:
        p = subprocess.Popen(command, stdin=given, stdout=out, stderr=subprocess.DEVNULL)
        while p.poll() is None:
            seen.append((time.time() - began, resident(p.pid)))
            time.sleep(0.01)
        out.seek(0)
        return json.loads(out.read() or b"{}"), [s for s in seen if s[1]]


# Name and what is asked for beside; sequences have a model of their own, beside the one that is given.
SOURCES = [("stored.npz", []), ("packed.npz", []), ("plain.h5", []), ("chunked.h5", []), ("part-*.npz", []), ("table.csv", []), ("stream.bin", []),
           ("folder", []), ("folder", ["--augment", "workers"]), ("records.tfrecord", []), ("packed.tfrecord", []), ("sequences.npz", ["--bucket"]),
           ("sequences.tfrecord", ["--bucket"])]


def run(memfit, model, folder, only):
    print("| source | decoded | limit | planned | measured by itself | most, by thirds of the run (outside) | spread | above planned | allocations in steps |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, more in [s for s in SOURCES if not only or s[0] in only]:
        path, given = os.path.join(folder, name), None
        taken = model
        if more == ["--bucket"]:
            taken = os.path.join(os.path.dirname(model), "sequences", "one.keras")
        elif more:
            taken = os.path.join(os.path.dirname(model), "augment.keras")
        if name == "stream.bin":
            given, path = open(path, "rb"), "-"
        j, seen = watch([memfit, "train", taken, "--data", path, "--epochs", "3", "--memory", str(LIMIT), "--batch-size", "32", "--threads", "1", "--workers", "2",
                         "--json"] + more, given)
        label = " ".join([name] + more)
        if not j:
            print("| %s | failed |" % label)
            continue
        steps = [s for s in seen if s[1] > j["planned_peak_bytes"] * 3 // 4] or seen  # from admission on
        first, last = steps[0][0], steps[-1][0]
        thirds = [max([m for t, m in steps if first + (last - first) * k / 3 <= t <= first + (last - first) * (k + 1) / 3] or [0]) for k in range(3)]
        spread = abs(thirds[2] - thirds[1]) / max(thirds[1], 1) * 100
        decoded = 60 * COUNT // 24 * 60 * 4 if "--bucket" in more else COUNT * 24 * 20 * 3 * 4
        print("| %s | %d | %d | %d | %d | %s | %.2f %% | %s | %d |" % (label, decoded, LIMIT, j["planned_peak_bytes"], j["measured_peak_bytes"],
              ", ".join("%d" % t for t in thirds), spread, "no" if max(thirds) <= j["planned_peak_bytes"] else "YES", j["allocations_in_steps"]), flush=True)


if __name__ == "__main__":
    if len(sys.argv) >= 4 and sys.argv[1] == "make":
        make(sys.argv[2], sys.argv[3])
    elif len(sys.argv) >= 5 and sys.argv[1] == "run":
        run(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
    else:
        sys.exit(__doc__)
