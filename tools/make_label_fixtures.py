#!/usr/bin/env python3
"""Makes tests/fixtures/labels: the same samples with labels as numbers and as texts, in the files people have. Needs NumPy and h5py.

    tools/make_label_fixtures.py [FOLDER]
"""
import csv
import pathlib
import sys

import h5py
import numpy as np

out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "tests/fixtures/labels")
out.mkdir(exist_ok=True)
rng = np.random.default_rng(1)
x = rng.random((24, 8, 8, 1), dtype=np.float32).astype(np.float16).astype(np.float32)
names = np.array(["zero", "one", "two", "drei", "vier", "fünf", "sechs", "sieben", "acht", "Neun"])
text = names[np.arange(24) * 7 % 10]
code = np.unique(text, return_inverse=True)[1].astype(np.int32)  # what the numbers must be
utf8 = np.char.encode(text, "utf8")


def table(name, part, header):
    with open(out / name, "w", newline="") as f:
        w = csv.writer(f)
        if header:
            w.writerow([f"c{i}" for i in range(64)] + ["species"])
        for a, b in zip(x[part], text[part]):
            w.writerow([repr(float(v)) for v in a.ravel()] + [b])


np.savez(out / "numbers.npz", x=x, y=code)
np.savez(out / "texts.npz", x=x, y=text)
np.savez(out / "bytes.npz", x=x, y=utf8.reshape(-1, 1))
np.savez(out / "turned.npz", x=x.astype(">f4"), y=text.astype(">U8"))
table("header.csv", slice(None), True)
table("plain.csv", slice(None), False)
with h5py.File(out / "texts.h5", "w") as f:
    f["x"] = x
    f.create_dataset("y", data=text.astype(object), dtype=h5py.string_dtype())
with h5py.File(out / "turned.h5", "w") as f:
    f["x"] = x.astype(">f8")
    f["y"] = utf8
with h5py.File(out / "groups.h5", "w") as f:
    f["train/x"], f["train/y"] = x, code.astype(">i8")
    f["test/x"], f["test/y"] = x[:7], code[:7]
with h5py.File(out / "inner.h5", "w") as f:
    f.create_dataset("data/in/x", data=x, compression="lzf", chunks=(5, 8, 8, 1))
    f["data/in/y"] = code.astype(">u2")
for i in range(3):  # no part has all names
    part = slice(i * 8, i * 8 + 8)
    np.savez(out / f"part-{i}.npz", x=x[part], y=code[part])
    np.savez(out / f"parts-{i}.npz", x=x[part], y=text[part])
    table(f"table-{i}.csv", part, False)
    with h5py.File(out / f"group-{i}.h5", "w") as f:
        f["a/x"], f["a/y"] = x[part].astype(">f4"), utf8[part]
try:  # texts as labels of TFRecord files
    import tensorflow as tf
except ImportError:
    print("texts.tfrecord: left as it is, no TensorFlow here")
else:
    with tf.io.TFRecordWriter(str(out / "texts.tfrecord")) as w:
        for a, b in zip(x, utf8):
            w.write(tf.train.Example(features=tf.train.Features(feature={
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=a.ravel())),
                "label": tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes(b)]))})).SerializeToString())
