#!/usr/bin/env python3
"""Images decoded, resized and fed a second: memfit, tf.data and PyTorch's DataLoader in the same run, in turns.

    bench_data.py draw FOLDER N HEIGHT WIDTH                           a folder of JPEGs (needs Pillow and NumPy)
    bench_data.py records FOLDER FILE.tfrecord                         the same as records (needs TensorFlow)
    bench_data.py run MEMFIT FOLDER [--tfrecord FILE] [--tf PYTHON] [--torch PYTHON] [--rounds 5] [--counts 0,1,2,4]

`run` needs a TensorFlow to make its model: global average pooling and a dense layer, so that little but input is measured. Each
peer reads every image once a round, at each of its worker counts; shown are the best round of its best count (a shared machine
only ever takes time away) and processor seconds a thousand images, which other jobs change little.
"""
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

SIDE, BATCH = 224, 32

TF = """
import os, sys, time; os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
import resource, tensorflow as tf, keras
where, side, batch, rounds, workers = sys.argv[1], *map(int, sys.argv[2:6])
calls = workers if workers else tf.data.AUTOTUNE
if where.endswith('.tfrecord'):
    spec = {'image/encoded': tf.io.FixedLenFeature([], tf.string), 'image/class/label': tf.io.FixedLenFeature([], tf.int64)}
    def parse(r):
        e = tf.io.parse_single_example(r, spec)
        i = tf.image.decode_jpeg(e['image/encoded'], channels=3)
        return tf.image.resize(i, (side, side)), e['image/class/label']
    d = tf.data.TFRecordDataset(where).map(parse, num_parallel_calls=calls).batch(batch).prefetch(tf.data.AUTOTUNE)
else:
    files = tf.data.Dataset.list_files(where + '/*/*.jpg', shuffle=False)
    def load(p):
        return tf.image.resize(tf.image.decode_jpeg(tf.io.read_file(p), channels=3), (side, side))
    d = files.map(load, num_parallel_calls=calls).batch(batch).prefetch(tf.data.AUTOTUNE)
def once():
    n = 0
    for b in d:
        n += int((b[0] if isinstance(b, tuple) else b).shape[0])
    return n
once()
for _ in range(rounds):
    c, t = resource.getrusage(resource.RUSAGE_SELF), time.time()
    n = once()
    t, e = time.time() - t, resource.getrusage(resource.RUSAGE_SELF)
    print(n / t, (e.ru_utime + e.ru_stime - c.ru_utime - c.ru_stime) / n * 1000)
"""

TORCH = """
import sys, time, glob, resource, numpy as np, torch
from PIL import Image
where, side, batch, rounds, workers = sys.argv[1], *map(int, sys.argv[2:6])
torch.set_num_threads(1)
class Folder(torch.utils.data.Dataset):
    def __init__(self): self.files = sorted(glob.glob(where + '/*/*.jpg'))
    def __len__(self): return len(self.files)
    def __getitem__(self, i):
        im = Image.open(self.files[i]).convert('RGB').resize((side, side), Image.BILINEAR)
        return torch.from_numpy(np.asarray(im, dtype=np.float32))
def usage():
    a, b = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return a.ru_utime + a.ru_stime + b.ru_utime + b.ru_stime
if __name__ == '__main__':
    for _ in range(rounds + 1):
        l = torch.utils.data.DataLoader(Folder(), batch_size=batch, num_workers=workers)
        it = iter(l)
        c, t = usage(), time.time()
        n = sum(int(b.shape[0]) for b in it)
        t = time.time() - t
        del it, l
        if _: print(n / t, (usage() - c) / n * 1000)
"""

MODEL = """
import os, sys; os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
import keras
x = keras.Input((%d, %d, 3)); y = keras.layers.Dense(2, activation='softmax')(keras.layers.GlobalAveragePooling2D()(x))
m = keras.Model(x, y); m.compile('sgd', 'sparse_categorical_crossentropy'); m.save(sys.argv[1])
""" % (SIDE, SIDE)


def draw(root, count, height, width):
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(1)
    for i in range(int(count)):
        h, w = (int(s) + int(rng.integers(-int(s) // 8, int(s) // 8 + 1)) for s in (height, width))
        y, x = np.mgrid[0:h, 0:w]
        a = np.stack([128 + 100 * np.sin(x / (7 + i % 9)), 128 + 90 * np.cos(y / (5 + i % 7)), (x * 3 + y * 5) % 256], -1)
        small = rng.normal(0, 25, (h // 4 + 1, w // 4 + 1, 3)).repeat(4, 0).repeat(4, 1)[:h, :w]
        os.makedirs(f"{root}/c{i % 2}", exist_ok=True)
        Image.fromarray(np.clip(a + small, 0, 255).astype(np.uint8)).save(f"{root}/c{i % 2}/{i:06d}.jpg", quality=90)


def records(root, path):
    import glob
    import tensorflow as tf

    with tf.io.TFRecordWriter(path) as w:
        for name in sorted(glob.glob(root + "/*/*.jpg")):
            f = {"image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[open(name, "rb").read()])),
                 "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(name.split("/")[-2][1:])]))}
            w.write(tf.train.Example(features=tf.train.Features(feature=f)).SerializeToString())


def memfit_once(program, model, where, workers):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run([program, "predict", model, "--data", where, "--batch-size", str(BATCH), "--json", "--quiet"] +
                         (["--workers", str(workers)] if workers else []), capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    r = json.loads(out.stdout)
    count = r["samples_per_second"] and memfit_once.count
    cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / count * 1000
    return r["samples_per_second"], cpu, r["measured_peak_bytes"]


def peer(python, code, where, workers, rounds):
    with tempfile.NamedTemporaryFile("w", suffix=".py") as f:
        f.write(code)
        f.flush()
        out = subprocess.run([python, f.name, where, str(SIDE), str(BATCH), str(rounds), str(workers)], capture_output=True, text=True)
    if out.returncode:
        print(out.stderr[-500:], file=sys.stderr)
        return []
    return [tuple(map(float, line.split())) for line in out.stdout.splitlines() if line[:1].isdigit()]


def run(argv):
    program, folder = argv[0], argv[1]
    o = dict(zip(argv[2::2], argv[3::2]))
    rounds = int(o.get("--rounds", 5))
    memfit_once.count = sum(len(f) for _, _, f in os.walk(folder))
    model = os.path.join(tempfile.mkdtemp(), "mean.keras")
    subprocess.run([o["--tf"], "-c", MODEL, model], check=True, capture_output=True)
    rows = []
    for kind, where in [("folder", folder)] + ([("TFRecord", o["--tfrecord"])] if "--tfrecord" in o else []):
        results = {}
        for _ in range(rounds):
            for workers in map(int, o.get("--counts", "0,1,2,4").split(",")):
                results.setdefault(("memfit", workers), []).append(memfit_once(program, model, where, workers)[:2])
                results.setdefault(("tf.data", workers), []).extend(peer(o["--tf"], TF, where, workers, 1))
                if "--torch" in o and kind == "folder" and workers:
                    results.setdefault(("DataLoader", workers), []).extend(peer(o["--torch"], TORCH, where, workers, 1))
        for name in ("memfit", "tf.data", "DataLoader"):
            mine = [(max(r)[0], min(c for _, c in r), w) for (n, w), r in results.items() if n == name and r]
            if mine:
                best = max(mine)
                rows.append((kind, name, best[0], min(m[1] for m in mine), best[2] or "auto"))
    print(f"{memfit_once.count} images, {SIDE}x{SIDE}, batch {BATCH}, {rounds} rounds, {time.strftime('%Y-%m-%d')}")
    print("| source | who | images a second (best) | CPU seconds a 1,000 images (least) | workers |\n|---|---|---|---|---|")
    for kind, name, speed, cpu, workers in rows:
        print(f"| {kind} | {name} | {speed:.0f} | {cpu:.2f} | {workers} |")


if __name__ == "__main__":
    {"draw": lambda a: draw(*a), "records": lambda a: records(*a), "run": run}[sys.argv[1]](sys.argv[2:])
