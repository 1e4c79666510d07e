"""What the makers of fixtures from real Keras share: arrays as bytes, and everything one training step gives.

The layout of the arrays is read by tests/ops/fixture.c:

    u32 length of name, name, u32 type (0 float32, 1 int32), u32 rank, u32 dimensions..., values      all little-endian
"""
import io
import os
import struct
import tempfile

import numpy as np
import tensorflow as tf


def pack(arrays):
    out = io.BytesIO()
    for name, value in arrays.items():
        value = np.asarray(value)
        integer = value.dtype.kind in "iub"
        value = value.astype("<i4" if integer else "<f4")
        text = name.encode()
        out.write(struct.pack("<I", len(text)) + text)
        out.write(struct.pack("<II", int(integer), value.ndim) + struct.pack(f"<{value.ndim}I", *value.shape))
        out.write(value.tobytes())
    return out.getvalue()


def saved(model):
    """The bytes of the file Keras saves."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        with open(path, "rb") as file:
            return file.read()


def key_of(value):
    return np.asarray(value).reshape(-1)[:4]


def as_list(x):
    return list(x) if isinstance(x, (list, tuple)) else list(x.values()) if isinstance(x, dict) else [x]


def for_rows(weight, pred):
    """A weight a sample with axes of 1 for the rows of a sample: Keras aligns the last axes, whatever they mean."""
    rank = len(as_list(pred)[0].shape)
    return weight if weight is None or rank < 3 else np.reshape(weight, (-1,) + (1,) * (rank - 2))


def step_arrays(model, xs, ys, weight=None, train=True):
    """Outputs of inference; then loss, gradients and statistics of one training step."""
    arrays = {f"x{i}": x for i, x in enumerate(xs)}
    arrays.update({f"y{i}": y for i, y in enumerate(ys)})
    if weight is not None:
        arrays["w"] = weight
    x = xs[0] if len(xs) == 1 else xs
    y = ys[0] if len(ys) == 1 else ys
    if isinstance(model.output, dict):
        y = dict(zip(model.output, ys))
    for i, out in enumerate(as_list(model(x, training=False))):
        arrays[f"out{i}"] = out
    if not train:
        return arrays
    stats = [v for v in model.non_trainable_variables if str(v.dtype).startswith("float")]
    before = [np.array(v.numpy()) for v in stats]
    with tf.GradientTape() as tape:
        pred = model(x, training=True)
        loss = model.compute_loss(x, y, pred, sample_weight=for_rows(weight, pred))
    grads = tape.gradient(loss, [v.value for v in model.trainable_variables])
    arrays["loss"] = loss
    for i, (v, g) in enumerate(zip(model.trainable_variables, grads)):
        arrays[f"key{i}"] = key_of(v)
        arrays[f"grad{i}"] = tf.convert_to_tensor(g) if g is not None else np.zeros(v.shape, "float32")
    for i, (v, b) in enumerate(zip(stats, before)):
        arrays[f"statkey{i}"] = key_of(b)
        arrays[f"stat{i}"] = np.array(v.numpy())
        v.assign(b)
    return arrays
