#!/usr/bin/env python3
"""Makes tests/fixtures/tfrecord from tests/fixtures/pictures: the same pictures and labels in the same order, as Keras lists them.

    make_tfrecord_fixtures.py PICTURES OUT      needs TensorFlow

two-*.tfrecord: shards; packed.tfrecord.gz: GZIP; numbers.tfrecord: lists of numbers, with numbers.npz the same as arrays.
"""
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

pictures, out = sys.argv[1], sys.argv[2]
os.makedirs(out, exist_ok=True)
data = keras.utils.image_dataset_from_directory(pictures, image_size=(24, 20), shuffle=False)
names = data.file_paths
labels = [int(os.path.relpath(n, pictures).split(os.sep)[0] == "other") for n in names]


def feature(v):
    if isinstance(v, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[v]))
    v = np.asarray(v).ravel()
    if v.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=v))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=v))


def example(**f):
    return tf.train.Example(features=tf.train.Features(feature={k.replace("__", "/"): feature(v) for k, v in f.items()})).SerializeToString()


def write(name, examples, options=None):
    with tf.io.TFRecordWriter(os.path.join(out, name), options) as w:
        for e in examples:
            w.write(e)


all_of_them = [example(image__encoded=open(n, "rb").read(), image__class__label=y, image__filename=os.path.basename(n).encode())
               for n, y in zip(names, labels)]
write("two-0.tfrecord", all_of_them[:9])
write("two-1.tfrecord", all_of_them[9:])
write("packed.tfrecord.gz", all_of_them, "GZIP")
rng = np.random.default_rng(5)
x = rng.normal(size=(40, 6)).astype(np.float32)
y = (x.sum(1) > 0).astype(np.int64) * 3 - 1  # negative numbers take ten bytes
write("numbers.tfrecord", [example(x=a, y=b, raw=a.tobytes()) for a, b in zip(x, y)])
np.savez(os.path.join(out, "numbers.npz"), x=x, y=y)
sequence = tf.train.SequenceExample()
for step in ([1.0, 2.0], [3.0, 4.0]):
    sequence.feature_lists.feature_list["x"].feature.add().float_list.value.extend(step)
sequence.context.feature["y"].int64_list.value.append(1)
write("sequence_example.tfrecord", [sequence.SerializeToString()] * 8)
