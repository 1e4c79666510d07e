#!/usr/bin/env python3
"""Makes tests/fixtures/sequences: sequences of 1 to 40 numbers in every form that is read, two models of them whose length is open, and
the losses Keras has; points: steps of several numbers. Needs TensorFlow:

    make_sequence_fixtures.py tests/fixtures/sequences
"""
import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np
import tensorflow as tf


def points(root):
    """Steps of three numbers, with a label each or two numbers a step as targets, as flat lists; and what tf.data makes of them."""
    rng = np.random.default_rng(7)
    keras.utils.set_random_seed(1)
    lengths = np.minimum(1 + rng.geometric(0.12, 61), 30)
    xs = [np.cumsum(rng.normal(0, 1, (n, 3)), 0).astype("f4") for n in lengths]
    labels = [int(x[-1].sum() > 0) for x in xs]
    paths = [(x[:, :2] * 0.5 + 1).astype("f4") for x in xs]
    floats = lambda v: tf.train.Feature(float_list=tf.train.FloatList(value=v.ravel()))
    with tf.io.TFRecordWriter(root + "/points.tfrecord") as w:
        for x, y, path in zip(xs, labels, paths):
            w.write(tf.train.Example(features=tf.train.Features(feature={
                "x": floats(x), "path": floats(path), "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[y]))})).SerializeToString())
    several = lambda k: tf.io.FixedLenSequenceFeature([k], tf.float32, allow_missing=True)
    parsed = tf.io.parse_example(list(tf.data.TFRecordDataset(root + "/points.tfrecord").as_numpy_iterator()),
                                 {"x": several(3), "path": several(2), "y": tf.io.FixedLenFeature([], tf.int64)})
    np.savez_compressed(root + "/points.npz", **{k: v.numpy() for k, v in parsed.items()})
    for name in ("point", "path"):
        i = keras.Input((None, 3))
        z = keras.layers.GRU(6, return_sequences=name == "path")(keras.layers.Masking()(i))
        m = keras.Model(i, keras.layers.Dense(2, activation="softmax" if name == "point" else None)(z))
        m.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy" if name == "point" else "mse")
        m.save(f"{root}/{name}.keras")
        y = parsed["y" if name == "point" else "path"]
        loss = m.fit(parsed["x"], y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"][-1]
        with open(f"{root}/{name}.json", "w") as f:
            json.dump({"loss": loss}, f)


def parts(root):
    """The ragged and the padded arrays once more, cut into three files each: of 30, 30 and 23 samples."""
    r, p = np.load(root + "/ragged.npz"), np.load(root + "/padded.npz")
    for n, (a, b) in enumerate(((0, 30), (30, 60), (60, 83))):
        s = r["x_row_splits"]
        np.savez(f"{root}/part-{n}.npz", x=r["x"][s[a]:s[b]], x_row_splits=s[a:b + 1] - s[a], y=r["y"][a:b])
        np.savez_compressed(f"{root}/filled-{n}.npz", x=p["x"][a:b], y=p["y"][a:b])


def main(root):
    os.makedirs(root, exist_ok=True)
    rng = np.random.default_rng(2)
    keras.utils.set_random_seed(1)
    count = 83
    lengths = np.minimum(1 + rng.geometric(0.1, count), 40)
    lengths[5] = 40
    xs = [rng.integers(1, 30, n) for n in lengths]
    labels = np.array([int(x.sum() % 2) for x in xs], "i4")
    steps = [(x % 5).astype("i4") for x in xs]
    weights = [rng.random(n).astype("f4") for n in lengths]

    def padded(parts, dtype, width=40):
        out = np.zeros((len(parts), width), dtype)
        for i, p in enumerate(parts):
            out[i, :len(p)] = p
        return out

    splits = np.concatenate([[0], np.cumsum(lengths)]).astype("i8")
    np.savez_compressed(root + "/padded.npz", x=padded(xs, "i4"), y=labels)
    np.savez(root + "/ragged.npz", x=np.concatenate(xs).astype("i4"), x_row_splits=splits, y=labels)
    np.savez_compressed(root + "/steps.npz", x=padded(xs, "i4"), y=padded(steps, "i4"), sample_weight=padded(weights, "f4"))
    np.savez(root + "/steps_ragged.npz", x=np.concatenate(xs).astype("i4"), x_row_splits=splits, y=np.concatenate(steps), y_row_splits=splits,
             sample_weight=np.concatenate(weights), sample_weight_row_splits=splits)
    ints = lambda v: tf.train.Feature(int64_list=tf.train.Int64List(value=[int(a) for a in v]))
    for name, targets in (("records", [[t] for t in labels]), ("steps", steps)):
        with tf.io.TFRecordWriter(f"{root}/{name}.tfrecord") as w:
            for x, y in zip(xs, targets):
                w.write(tf.train.Example(features=tf.train.Features(feature={"x": ints(x), "y": ints(y)})).SerializeToString())

    def model(kind, name):
        i = keras.Input((None,))
        z = keras.layers.Embedding(30, 6, mask_zero=True)(i)
        z = keras.layers.LSTM(8)(z) if kind == "one" else keras.layers.GRU(8, return_sequences=True)(z)
        m = keras.Model(i, keras.layers.Dense(2 if kind == "one" else 5, activation="softmax")(z))
        m.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
        m.save(f"{root}/{name}.keras")
        return m

    # Padded by batch, as tf.data's padded_batch does.
    losses = {}
    one = model("one", "one")
    data = tf.data.Dataset.from_generator(lambda: zip(xs, labels), output_signature=(tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.int32)))
    losses["one"] = one.fit(data.padded_batch(8), epochs=2, verbose=0).history["loss"]
    each = model("each", "each")
    losses["weighted"] = each.fit(padded(xs, "i4"), padded(steps, "i4"), sample_weight=padded(weights, "f4"), batch_size=8, shuffle=False, epochs=2,
                                  verbose=0).history["loss"]
    with open(root + "/losses.json", "w") as f:
        json.dump(losses, f)
        f.write("\n")


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"))
    points(sys.argv[1].rstrip("/"))
    parts(sys.argv[1].rstrip("/"))
