#!/usr/bin/env python3
"""Writes tests/fixtures/ops/cases.zip: many small models with odd options as real Keras 3 (TensorFlow back end) computes them, every
layer, operation and option that memfit reads, alone and in combinations drawn at random. Run with a Python that has keras and tensorflow:

    python tools/make_case_fixtures.py [--out FILE] [--add] [name-part ...]      only cases whose name contains one of the parts

With --add the file keeps its other cases: TensorFlow ends with a damaged heap after some thousands of odd models, so all of them
are made in parts.

The file is long because it is a list. Cases are drawn by seeds of their own names, so that a new one changes no other. Values keep 14 significant bits: the file stays small,
and the test's tolerance is wider. tests/ops/test_ops_cases.c runs them; what memfit refuses is listed in tests/fixtures/ops/refused.txt.

Members of the archive: cases.txt has a line for each case, "name bytes bytes bytes"; config.json, model.weights.h5 and data.bin hold that
many bytes of each, one case behind the other, so that what repeats is stored once. The arrays of data.bin are those of keras_fixture.py.
"""
import argparse
import io
import os
import sys
import zipfile
import zlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ["KERAS_BACKEND"] = "tensorflow"

import numpy as np  # noqa: E402
import keras  # noqa: E402
from keras import layers as L  # noqa: E402
from keras import ops as K  # noqa: E402
from keras_fixture import as_list, pack, saved, step_arrays  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
parser = argparse.ArgumentParser()
parser.add_argument("--out", default=os.path.join(HERE, "..", "tests", "fixtures", "ops", "cases.zip"))
parser.add_argument("--add", action="store_true", help="keep the file's other cases")
parser.add_argument("parts", nargs="*")
options = parser.parse_args()

records = []
refused = []  # by Keras itself: the script says so, so that such a case does not linger


def short(value):
    """Fourteen significant bits."""
    value = np.asarray(value)
    if value.dtype.kind != "f":
        return value
    bits = np.ascontiguousarray(value, "float32").view("uint32")
    return np.where(np.isfinite(value), (bits + 0x200) & np.uint32(0xFFFFFC00), bits).astype("uint32").view("float32")


def distinct(rng, shape, low, high):
    """Numbers of few bits, no two alike: no maximum is a tie, and the file stays small."""
    count = int(np.prod(shape))
    levels = max(256, 1 << (2 * count).bit_length())
    return (low + (high - low) * (rng.permutation(levels)[:count] + 0.5) / levels).astype("float32").reshape(shape)


def randomize(model, rng):
    for v in model.weights:
        if str(v.dtype).startswith("float"):
            low, high = (0.5, 1.5) if any(word in v.name for word in ("gamma", "variance", "scale")) else (-0.625, 0.625)
            v.assign(distinct(rng, v.shape, low, high))


def draw(tensor, n, rng, high):
    shape = (n,) + tuple(tensor.shape[1:])
    if str(tensor.dtype) == "bool":
        return rng.integers(0, 2, shape).astype("int32")
    if "int" in str(tensor.dtype):
        ids = rng.integers(0, high, shape).astype("int32")
        if ids.ndim == 2:  # sentences end early, never at once
            for row, end in enumerate(rng.integers(1, shape[1] + 1, n)):
                ids[row, end:] = 0
            ids[:, 0] = np.maximum(ids[:, 0], 1)
        return ids
    x = distinct(rng, shape, -1, 1)
    if getattr(tensor, "padded", False):
        for row, end in enumerate(rng.integers(1, shape[1] + 1, n)):
            x[row, end:] = 0
    return x


def wanted(name):
    return not options.parts or any(part in name for part in options.parts)


def finite(arrays):
    return all(np.all(np.isfinite(np.asarray(a, "float64"))) for a in arrays.values())


def make(name, specs, build, n=3, loss="mse", train=True, high=6, weight=False, target=None, compile_args=None, infinite=False, xs=None):
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    keras.backend.clear_session()
    ins = []
    for i, spec in enumerate(specs):
        shape, dtype = spec if isinstance(spec[0], tuple) else (spec, "float32")
        tensor = keras.Input(shape, dtype=dtype.replace("padded", "float32"), name=f"in{i}")
        tensor.padded = dtype == "padded"
        ins.append(tensor)
    outputs = build(*ins)
    if isinstance(outputs, keras.Model):
        model = outputs
    else:
        model = keras.Model(ins if len(ins) > 1 else ins[0], outputs, name="model")
    if not isinstance(model.output, (list, tuple, dict)) and not str(model.output.dtype).startswith("float"):
        raise ValueError("an output that is no floating-point number")
    randomize(model, rng)
    model.compile(optimizer="sgd", loss=loss, **(compile_args or {}))
    xs = [draw(i, n, rng, high) for i in ins] if xs is None else xs
    outs = as_list(model(xs[0] if len(xs) == 1 else xs))
    ys = [(rng.integers(-16, 17, o.shape) / 16).astype("float32") for o in outs] if target is None else as_list(target(rng, n))
    w = distinct(rng, (n,), 0.25, 2.25) if weight else None
    train = train and model.trainable_variables
    arrays = {key: short(value) for key, value in step_arrays(model, xs, ys, w, train).items()}
    if not infinite and not finite(arrays):
        raise ValueError("not finite")
    return model, arrays


def add(name, specs, build, **more):
    if not wanted(name):
        return
    try:
        model, arrays = make(name, specs, build, **more)
        records.append((name, saved(model), pack(arrays)))
    except Exception as error:  # noqa: BLE001
        refused.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:160]}")


VECTOR, SERIES, IMAGE, VOLUME = (5,), (6, 4), (5, 6, 4), (3, 4, 3, 2)
IDS = ((6,), "int32")
PADDED = ((6, 4), "padded")


def probe(x):
    """Something to train in front, so that the gradient of what follows shows."""
    return L.Dense(int(x.shape[-1]), name="probe")(x)


def on(name, shape, *layers, before=True, **more):
    def build(x):
        y = probe(x) if before else x
        for layer in layers:
            y = layer(y)
        return y
    more.setdefault("n", 2 if len(shape) > 2 else 3)
    add(name, [shape], build, **more)


# ---- layers one by one, with odd options ----

def convolutions():
    first = {"data_format": "channels_first"}
    for i, o in enumerate([
            dict(kernel_size=(1, 3), strides=(2, 1)), dict(kernel_size=3, strides=(1, 3), padding="same"),
            dict(kernel_size=(2, 4), dilation_rate=(1, 2), padding="same"), dict(kernel_size=2, dilation_rate=3),
            dict(kernel_size=3, groups=2, strides=2, padding="same"), dict(kernel_size=(5, 2), groups=4, use_bias=False),
            dict(kernel_size=9, padding="same"), dict(kernel_size=1, strides=3, activation="gelu"),
            dict(kernel_size=4, strides=5, padding="same", activation="selu"), dict(kernel_size=(5, 6))]):
        on(f"conv2d_{i}", IMAGE, L.Conv2D(4, **o))
    on("conv2d_first", (4, 6, 7), L.Conv2D(3, (3, 2), strides=2, padding="same", **first), before=False)
    for i, o in enumerate([
            dict(kernel_size=3, padding="causal", strides=2), dict(kernel_size=2, padding="causal", dilation_rate=3),
            dict(kernel_size=3, padding="causal", groups=2), dict(kernel_size=4, dilation_rate=2, padding="same"),
            dict(kernel_size=5, strides=4, padding="same", use_bias=False), dict(kernel_size=6)]):
        on(f"conv1d_{i}", SERIES, L.Conv1D(4, **o))
    on("conv1d_first", (4, 6), L.Conv1D(3, 3, padding="same", **first), before=False)
    for i, o in enumerate([dict(kernel_size=(1, 2, 3), strides=(1, 2, 1)), dict(kernel_size=2, padding="same", groups=2),
                           dict(kernel_size=2, dilation_rate=2, padding="same", activation="tanh")]):
        on(f"conv3d_{i}", VOLUME, L.Conv3D(4, **o))
    for i, o in enumerate([dict(kernel_size=3, strides=2, padding="same", depth_multiplier=3),
                           dict(kernel_size=(2, 3), dilation_rate=2, padding="same"), dict(kernel_size=(4, 2), use_bias=False),
                           dict(kernel_size=3, strides=3, activation="relu")]):
        on(f"depthwise2d_{i}", IMAGE, L.DepthwiseConv2D(**o))
    on("depthwise2d_first", (4, 6, 7), L.DepthwiseConv2D(3, padding="same", depth_multiplier=2, **first), before=False)
    for i, o in enumerate([dict(kernel_size=3, strides=2, padding="same"), dict(kernel_size=2, dilation_rate=2),
                           dict(kernel_size=4, depth_multiplier=2, padding="same", use_bias=False)]):
        on(f"depthwise1d_{i}", SERIES, L.DepthwiseConv1D(**o))
    for i, o in enumerate([dict(kernel_size=3, strides=2, padding="same", depth_multiplier=2),
                           dict(kernel_size=(2, 3), dilation_rate=2), dict(kernel_size=2, padding="same", use_bias=False, activation="elu")]):
        on(f"separable2d_{i}", IMAGE, L.SeparableConv2D(3, **o))
    for i, o in enumerate([dict(kernel_size=3, strides=2, padding="same"), dict(kernel_size=3, use_bias=False),
                           dict(kernel_size=2, dilation_rate=2, padding="same", depth_multiplier=2)]):
        on(f"separable1d_{i}", SERIES, L.SeparableConv1D(3, **o))
    small = (3, 4, 2)
    for i, o in enumerate([
            dict(kernel_size=2, strides=3), dict(kernel_size=2, strides=3, padding="same"), dict(kernel_size=4, strides=3),
            dict(kernel_size=4, strides=3, padding="same"), dict(kernel_size=(1, 4), strides=(2, 1)),
            dict(kernel_size=3, dilation_rate=2), dict(kernel_size=3, dilation_rate=2, padding="same"),
            dict(kernel_size=3, strides=2, output_padding=1), dict(kernel_size=3, strides=(2, 3), output_padding=(0, 2), padding="same"),
            dict(kernel_size=5, strides=1, padding="same", use_bias=False), dict(kernel_size=1, strides=2, padding="same"),
            dict(kernel_size=3, strides=2, output_padding=0, padding="same", activation="relu")]):
        on(f"transpose2d_{i}", small, L.Conv2DTranspose(2, **o))
    on("transpose2d_first", (2, 3, 4), L.Conv2DTranspose(2, 3, strides=2, **first), before=False)
    for i, o in enumerate([dict(kernel_size=4, strides=3, padding="same"), dict(kernel_size=2, strides=3),
                           dict(kernel_size=3, dilation_rate=2, padding="same"), dict(kernel_size=3, strides=2, output_padding=1)]):
        on(f"transpose1d_{i}", (4, 3), L.Conv1DTranspose(2, **o))
    for i, o in enumerate([dict(kernel_size=2, strides=(1, 2, 3), padding="same"), dict(kernel_size=3, strides=2)]):
        on(f"transpose3d_{i}", (2, 3, 2, 2), L.Conv3DTranspose(2, **o))


def pools():
    first = {"data_format": "channels_first"}
    for cls, tag in ((L.MaxPooling2D, "max"), (L.AveragePooling2D, "average")):
        for i, o in enumerate([dict(pool_size=3, strides=1, padding="same"), dict(pool_size=(1, 4), strides=(3, 2), padding="same"),
                               dict(pool_size=9, padding="same"), dict(pool_size=(5, 1)), dict(pool_size=2, strides=5),
                               dict(pool_size=(4, 3), strides=(1, 2))]):
            on(f"{tag}_pool2d_{i}", IMAGE, cls(**o))
        on(f"{tag}_pool2d_first", (4, 6, 7), L.Conv2D(4, 1, **first), cls((2, 3), strides=2, padding="same", **first), before=False)
    for cls, tag in ((L.MaxPooling1D, "max"), (L.AveragePooling1D, "average")):
        for i, o in enumerate([dict(pool_size=4, strides=1, padding="same"), dict(pool_size=2, strides=3), dict(pool_size=11, strides=2, padding="same")]):
            on(f"{tag}_pool1d_{i}", SERIES, cls(**o))
        on(f"{tag}_pool1d_first", (4, 6), cls(2, strides=1, **first))
    for cls, tag in ((L.MaxPooling3D, "max"), (L.AveragePooling3D, "average")):
        on(f"{tag}_pool3d_0", VOLUME, cls((1, 2, 3), strides=(1, 1, 2), padding="same"))
        on(f"{tag}_pool3d_1", VOLUME, cls((3, 4, 3)))
    for cls in (L.GlobalAveragePooling1D, L.GlobalMaxPooling1D):
        on(cls.__name__.lower() + "_first", SERIES, cls(keepdims=True, **first))
    for cls in (L.GlobalAveragePooling2D, L.GlobalMaxPooling2D):
        on(cls.__name__.lower() + "_first", IMAGE, cls(**first))
        on(cls.__name__.lower() + "_first_keep", IMAGE, cls(keepdims=True, **first))
    for cls in (L.GlobalAveragePooling3D, L.GlobalMaxPooling3D):
        on(cls.__name__.lower() + "_keep", VOLUME, cls(keepdims=True))
    for cls in (L.AdaptiveAveragePooling2D, L.AdaptiveMaxPooling2D):
        on(cls.__name__.lower(), IMAGE, cls((2, 3)))


def normalizations():
    for i, (shape, o) in enumerate([
            (IMAGE, dict(axis=1, momentum=0.5)), (IMAGE, dict(axis=2, scale=False)), (SERIES, dict(epsilon=0.1, center=False)),
            (SERIES, dict(axis=1)), (VECTOR, dict(momentum=0.0)), (VOLUME, dict(axis=-1, epsilon=1e-5)),
            (SERIES, dict(gamma_regularizer="l2", beta_regularizer=keras.regularizers.L1(0.02)))]):
        on(f"batch_norm_{i}", shape, L.BatchNormalization(**o))
    on("batch_norm_masked", PADDED, L.Masking(), L.BatchNormalization(momentum=0.7), L.Dense(3), before=False)
    add("batch_norm_masked_ids", [IDS], lambda x: L.LSTM(3)(L.BatchNormalization()(L.Embedding(6, 4, mask_zero=True)(x))))
    add("batch_norm_masked_frozen", [IDS], lambda x: L.BatchNormalization(trainable=False)(L.Embedding(6, 4, mask_zero=True)(x)))
    add("batch_norm_masked_axis1", [IDS], lambda x: L.BatchNormalization(axis=1)(L.Embedding(6, 4, mask_zero=True)(x)))
    for i, (shape, o) in enumerate([
            (SERIES, dict(axis=[2, 1])), (SERIES, dict(axis=1, center=False)), (IMAGE, dict(axis=[1, 2, 3])), (IMAGE, dict(axis=[2, 3], scale=False)),
            (IMAGE, dict(axis=[1, 3])), (IMAGE, dict(axis=[-1, 1])), (VECTOR, dict(epsilon=0.1)), (SERIES, dict(axis=-2)),
            (SERIES, dict(axis=[1])), (IMAGE, dict(axis=2))]):
        on(f"layer_norm_{i}", shape, L.LayerNormalization(**o))
    on("layer_norm_rms", SERIES, L.LayerNormalization(rms_scaling=True))
    on("layer_norm_rms_axes", IMAGE, L.LayerNormalization(axis=[2, 3], rms_scaling=True, epsilon=0.05))
    on("layer_norm_rms_plain", SERIES, L.LayerNormalization(rms_scaling=True, scale=False, center=False))
    on("layer_norm_rms_axis1", SERIES, L.LayerNormalization(axis=1, rms_scaling=True))
    for i, (shape, o) in enumerate([((4, 4), dict(axis=1)), (IMAGE, dict(axis=[2, 3])), (VECTOR, dict(epsilon=0.2)), ((4, 4, 4), dict(axis=[1, 3]))]):
        on(f"rms_norm_{i}", shape, L.RMSNormalization(**o))
    for i, (shape, o) in enumerate([(IMAGE, dict(groups=4)), ((6, 5, 4), dict(groups=2, axis=1)), (VOLUME, dict(groups=2, scale=False)),
                                    (VECTOR, dict(groups=5)), (SERIES, dict(groups=3, axis=1, center=False)), ((8,), dict(groups=2, epsilon=0.1))]):
        on(f"group_norm_{i}", shape, L.GroupNormalization(**o))
    for i, (shape, axis) in enumerate([(SERIES, 1), (IMAGE, (1, 2)), (IMAGE, -2), (VECTOR, -1), (IMAGE, [3, 1])]):
        on(f"unit_norm_{i}", shape, L.UnitNormalization(axis=axis))
    on("rescaling_list", SERIES, L.Rescaling([0.5, 2.0, 1.0, -1.0], offset=[0.0, 1.0, 2.0, 3.0]))
    on("normalization_none", SERIES, L.Normalization(axis=None, mean=0.3, variance=2.0), L.Dense(2))
    on("normalization_invert", SERIES, L.Normalization(mean=[0.1, 0.2, 0.3, 0.4], variance=[1.0, 2.0, 0.5, 1.0], invert=True), L.Dense(2))
    on("normalization_axis1", SERIES, L.Normalization(axis=1, mean=np.arange(6.0), variance=np.arange(1.0, 7.0)), L.Dense(2))
    on("normalization_axes", SERIES, L.Normalization(axis=(1, 2), mean=np.ones((6, 4)), variance=np.full((6, 4), 2.0)), L.Dense(2))
    on("spectral", VECTOR, L.SpectralNormalization(L.Dense(3)), train=False)


def activations():
    for i, layer in enumerate([L.ReLU(negative_slope=0.2), L.ReLU(max_value=0.3), L.ReLU(threshold=0.2), L.ReLU(max_value=0.4, negative_slope=0.3),
                               L.LeakyReLU(negative_slope=0.0), L.ELU(alpha=0.3), L.Softmax(axis=1), L.Softmax(axis=[1, 2]), L.PReLU(),
                               L.PReLU(shared_axes=[1]), L.PReLU(alpha_regularizer="l2"), L.Activation(keras.activations.leaky_relu),
                               L.Activation("relu6")]):
        on(f"activation_{i}", SERIES, layer, L.Dense(2))
    add("softmax_masked", [SERIES, ((6, 4), "bool")], lambda x, m: L.Flatten()(L.Softmax()(probe(x), mask=m)))
    for a in ("relu", "hard_shrink", "soft_shrink", "squareplus", "celu", "sparse_plus", "sparse_sigmoid", "log_softmax", "glu", "softsign"):
        on("dense_" + a, SERIES, L.Dense(4, activation=a))
        on("conv_" + a, SERIES, L.Conv1D(4, 2, activation=a))
    for a in ("selu", "hard_sigmoid", "relu", "elu", "softplus", "linear", "gelu", "softmax", "leaky_relu"):
        on("lstm_" + a, SERIES, L.LSTM(3, activation=a, recurrent_activation="hard_sigmoid"))
        on("gru_gate_" + a, SERIES, L.GRU(3, recurrent_activation=a))


def shapes():
    first = {"data_format": "channels_first"}
    on("flatten_first", IMAGE, L.Flatten(**first), L.Dense(2))
    on("flatten_scalar", (1,), L.Flatten(), L.Dense(2))
    on("reshape_0", IMAGE, L.Reshape((2, -1, 5)), L.Dense(2))
    on("reshape_1", SERIES, L.Reshape((24,)), L.Dense(2))
    on("reshape_2", VECTOR, L.Reshape((1, 5, 1)), L.Dense(2))
    on("permute", VOLUME, L.Permute((4, 2, 1, 3)), L.Dense(2))
    on("repeat_vector", VECTOR, L.RepeatVector(1), L.Dense(2))
    on("padding1d", SERIES, L.ZeroPadding1D(3), L.Dense(2))
    on("padding1d_first", SERIES, L.ZeroPadding1D((0, 2), **first), L.Dense(2))
    on("padding2d_first", IMAGE, L.ZeroPadding2D(((0, 1), (2, 0)), **first), L.Dense(2))
    on("padding2d", IMAGE, L.ZeroPadding2D((2, 1)), L.Dense(2))
    on("padding3d_first", VOLUME, L.ZeroPadding3D(((0, 1), (1, 0), (2, 0)), **first), L.Dense(2))
    on("cropping1d", SERIES, L.Cropping1D(2), L.Dense(2))
    on("cropping2d_first", IMAGE, L.Cropping2D(((1, 2), (0, 1)), **first), L.Dense(2))
    on("cropping3d_first", VOLUME, L.Cropping3D(((1, 0), (1, 1), (0, 0)), **first), L.Dense(2))
    on("up1d", SERIES, L.UpSampling1D(3), L.Dense(2))
    for method in ("nearest", "bilinear", "bicubic", "lanczos3", "lanczos5"):
        on("up2d_" + method, (3, 4, 2), L.UpSampling2D((3, 2), interpolation=method), L.Dense(2))
    on("up2d_first", (2, 3, 4), L.UpSampling2D((1, 3), **first), L.Dense(2))
    on("up3d_first", VOLUME, L.UpSampling3D((1, 2, 3), **first), L.Dense(2))
    for i, o in enumerate([dict(crop_to_aspect_ratio=True), dict(pad_to_aspect_ratio=True), dict(pad_to_aspect_ratio=True, fill_value=0.5),
                           dict(interpolation="nearest"), dict(interpolation="bicubic"), dict(interpolation="lanczos3", crop_to_aspect_ratio=True),
                           dict(antialias=True)]):
        on(f"resizing_{i}", (6, 9, 2), L.Resizing(5, 4, **o), L.Conv2D(2, 2))
        on(f"resizing_up_{i}", (4, 3, 2), L.Resizing(7, 11, **o), L.Conv2D(2, 2))
    on("center_crop_larger", (4, 5, 2), L.CenterCrop(6, 3), L.Conv2D(2, 2))
    on("center_crop_first", (2, 5, 6), L.CenterCrop(3, 2, **first), before=False)


def merges():
    def two(name, merge, sa, sb, **more):
        add(name, [sa, sb], lambda a, b: merge(L.Dense(4, name="pa")(a), L.Dense(4, name="pb")(b)), **more)

    for cls in (L.Add, L.Subtract, L.Multiply, L.Average, L.Maximum, L.Minimum):
        n = cls.__name__.lower()
        two(f"merge_{n}_ranks", lambda a, b, cls=cls: cls()([a, b]), (6, 4), (4,))
        two(f"merge_{n}_ranks_swapped", lambda a, b, cls=cls: cls()([a, b]), (4,), (3, 6, 4), n=3)
        two(f"merge_{n}_broadcast", lambda a, b, cls=cls: cls()([a, b]), (6, 4), (1, 4))
        if cls is not L.Subtract:
            add(f"merge_{n}_three", [SERIES, SERIES, SERIES], lambda a, b, c, cls=cls: L.Dense(2)(cls()([probe(a), b, L.Dense(4)(c)])))
            add(f"merge_{n}_three_ranks", [SERIES, (1, 4), (4,)], lambda a, b, c, cls=cls: L.Dense(2)(cls()([probe(a), b, L.Dense(4)(c)])))
    two("merge_square", lambda a, b: L.Multiply()([a, b]), (3, 4), (4,), n=3)  # steps as many as samples
    two("merge_wide", lambda a, b: L.Multiply()([a[:, :1], b]), (4,), (4,), n=2)
    two("merge_twice", lambda a, b: L.Add()([a, a, b]), (4,), (4,))
    two("concatenate_1", lambda a, b: L.Concatenate(axis=1)([a, b]), (2, 3, 4), (5, 3, 4))
    two("concatenate_2", lambda a, b: L.Concatenate(axis=-2)([a, b, a]), (6, 4), (1, 4))
    for i, (sa, sb, axes) in enumerate([((6, 4), (6, 4), 1), ((6, 4), (4, 4), (2, 1)), ((4,), (4,), 1), ((4,), (6, 4), (1, 2)), ((3, 6, 4), (4,), (3, 1)),
                                        ((3, 6, 4), (6, 4), (2, 1)), ((6, 4), (3, 4), -1), ((2, 3, 4), (3, 4), -1)]):
        add(f"dot_{i}", [sa, sb], lambda a, b, axes=axes: L.Dot(axes=axes)([probe(a), b]))
        add(f"dot_normalized_{i}", [sa, sb], lambda a, b, axes=axes: L.Dot(axes=axes, normalize=True)([probe(a), b]))


def masks():
    def ids(x, width=4, **more):
        return L.Embedding(6, width, mask_zero=True, **more)(x)

    for cls in (L.Add, L.Multiply, L.Average, L.Maximum, L.Subtract):
        n = cls.__name__.lower()
        add(f"mask_{n}", [IDS, IDS], lambda a, b, cls=cls: L.LSTM(3)(cls()([ids(a), ids(b)])))
        add(f"mask_{n}_one", [IDS, SERIES], lambda a, b, cls=cls: L.LSTM(3)(cls()([ids(a), b])))
        add(f"mask_{n}_one_second", [SERIES, IDS], lambda a, b, cls=cls: L.GRU(3)(cls()([probe(a), ids(b)])))
        add(f"mask_{n}_loss", [IDS, IDS], lambda a, b, cls=cls: L.Dense(2)(cls()([ids(a), ids(b)])))
    add("mask_add_three", [IDS, IDS, IDS], lambda a, b, c: L.SimpleRNN(3)(L.Add()([ids(a), ids(b), ids(c)])))
    add("mask_add_ranks", [IDS, (4,)], lambda a, b: L.LSTM(3)(L.Add()([ids(a), L.Dense(4)(b)])))
    for axis in (1, 2, -1, -2):
        add(f"mask_concatenate_{axis}", [IDS, IDS], lambda a, b, axis=axis: L.LSTM(3)(L.Concatenate(axis=axis)([ids(a), ids(b)])))
        add(f"mask_concatenate_{axis}_one", [IDS, SERIES], lambda a, b, axis=axis: L.LSTM(3)(L.Concatenate(axis=axis)([ids(a), b])))
        add(f"mask_concatenate_{axis}_second", [SERIES, IDS], lambda a, b, axis=axis: L.LSTM(3)(L.Concatenate(axis=axis)([a, ids(b)])))
    add("mask_concatenate_loss", [IDS, IDS], lambda a, b: L.Dense(3)(L.Concatenate(axis=1)([ids(a), ids(b)])))
    add("mask_dot", [IDS, IDS], lambda a, b: L.Dense(2)(L.Dot(axes=2)([ids(a), ids(b)])))
    for i, layer in enumerate([L.Dense(4), L.LayerNormalization(), L.Activation("relu"), L.Dropout(0.0), L.Conv1D(4, 3, padding="same"), L.Conv1D(4, 3),
                               L.Permute((2, 1)), L.Reshape((6, 4)), L.Reshape((3, 8)), L.ZeroPadding1D(1), L.Cropping1D(1), L.UpSampling1D(2), L.MaxPooling1D(2),
                               L.Identity(), L.GroupNormalization(2), L.UnitNormalization(), L.RMSNormalization(), L.PReLU(), L.Softmax(), L.Rescaling(2.0),
                               L.EinsumDense("abc,cd->abd", output_shape=(None, 4)), L.TimeDistributed(L.Dense(4)), L.SpatialDropout1D(0.0), L.ReLU(),
                               L.Bidirectional(L.LSTM(2, return_sequences=True)), L.GRU(4, return_sequences=True), L.GaussianNoise(0.0),
                               L.ActivityRegularization(l2=0.1), L.AveragePooling1D(2, padding="same", strides=1), L.SeparableConv1D(4, 1), L.DepthwiseConv1D(1)]):
        add(f"mask_through_{i}_{layer.__class__.__name__.lower()}", [IDS], lambda x, layer=layer: L.LSTM(3)(layer(ids(x))))
        add(f"mask_loss_{i}_{layer.__class__.__name__.lower()}", [IDS], lambda x, layer=layer: layer(ids(x)), weight=i % 3 == 0)
    add("mask_mean", [IDS], lambda x: L.GlobalAveragePooling1D(keepdims=True)(ids(x)))
    add("mask_max", [IDS], lambda x: L.GlobalMaxPooling1D()(ids(x)))
    add("mask_flatten", [IDS], lambda x: L.Dense(2)(L.Flatten()(ids(x))))
    add("mask_operators", [IDS], lambda x: L.LSTM(3)(ids(x) * 2.0 + 1.0))
    add("mask_residual", [IDS], lambda x: (lambda e: L.GlobalAveragePooling1D()(L.Add()([e, L.LSTM(4, return_sequences=True)(e)])))(ids(x)))
    add("masking_value", [SERIES], lambda x: L.LSTM(3)(L.Masking(0.5)(x)), xs=[np.where(np.arange(72).reshape(3, 6, 4) // 4 % 3 == 1, 0.5, 0.25).astype("float32")])
    add("masking_rank4", [((5, 3, 2), "padded")], lambda x: L.Dense(2)(L.Masking()(x)))
    add("mask_nested", [IDS], lambda x: L.LSTM(3)(keras.Sequential([keras.Input((6, 4)), L.Dense(4), L.Activation("tanh")])(ids(x))))
    add("mask_nested_inside", [IDS], lambda x: L.LSTM(3)(keras.Sequential([keras.Input((6,), dtype="int32"), L.Embedding(6, 4, mask_zero=True)])(x)))
    add("mask_time_distributed_rnn", [((3, 5), "int32")], lambda x: L.LSTM(3)(L.TimeDistributed(L.GRU(3))(L.Embedding(6, 4)(x))))
    add("mask_given", [SERIES, ((6,), "bool")], lambda x, m: L.LSTM(3)(probe(x), mask=m))
    add("mask_given_mean", [SERIES, ((6,), "bool")], lambda x, m: L.GlobalAveragePooling1D()(probe(x), mask=m),
        xs=[np.linspace(-1, 1, 72, dtype="float32").reshape(3, 6, 4), np.array([[1, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0]], "int32")])


def recurrents():
    whole = {"return_sequences": True}
    for cls in (L.SimpleRNN, L.LSTM, L.GRU):
        n = cls.__name__.lower()
        lstm = cls is L.LSTM
        add(f"{n}_initial", [SERIES, (3,), (3,)] if lstm else [SERIES, (3,)],
            lambda x, *s, cls=cls: cls(3, go_backwards=True)(x, initial_state=[L.Dense(3)(t) for t in s]))
        add(f"{n}_initial_masked", [IDS, (3,), (3,)] if lstm else [IDS, (3,)],
            lambda x, *s, cls=cls: cls(3, **whole)(L.Embedding(6, 4, mask_zero=True)(x), initial_state=[L.Dense(3)(t) for t in s]))
        for seq in (False, True):
            add(f"bidirectional_{n}_initial_{int(seq)}", [SERIES] + [(3,)] * (4 if lstm else 2),
                lambda x, *s, cls=cls, seq=seq: L.Bidirectional(cls(3, return_sequences=seq))(x, initial_state=[L.Dense(3)(t) for t in s]))
            add(f"bidirectional_{n}_states_{int(seq)}", [IDS],
                lambda x, cls=cls, seq=seq: L.Bidirectional(cls(3, return_sequences=seq, return_state=True))(L.Embedding(6, 4, mask_zero=True)(x)))
        add(f"{n}_states", [IDS], lambda x, cls=cls: cls(3, return_state=True, go_backwards=True, **whole)(L.Embedding(6, 4, mask_zero=True)(x)))
        add(f"bidirectional_{n}_none", [SERIES], lambda x, cls=cls: L.Bidirectional(cls(3, **whole), merge_mode=None)(x))
        add(f"bidirectional_{n}_own", [SERIES], lambda x, cls=cls: L.Bidirectional(cls(3), backward_layer=cls(2, go_backwards=True))(x))
        add(f"bidirectional_{n}_backwards", [IDS], lambda x, cls=cls: L.Bidirectional(cls(3, go_backwards=True, **whole),
            backward_layer=cls(2, **whole))(L.Embedding(6, 4, mask_zero=True)(x)))
        add(f"bidirectional_{n}_masked_last", [IDS], lambda x, cls=cls: L.Bidirectional(cls(3), merge_mode="ave")(L.Embedding(6, 4, mask_zero=True)(x)))
        add(f"{n}_unroll_masked", [IDS], lambda x, cls=cls: cls(3, unroll=True, **whole)(L.Embedding(6, 4, mask_zero=True)(x)))
        add(f"{n}_regularized", [SERIES], lambda x, cls=cls: cls(3, kernel_regularizer="l2", recurrent_regularizer=keras.regularizers.L1(0.02), bias_regularizer="l1")(x))
        add(f"rnn_{n}_cell", [IDS], lambda x, cls=cls: L.RNN(getattr(L, cls.__name__ + "Cell")(3), go_backwards=True, **whole)(L.Embedding(6, 4, mask_zero=True)(x)))
        add(f"stacked_{n}_cells", [SERIES], lambda x, cls=cls: L.RNN(L.StackedRNNCells([getattr(L, cls.__name__ + "Cell")(k) for k in (3, 2)]))(x))
    add("encoder_decoder", [IDS, IDS], lambda a, b: (lambda s: L.Dense(3, activation="softmax")(L.LSTM(3, **whole)(
        L.Embedding(6, 4, mask_zero=True)(b), initial_state=s[1:])))(L.LSTM(3, return_state=True)(L.Embedding(6, 4, mask_zero=True)(a))))
    add("bidirectional_encoder_decoder", [IDS, SERIES], lambda a, b: (lambda s: L.Bidirectional(L.GRU(3))(b, initial_state=s[1:]))(
        L.Bidirectional(L.GRU(3, return_state=True))(L.Embedding(6, 4, mask_zero=True)(a))))
    add("gru_before_initial", [SERIES, (3,)], lambda x, h: L.GRU(3, reset_after=False, use_bias=False)(x, initial_state=L.Dense(3)(h)))
    add("time_distributed_0", [(3, 6, 6, 2)], lambda x: L.TimeDistributed(L.Conv2D(2, 3, strides=2, padding="same"))(x))
    add("time_distributed_1", [(3, 6, 4)], lambda x: L.TimeDistributed(L.LSTM(3))(x))
    add("time_distributed_2", [(3, 6, 4)], lambda x: L.TimeDistributed(L.BatchNormalization())(x))
    add("time_distributed_3", [(3, 6, 4)], lambda x: L.TimeDistributed(keras.Sequential([keras.Input((6, 4)), L.Flatten(), L.Dense(3)]))(x))
    add("time_distributed_4", [(3, 6, 4)], lambda x: L.TimeDistributed(L.LayerNormalization(axis=1))(x))
    add("time_distributed_masked", [PADDED], lambda x: L.LSTM(3)(L.TimeDistributed(L.Dense(3, activation="relu"))(L.Masking()(x))))
    add("conv_lstm", [(3, 5, 5, 2)], lambda x: L.ConvLSTM2D(2, 3)(x))


def attentions():
    def ids(x, width=4):
        return L.Embedding(6, width, mask_zero=True)(x)

    mha = {"num_heads": 2, "key_dim": 3}
    add("mha_masked", [IDS], lambda x: (lambda e: L.Dense(2)(L.Flatten()(e + L.MultiHeadAttention(**mha)(e, e))))(ids(x)))
    add("mha_masked_layers", [IDS], lambda x: (lambda e: L.GlobalAveragePooling1D()(L.Add()([e, L.MultiHeadAttention(**mha)(e, e)])))(ids(x)))
    add("mha_masked_causal", [IDS], lambda x: (lambda e: L.Flatten()(L.MultiHeadAttention(**mha)(e, e, use_causal_mask=True)))(ids(x)))
    add("mha_masked_cross", [IDS, ((4,), "int32")], lambda x, y: L.Flatten()(L.MultiHeadAttention(**mha)(ids(x), ids(y))))
    add("mha_masked_value", [SERIES, IDS], lambda x, y: L.Flatten()(L.MultiHeadAttention(**mha)(x, ids(y))))
    add("mha_masked_query", [IDS, SERIES], lambda x, y: L.Flatten()(L.MultiHeadAttention(**mha)(ids(x), y)))
    add("mha_masked_key", [SERIES, SERIES, IDS], lambda x, v, k: L.Flatten()(L.MultiHeadAttention(**mha)(x, v, key=ids(k))))
    add("mha_masked_key_value", [SERIES, IDS, IDS], lambda x, v, k: L.Flatten()(L.MultiHeadAttention(**mha)(x, ids(v), key=ids(k))))
    add("mha_key", [SERIES, (5, 3), (5, 2)], lambda x, v, k: L.MultiHeadAttention(value_dim=5, output_shape=7, **mha)(x, v, key=k))
    add("mha_given", [SERIES, ((6, 6), "bool")], lambda x, m: L.MultiHeadAttention(**mha)(x, x, attention_mask=m))
    add("mha_given_heads", [SERIES, ((2, 6, 6), "bool")], lambda x, m: L.MultiHeadAttention(**mha)(x, x, attention_mask=m))
    add("mha_given_row", [SERIES, ((1, 6), "bool")], lambda x, m: L.MultiHeadAttention(**mha)(x, x, attention_mask=m))
    add("mha_given_masked_causal", [IDS, ((6, 6), "bool")],
        lambda x, m: (lambda e: L.Flatten()(L.MultiHeadAttention(**mha)(e, e, attention_mask=m, use_causal_mask=True)))(ids(x)))
    add("mha_scores", [IDS], lambda x: (lambda e: [L.Flatten()(t) for t in L.MultiHeadAttention(**mha)(e, e, return_attention_scores=True)])(ids(x)))
    add("mha_axes", [(3, 4, 4)], lambda x: L.MultiHeadAttention(attention_axes=(1, 2), **mha)(x, x))
    add("mha_axes_second", [(3, 4, 4)], lambda x: L.MultiHeadAttention(attention_axes=(2,), **mha)(x, x))
    add("mha_gate", [SERIES], lambda x: L.MultiHeadAttention(use_gate=True, **mha)(x, x))
    add("gqa", [SERIES], lambda x: L.GroupQueryAttention(head_dim=3, num_query_heads=4, num_key_value_heads=2)(x, x))
    for tag, cls, o in (("attention", L.Attention, {}), ("attention_scaled", L.Attention, {"use_scale": True}),
                        ("attention_concat", L.Attention, {"score_mode": "concat"}),
                        ("attention_concat_scaled", L.Attention, {"score_mode": "concat", "use_scale": True}),
                        ("additive", L.AdditiveAttention, {}), ("additive_plain", L.AdditiveAttention, {"use_scale": False})):
        add(f"{tag}_masked", [IDS, ((5,), "int32")], lambda q, v, cls=cls, o=o: L.Flatten()(cls(**o)([ids(q), ids(v)])))
        add(f"{tag}_masked_query", [IDS, SERIES], lambda q, v, cls=cls, o=o: L.Dense(2)(cls(**o)([ids(q), v])))
        add(f"{tag}_masked_value", [SERIES, IDS], lambda q, v, cls=cls, o=o: cls(**o)([probe(q), ids(v)]))
        add(f"{tag}_causal", [SERIES, IDS], lambda q, v, cls=cls, o=o: cls(**o)([probe(q), ids(v)], use_causal_mask=True))
        add(f"{tag}_key", [SERIES, (5, 3), (5, 4)], lambda q, v, k, cls=cls, o=o: cls(**o)([probe(q), v, k]))
        add(f"{tag}_scores", [IDS], lambda q, cls=cls, o=o: (lambda e: [L.Flatten()(t) for t in cls(**o)([e, e], return_attention_scores=True)])(ids(q)))
        add(f"{tag}_given", [SERIES, SERIES, ((6,), "bool"), ((6,), "bool")],
            lambda q, v, a, b, cls=cls, o=o: cls(**o)([probe(q), v], mask=[a, b]))


def others():
    R = keras.regularizers
    on("regularizer_l1", VECTOR, L.Dense(3, kernel_regularizer=R.L1(0.03)))
    on("regularizer_l1l2", IMAGE, L.Conv2D(3, 2, kernel_regularizer=R.L1L2(0.01, 0.02), bias_regularizer="l2"))
    on("regularizer_depthwise", IMAGE, L.SeparableConv2D(3, 2, depthwise_regularizer="l2", pointwise_regularizer="l1"))
    on("regularizer_orthogonal", VECTOR, L.Dense(3, kernel_regularizer=R.OrthogonalRegularizer(0.05)))
    on("regularizer_orthogonal_columns", VECTOR, L.Dense(3, kernel_regularizer=R.OrthogonalRegularizer(0.05, mode="columns")))
    on("activity_norm_relu", IMAGE, L.BatchNormalization(), L.ReLU(activity_regularizer=R.L2(0.05)))
    on("activity_norm", IMAGE, L.BatchNormalization(activity_regularizer=R.L1(0.05)), L.ReLU())
    on("activity_norm_activation", IMAGE, L.BatchNormalization(activity_regularizer=R.L2(0.1)), L.Activation("relu", activity_regularizer="l1"), L.Conv2D(2, 1))
    add("activity_shared", [VECTOR, VECTOR], lambda a, b: (lambda d: L.Add()([d(a), d(b)]))(L.Dense(3, activity_regularizer=R.L2(0.1))))
    add("activity_nested", [VECTOR], lambda x: L.Dense(2)(keras.Sequential([keras.Input((5,)), L.Dense(3, activity_regularizer="l2"), L.BatchNormalization(), L.ReLU()])(x)))
    add("activity_distributed", [SERIES], lambda x: L.TimeDistributed(L.Dense(3, activity_regularizer="l2"))(x))
    for i, (shape, equation, out, bias) in enumerate([
            ((6, 4), "abc,cd->abd", (None, 3), None), ((6, 4), "...x,xy->...y", 3, "y"), ((3, 6, 4), "abcd,bde->abce", (3, None, 5), "be"),
            ((6, 4), "abc,bd->adc", (2, 4), "d"), ((4,), "ab,bcd->adc", (3, 2), "dc"), ((3, 4, 2), "abcd,dcef->abef", (None, 3, 2), "ef"),
            ((6, 4), "btd,dh->bth", (None, 2), "h"), ((6, 4), "abc,c->ab", (None,), None), ((6, 4), "abc,cd->adb", (3, 6), "d")]):
        on(f"einsum_dense_{i}", shape, L.EinsumDense(equation, output_shape=out, bias_axes=bias, activation="tanh" if i % 2 else None))
    add("embedding_rank3", [((3, 4), "int32")], lambda x: L.Dense(2)(L.Embedding(6, 3)(x)))
    add("embedding_float", [((6,), "int32")], lambda x: L.Embedding(6, 3, embeddings_regularizer="l2")(x))
    add("shared_norm", [SERIES, SERIES], lambda a, b: (lambda d: L.Add()([d(a), d(probe(b))]))(L.BatchNormalization()))
    add("nested_twice", [VECTOR, VECTOR], lambda a, b: (lambda m: L.Concatenate()([m(a), m(b)]))(
        keras.Sequential([keras.Input((5,)), L.Dense(3, activation="relu"), L.BatchNormalization()])))
    add("nested_two_outputs", [VECTOR], lambda x: (lambda i: (lambda m: L.Add()(m(x)))(keras.Model(i, [L.Dense(3)(i), L.Dense(3, activation="tanh")(i)])))(keras.Input((5,))))
    add("frozen_middle", [VECTOR], lambda x: L.Dense(2)(L.Dense(4, trainable=False, activation="relu")(L.Dense(4)(x))))
    for cls in (L.Dropout, L.GaussianDropout, L.AlphaDropout):
        on(cls.__name__.lower() + "_inference", SERIES, cls(0.5), train=False)
    on("alpha_dropout_shape", SERIES, L.AlphaDropout(0.5, noise_shape=(None, 1, 4)), train=False)


def losses():
    S = keras.losses
    real = lambda shape: (lambda rng, n: short(rng.uniform(-1, 1, (n,) + shape)))  # noqa: E731
    share = lambda shape: (lambda rng, n: short(rng.dirichlet(np.ones(shape[-1]), (n,) + shape[:-1])))  # noqa: E731
    yes = lambda shape: (lambda rng, n: rng.integers(0, 2, (n,) + shape).astype("float32"))  # noqa: E731
    label = lambda k, shape=(): (lambda rng, n: rng.integers(0, k, (n,) + shape).astype("int32"))  # noqa: E731
    for i, (loss, activation, target) in enumerate([
            (S.Huber(), None, real((3,))), (S.CosineSimilarity(axis=1), None, real((3,))), (S.CosineSimilarity(axis=-1, reduction="sum"), None, real((3,))),
            (S.MeanSquaredError(reduction="mean_with_sample_weight"), None, real((3,))), (S.MeanAbsoluteError(reduction="sum"), None, real((3,))),
            (S.BinaryCrossentropy(from_logits=True, label_smoothing=0.2), None, yes((3,))), (S.CategoricalCrossentropy(label_smoothing=0.1), "softmax", share((3,))),
            (S.CategoricalCrossentropy(from_logits=True, axis=1), None, share((3,))), (S.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0), None, label(3)),
            (S.CategoricalFocalCrossentropy(alpha=0.4, gamma=1.5, label_smoothing=0.1), "softmax", share((3,))),
            (S.BinaryFocalCrossentropy(from_logits=True, gamma=3.0), None, yes((3,))), (S.Dice(), "sigmoid", yes((3,))), (S.Tversky(alpha=0.3), "sigmoid", yes((3,))),
            (S.CategoricalGeneralizedCrossEntropy(), "softmax", label(3)), (S.LogCosh(reduction="mean"), None, real((3,))),
            (S.KLDivergence(), "softmax", share((3,))), (S.Poisson(), "softplus", share((3,))), (S.MeanAbsolutePercentageError(), None, real((3,))),
            (S.MeanSquaredLogarithmicError(), "softplus", share((3,))), (S.CategoricalHinge(), "tanh", yes((3,))), (S.SquaredHinge(), "tanh", yes((3,)))]):
        for weight in (False, True):
            on(f"loss_{i}{'_weighted' if weight else ''}", VECTOR, L.Dense(3, activation=activation), n=4, loss=loss, target=target, weight=weight)
    on("loss_rank3_sparse", SERIES, L.Dense(3, activation="softmax"), loss="sparse_categorical_crossentropy", target=label(3, (6,)), weight=True)
    on("loss_rank3_sparse_column", SERIES, L.Dense(3, activation="softmax"), loss="sparse_categorical_crossentropy", target=label(3, (6, 1)))
    on("loss_rank3_weighted", SERIES, L.Dense(3), loss="mae", weight=True)
    on("loss_rank3_sum", SERIES, L.Dense(3), loss=S.MeanSquaredError(reduction="sum"), weight=True)
    on("loss_squeezed", VECTOR, L.Dense(1), loss="mse", target=real(()))
    on("loss_expanded", VECTOR, L.Dense(1, activation="sigmoid"), loss="binary_crossentropy", target=label(2))
    add("loss_masked_sum", [IDS], lambda x: L.Dense(3)(L.Embedding(6, 4, mask_zero=True)(x)), loss=S.MeanSquaredError(reduction="sum"), weight=True)
    add("loss_masked_sparse", [IDS], lambda x: L.Dense(3, activation="softmax")(L.Embedding(6, 4, mask_zero=True)(x)), loss="sparse_categorical_crossentropy",
        target=label(3, (6,)), weight=True)
    add("loss_masked_weighted_mean", [IDS], lambda x: L.Dense(3)(L.Embedding(6, 4, mask_zero=True)(x)), loss=S.MeanSquaredError(reduction="mean_with_sample_weight"), weight=True)
    two = lambda rng, n: [short(rng.uniform(-1, 1, (n, 2))), rng.integers(0, 3, (n, 1)).astype("int32")]  # noqa: E731
    heads = lambda x: [L.Dense(2, name="left")(x), L.Dense(3, activation="softmax", name="right")(x)]  # noqa: E731
    kinds = {"left": "mae", "right": "sparse_categorical_crossentropy"}
    add("loss_by_layer_name", [VECTOR], heads, loss=kinds, compile_args={"loss_weights": {"left": 0.3, "right": 2.0}}, target=two)
    add("loss_by_dict_name", [VECTOR], lambda x: dict(zip(("b_out", "a_out"), heads(x))), loss={"a_out": "sparse_categorical_crossentropy", "b_out": "mae"},
        compile_args={"loss_weights": {"a_out": 2.0, "b_out": 0.5}}, target=two)
    add("loss_by_list_weighted", [VECTOR], heads, loss=["mse", "sparse_categorical_crossentropy"], compile_args={"loss_weights": [2.0, 0.5]}, target=two, weight=False)
    add("loss_one_for_two", [VECTOR], lambda x: [L.Dense(2, name="left")(x), L.Dense(3, name="right")(x)], loss="mse")


# ---- operations ----

def operations():
    def op(name, f, shape=SERIES, **more):
        on("op_" + name, shape, f, **more)

    rows = np.array([0.5, -1.0, 2.0, 0.25], "float32")
    numbers = {
        "add_number": lambda x: x + 2, "number_minus": lambda x: 1.5 - x, "minus_number": lambda x: x - 0.5, "number_over": lambda x: 2.0 / (x * x + 1.0),
        "over_number": lambda x: x / 3, "power": lambda x: K.power(K.abs(x) + 0.5, 1.7), "power_two": lambda x: x ** 2, "power_three": lambda x: x ** 3,
        "number_power": lambda x: 2.0 ** x, "power_half": lambda x: (x * x + 0.1) ** 0.5, "maximum": lambda x: K.maximum(x, 0.1), "minimum": lambda x: K.minimum(0.2, x),
        "maximum_zero": lambda x: K.maximum(0.0, x), "negative": lambda x: -x, "constant_add": lambda x: x + rows, "constant_multiply": lambda x: x * rows,
        "constant_divide": lambda x: x / rows, "constant_matrix": lambda x: K.matmul(x, np.arange(12, dtype="float32").reshape(4, 3) / 10),
        "constant_maximum": lambda x: K.maximum(x, rows), "mod": lambda x: x % 0.3, "floor_divide": lambda x: x + x // 0.3,
    }
    unary = {name: getattr(K, name) for name in (
        "abs", "square", "exp", "sin", "cos", "tanh", "sign", "floor", "erf", "relu", "relu6", "sigmoid", "hard_sigmoid", "softplus", "softsign", "silu", "hard_silu",
        "hard_tanh", "log_sigmoid", "selu", "tanh_shrink", "sparse_plus", "gelu", "elu", "celu", "leaky_relu", "hard_shrink", "soft_shrink", "squareplus", "sparse_sigmoid",
        "ceil", "round", "expm1", "tan", "sinh", "cosh", "arctan", "exp2", "isnan", "mish") if hasattr(K, name)}
    unary.pop("isnan", None)
    for name, f in {**numbers, **unary}.items():
        op(name, f)
    for name, f in {
            "sqrt": lambda x: K.sqrt(K.abs(x) + 0.1), "rsqrt": lambda x: K.rsqrt(K.square(x) + 0.1), "log": lambda x: K.log(K.abs(x) + 0.2), "log1p": lambda x: K.log1p(K.abs(x)),
            "log1p_small": lambda x: K.log1p(K.abs(x) * 1e-6) * 1e5, "log2": lambda x: K.log2(K.abs(x) + 0.2), "log10": lambda x: K.log10(K.abs(x) + 0.2),
            "reciprocal": lambda x: K.reciprocal(x * x + 1.0), "clip": lambda x: K.clip(x, -0.2, 0.3), "clip_none": lambda x: K.clip(x, 0.1, 9.0), "gelu_exact": lambda x: K.gelu(x, approximate=False),
            "elu_alpha": lambda x: K.elu(x, alpha=0.3), "celu_alpha": lambda x: K.celu(x, alpha=0.4), "leaky_slope": lambda x: K.leaky_relu(x, negative_slope=0.05),
            "hard_shrink_threshold": lambda x: K.hard_shrink(x, threshold=0.2), "soft_shrink_threshold": lambda x: K.soft_shrink(x, threshold=0.2), "squareplus_b": lambda x: K.squareplus(x, b=2),
            "threshold": lambda x: K.threshold(x, 0.1, -1.0), "glu": lambda x: K.glu(x), "softmax": lambda x: K.softmax(x), "softmax_axis": lambda x: K.softmax(x, axis=1),
            "softmax_all": lambda x: K.softmax(x, axis=None), "log_softmax": lambda x: K.log_softmax(x, axis=1), "normalize": lambda x: K.normalize(x, axis=1),
            "arctan2": lambda x: K.arctan2(x, x + 3.0), "logaddexp": lambda x: K.logaddexp(x, x * 2), "cast_int": lambda x: K.cast(K.cast(x * 3, "int32"), "float32") + x,
            "cast_bool": lambda x: x * K.cast(x > 0.1, "float32"), "stop_gradient": lambda x: x + K.stop_gradient(x * x)}.items():
        op(name, f)
    reductions = {
        "mean_all": lambda x: K.mean(x) + x, "mean_axis": lambda x: K.mean(x, axis=1), "mean_axes": lambda x: K.mean(x, axis=(1, 2), keepdims=True), "mean_batch": lambda x: K.mean(x, axis=0) + x,
        "sum": lambda x: K.sum(x, axis=-1), "sum_negative": lambda x: K.sum(x, axis=(-1, -2)), "sum_batch": lambda x: x - K.sum(x, axis=0, keepdims=True), "max": lambda x: K.max(x, axis=1), "max_keep": lambda x: K.max(x, axis=-1, keepdims=True),
        "min": lambda x: K.min(x, axis=(1, 2)), "prod": lambda x: K.prod(x, axis=1), "prod_keep": lambda x: K.prod(x, axis=2, keepdims=True), "amax": lambda x: K.amax(x, axis=1), "amin": lambda x: K.amin(x, axis=2, keepdims=True),
        "var": lambda x: K.var(x, axis=1), "var_keep": lambda x: K.var(x, axis=(1, 2), keepdims=True), "std": lambda x: K.std(x, axis=2), "std_all": lambda x: x / K.std(x), "norm": lambda x: K.norm(x, axis=-1), "norm_keep": lambda x: K.norm(x, axis=1, keepdims=True),
        "norm_1": lambda x: K.norm(x, ord=1, axis=-1), "norm_inf": lambda x: K.norm(x, ord=np.inf, axis=-1), "norm_fro": lambda x: K.norm(x, ord="fro", axis=(1, 2)), "norm_2_axes": lambda x: K.norm(x, ord=2, axis=(1, 2)), "norm_3": lambda x: K.norm(x, ord=3, axis=2), "norm_matrix_1": lambda x: K.norm(x, ord=1, axis=(1, 2)),
        "logsumexp_axis": lambda x: K.logsumexp(x, axis=1), "average": lambda x: K.average(x, axis=1), "average_weights": lambda x: K.average(x, axis=2, weights=rows + 2), "median": lambda x: K.median(x, axis=1), "any": lambda x: x * K.cast(K.any(x > 0.4, axis=2, keepdims=True), "float32"),
        "all": lambda x: x * K.cast(K.all(x > -0.6, axis=1, keepdims=True), "float32"), "any_all": lambda x: x * K.cast(K.any(x > 0.9), "float32"),
    }
    for name, f in reductions.items():
        op(name, lambda x, f=f: f(x))
    truths = {
        "where": lambda x: K.where(x > 0.1, x, 2 * x), "where_number": lambda x: K.where(x > 0, x, -1.0), "where_numbers": lambda x: K.where(x >= 0.1, 1.0, -1.0) * x, "where_first": lambda x: K.where(x < 0, 0.5, K.square(x)),
        "where_infinite": lambda x: K.softmax(K.where(x > -0.3, x, -np.inf)), "where_infinite_other": lambda x: K.exp(K.where(x < 0.2, -np.inf, x)), "where_not_taken": lambda x: K.where(x > 0.0, K.log(K.maximum(x, 0.01)), x),
        "where_broadcast": lambda x: K.where(x[:, :, :1] > 0, x, 0.0), "where_broadcast_value": lambda x: K.where(x > 0, x, x[:, :1]), "where_constant": lambda x: K.where(x > 0, x, rows), "where_nan": lambda x: K.where(x > 0.0, x, 0.0 * x),
        "compare_equal": lambda x: K.where(K.equal(K.floor(x), -1.0), x, 3 * x), "compare_not_equal": lambda x: K.where(K.not_equal(K.sign(x), 1.0), x, 3 * x), "compare_less_equal": lambda x: K.where(x <= K.mean(x), x, -x),
        "compare_tensors": lambda x: K.where(K.greater_equal(x, x[:, ::-1]), x, 0.5 * x), "compare_number_first": lambda x: K.where(K.less(0.2, x), x, 3 * x), "logical": lambda x: K.where(K.logical_and(x > -0.5, K.logical_not(x > 0.5)), x, 2 * x),
        "logical_or": lambda x: K.where(K.logical_or(x < -0.5, x > 0.5), x, 2 * x), "logical_xor": lambda x: K.where(K.logical_xor(x < 0.5, x > -0.5), x, 2 * x), "isclose": lambda x: K.where(K.isclose(x, x), x, 2 * x), "isfinite": lambda x: K.where(K.isfinite(x), x, 2 * x),
        "compare_infinite": lambda x: K.where(K.less(K.where(x > 0, np.inf, x), 5.0), x, 2 * x), "equal_infinite": lambda x: K.where(K.equal(K.where(x > 0, np.inf, x), np.inf), x, 2 * x),
    }
    for name, f in truths.items():
        op(name, f)
    moves = {
        "reshape": lambda x: K.reshape(x, (-1, 3, 8)), "reshape_open": lambda x: K.reshape(x, (3, -1)), "transpose": lambda x: K.transpose(x, (0, 2, 1)), "transpose_negative": lambda x: K.transpose(x, (0, -1, 1)), "swapaxes": lambda x: K.swapaxes(x, -1, 1),
        "moveaxis": lambda x: K.moveaxis(x, 2, 1), "moveaxis_negative": lambda x: K.moveaxis(x, -1, -2), "moveaxis_lists": lambda x: K.moveaxis(x[:, None], (1, 3), (3, 2)), "expand_last": lambda x: K.expand_dims(x, -1), "expand_middle": lambda x: K.expand_dims(x, 1),
        "expand_axes": lambda x: K.expand_dims(x, (1, 3)), "squeeze": lambda x: K.squeeze(x[:, :1], 1), "squeeze_negative": lambda x: K.squeeze(x[:, :1], -2), "squeeze_none": lambda x: K.squeeze(x[:, :1]), "squeeze_axes": lambda x: K.squeeze(x[:, :1, :1], (1, 2)),
        "concatenate": lambda x: K.concatenate([x, x * 2], axis=1), "concatenate_last": lambda x: K.concatenate([x, K.square(x), x], axis=-1), "stack": lambda x: K.stack([x, -x], axis=1), "stack_last": lambda x: K.stack([x, -x, x * x], axis=-1), "hstack": lambda x: K.hstack([x, x * x]),
        "split": lambda x: K.split(x, 3, axis=1)[1], "split_places": lambda x: (lambda p: p[0] * 2 + p[2][:, :1])(K.split(x, [1, 4], axis=1)), "split_last": lambda x: (lambda p: p[0] * p[1])(K.split(x, 2, axis=-1)), "split_all": lambda x: (lambda p: p[0] - p[3])(K.split(x, 4, axis=2)),
        "get_int": lambda x: x[:, 2], "get_last": lambda x: x[:, -1], "get_slice": lambda x: x[:, 1:5:2], "get_back": lambda x: x[:, ::-1], "get_back_slice": lambda x: x[:, 4:0:-2], "get_ellipsis": lambda x: x[..., 1:3], "get_ellipsis_int": lambda x: x[..., -1], "get_new": lambda x: x[:, None, :, 0], "get_negative": lambda x: x[:, -4:-1, 1:],
        "get_over": lambda x: x[:, 2:100], "tile": lambda x: K.tile(x, (1, 2, 3)), "tile_short": lambda x: K.tile(x, 2), "tile_long": lambda x: K.tile(x, (2, 1, 1, 2))[0], "tile_pair": lambda x: K.tile(x, (2, 1)), "repeat": lambda x: K.repeat(x, 3, axis=1), "repeat_last": lambda x: K.repeat(x, 2, axis=-1),
        "repeat_list": lambda x: K.repeat(x, [1, 2, 3, 1, 1, 2], axis=1), "repeat_one": lambda x: K.repeat(x, [2], axis=1), "repeat_none": lambda x: K.reshape(K.repeat(x, 2), (3, -1)), "broadcast": lambda x: K.broadcast_to(x[:, :1], (3, 6, 4)), "broadcast_rank": lambda x: K.broadcast_to(x, (2, 3, 6, 4))[1], "flip": lambda x: K.flip(x, axis=1), "flip_all": lambda x: K.flip(x), "flip_axes": lambda x: K.flip(x, axis=(1, 2)),
        "pad": lambda x: K.pad(x, ((0, 0), (1, 2), (0, 3))), "pad_value": lambda x: K.pad(x, ((0, 0), (1, 2), (0, 3)), constant_values=0.7), "pad_reflect": lambda x: K.pad(x, ((0, 0), (2, 1), (1, 0)), mode="reflect"), "pad_symmetric": lambda x: K.pad(x, ((0, 0), (2, 1), (1, 1)), mode="symmetric"), 
        "zeros_like": lambda x: K.zeros_like(x) + x, "ones_like": lambda x: K.ones_like(x) * x, "roll": lambda x: K.roll(x, 2, axis=1), "rot90": lambda x: K.rot90(x, axes=(1, 2)), "cumsum": lambda x: K.cumsum(x, axis=1), "diff": lambda x: K.diff(x, axis=1),
        "take": lambda x: K.take(x, [0, 2, 2], axis=1), "take_one": lambda x: K.take(x, 1, axis=2), "sort": lambda x: K.sort(x, axis=1), "tril": lambda x: K.tril(x), "triu": lambda x: K.triu(x, k=1), "diagonal": lambda x: K.diagonal(x, axis1=1, axis2=2), "trace": lambda x: K.trace(x, axis1=1, axis2=2), "flatten": lambda x: K.reshape(x, (3, 24)), "unstack": lambda x: K.unstack(x, axis=1)[0],
        "full_like": lambda x: K.full_like(x, 2.0) * x, "argmax": lambda x: x[:, :, 0] + K.cast(K.argmax(x, axis=-1), "float32"), "top_k": lambda x: K.top_k(x, 2)[0], "one_hot": lambda x: x + K.one_hot(K.argmax(x, axis=-1), 4), "ravel": lambda x: K.ravel(x), "nan_to_num": lambda x: K.nan_to_num(x), "slice": lambda x: K.slice(x, (0, 1, 0), (3, 2, 4)),
    }
    for name, f in moves.items():
        op(name, f, train=name != "ravel")
    two = {
        "matmul": lambda a, b: K.matmul(a, K.transpose(b, (0, 2, 1))), "matmul_kernel": lambda a, b: K.matmul(a, K.reshape(b[0, :4, :3], (4, 3))), "matmul_broadcast": lambda a, b: K.matmul(a[:, None], K.transpose(b, (0, 2, 1))[:, None]), "matmul_heads": lambda a, b: K.matmul(K.stack([a, -a], axis=1), K.transpose(b, (0, 2, 1))[:, None]),
        "matmul_vector": lambda a, b: K.matmul(a, b[0, 0]), "dot": lambda a, b: K.dot(a[0], K.transpose(b[0])), "tensordot": lambda a, b: K.tensordot(a, b[0], axes=([2], [1])), "einsum": lambda a, b: K.einsum("btd,bsd->bts", a, b), "einsum_sum": lambda a, b: K.einsum("btd,bsd->bt", a, b),
        "einsum_outer": lambda a, b: K.einsum("bi,bj->bij", a[:, 0], b[:, 1]), "einsum_ellipsis": lambda a, b: K.einsum("...td,...sd->...ts", a, b), "einsum_elementwise": lambda a, b: K.einsum("btd,btd->btd", a, b), "einsum_implicit": lambda a, b: K.einsum("btd,bsd", a, b), "einsum_transposed": lambda a, b: K.einsum("btd,bsd->stb", a, b),
        "einsum_diagonal": lambda a, b: K.einsum("btt,btd->bd", a[:, :4], b[:, :4]), "einsum_scalar": lambda a, b: K.einsum("btd,btd->", a, b) * a, "maximum_tensors": lambda a, b: K.maximum(a, b), "minimum_broadcast": lambda a, b: K.minimum(a, b[:, :1]), "divide_tensors": lambda a, b: a / (K.square(b) + 0.5),
        "power_tensors": lambda a, b: K.power(K.abs(a) + 0.5, b), "subtract_rank": lambda a, b: a - b[:, 0, 0][:, None, None], "add_shapes": lambda a, b: a[:, :, None] + b[:, None], "multiply_row": lambda a, b: a * b[0, 0], "arctan2_tensors": lambda a, b: K.arctan2(a, b + 2.0), "where_tensors": lambda a, b: K.where(a > b, a, b * 2), "outer": lambda a, b: K.outer(a[:, 0, 0], b[:, 0, 0]),
        "vdot": lambda a, b: K.vdot(a, b) * a, "cross": lambda a, b: K.cross(a[..., :3], b[..., :3]), "add_n": lambda a, b: a + b + a * b, "rsub_chain": lambda a, b: 1 - (a - (2 - b)), "squared_difference": lambda a, b: K.square(a - b), "logaddexp_tensors": lambda a, b: K.logaddexp(a, b), "inner": lambda a, b: K.inner(a, b[0]),
    }
    for name, f in two.items():
        by_sample = name not in ("einsum_transposed", "einsum_implicit")
        add("op_" + name, [SERIES, SERIES], lambda a, b, f=f: f(probe(a), L.Dense(4, name="second")(b)), train=by_sample)
    images = {
        "nn_average_pool": lambda x: K.average_pool(x, 2, strides=2, padding="same"), "nn_max_pool": lambda x: K.max_pool(x, 3, strides=1), "image_resize": lambda x: K.image.resize(x, (4, 5)), "nn_depth_to_space": lambda x: K.depth_to_space(x, 2) if hasattr(K, "depth_to_space") else x, "nn_conv": lambda x: K.conv(x, np.ones((2, 2, 4, 3), "float32") / 9),
        "layer_normalization": lambda x: K.layer_normalization(x, axis=-1) if hasattr(K, "layer_normalization") else x, "rms_normalization": lambda x: K.rms_normalization(x, axis=-1) if hasattr(K, "rms_normalization") else x}
    for name, f in images.items():
        op(name, f, shape=IMAGE)


# ---- combinations drawn at random ----

def pick(rng, items):
    return items[int(rng.integers(len(items)))]


def flip(rng, p=0.5):
    return bool(rng.random() < p)


def vector_step(rng, x):
    width = int(x.shape[-1])
    return pick(rng, [
        lambda: L.Dense(int(rng.integers(2, 6)), activation=pick(rng, [None, "relu", "tanh", "gelu", "selu", "softmax"]), use_bias=flip(rng))(x),
        lambda: L.BatchNormalization(scale=flip(rng), center=flip(rng), momentum=0.8)(x), lambda: L.LayerNormalization(center=flip(rng), rms_scaling=flip(rng, 0.3))(x),
        lambda: pick(rng, [L.ReLU(), L.LeakyReLU(0.1), L.ELU(0.5), L.PReLU(), L.Softmax(), L.Activation("silu")])(x), lambda: L.RepeatVector(int(rng.integers(2, 5)))(x),
        lambda: x * float(rng.uniform(0.5, 2)) + 0.1, lambda: L.Concatenate()([x, L.Dense(3)(x)]), lambda: pick(rng, [L.Add, L.Multiply, L.Maximum, L.Average])()([x, L.Dense(width)(x)]),
        lambda: L.Reshape((width, 1))(x), lambda: K.where(x > 0.1, x, 0.5 * K.tanh(x)), lambda: K.concatenate([x[:, ::-1], K.square(x)], axis=-1), lambda: L.UnitNormalization()(x),
        lambda: L.Dense(4, activity_regularizer="l2", kernel_regularizer="l1")(x), lambda: x / (K.sum(K.abs(x), axis=-1, keepdims=True) + 1.0)])()


def series_step(rng, x):
    steps, width = int(x.shape[1]), int(x.shape[2])
    cell = pick(rng, [L.LSTM, L.GRU, L.SimpleRNN])
    pad = pick(rng, ["same", "valid", "causal"])
    heads = dict(num_heads=int(rng.integers(1, 3)), key_dim=int(rng.integers(2, 4)))
    return pick(rng, [
        lambda: L.Dense(int(rng.integers(2, 6)), activation=pick(rng, [None, "relu", "tanh", "gelu"]))(x), lambda: L.TimeDistributed(L.Dense(3, activation="elu"))(x),
        lambda: L.Conv1D(4, int(rng.integers(1, 4)), padding=pad, dilation_rate=int(rng.integers(1, 3)), activation=pick(rng, [None, "relu"]))(x), lambda: L.Conv1D(4, 2, strides=2, padding="same")(x),
        lambda: L.SeparableConv1D(4, 2, padding="same")(x), lambda: L.MaxPooling1D(2, strides=1, padding="same")(x), lambda: L.AveragePooling1D(2, padding="same")(x), lambda: L.ZeroPadding1D((1, 0))(x),
        lambda: L.BatchNormalization(momentum=0.8)(x), lambda: L.LayerNormalization(axis=pick(rng, [-1, 1, [1, 2]]))(x), lambda: L.RMSNormalization()(x), lambda: L.GroupNormalization(groups=width if flip(rng) else 1)(x),
        lambda: cell(3, return_sequences=True, go_backwards=flip(rng))(x), lambda: cell(3)(x), lambda: L.Bidirectional(cell(2, return_sequences=flip(rng)), merge_mode=pick(rng, ["concat", "sum", "mul", "ave"]))(x),
        lambda: L.MultiHeadAttention(**heads)(x, x, use_causal_mask=flip(rng)), lambda: L.Add()([x, L.MultiHeadAttention(**heads)(x, x)]), lambda: L.Attention(use_scale=flip(rng))([x, L.Dense(width)(x)]),
        lambda: L.AdditiveAttention()([x, L.Dense(width)(x)]), lambda: pick(rng, [L.GlobalAveragePooling1D, L.GlobalMaxPooling1D])(keepdims=flip(rng, 0.3))(x), lambda: L.Permute((2, 1))(x), lambda: L.Flatten()(x),
        lambda: L.Concatenate(axis=pick(rng, [1, -1]))([x, x * x]), lambda: pick(rng, [L.Add, L.Multiply, L.Maximum])()([x, L.GlobalAveragePooling1D(keepdims=True)(x)]), lambda: L.Multiply()([x, L.Dense(width)(L.GlobalMaxPooling1D()(x))]),
        lambda: x[:, ::-1] + K.mean(x, axis=1, keepdims=True), lambda: K.softmax(x, axis=1) * x, lambda: L.Dot(axes=2)([x, L.Dense(width)(x)]), lambda: K.matmul(x, K.transpose(x, (0, 2, 1))), lambda: L.Softmax(axis=pick(rng, [1, 2]))(x),
        lambda: L.Cropping1D((1, 0))(x) if steps > 2 else L.Identity()(x), lambda: L.UpSampling1D(2)(x) if steps < 6 else L.ReLU()(x), lambda: K.where(x > 0, x, K.exp(x) - 1), lambda: L.EinsumDense("abc,cd->abd", output_shape=(None, 3), bias_axes="d")(x)])()


def image_step(rng, x):
    channels = int(x.shape[-1])
    pad = pick(rng, ["same", "valid"])
    k = int(rng.integers(1, 4))
    return pick(rng, [
        lambda: L.Conv2D(4, k, strides=int(rng.integers(1, 3)), padding=pad, activation=pick(rng, [None, "relu", "tanh"]))(x), lambda: L.Conv2D(channels * 2, k, groups=channels if flip(rng) else 1, padding="same")(x),
        lambda: L.Conv2D(3, 2, dilation_rate=2, padding="same")(x), lambda: L.DepthwiseConv2D(k, padding=pad, depth_multiplier=int(rng.integers(1, 3)))(x), lambda: L.SeparableConv2D(3, k, padding="same")(x), lambda: L.Conv2DTranspose(2, k, strides=2, padding=pad)(x),
        lambda: pick(rng, [L.MaxPooling2D, L.AveragePooling2D])(2, strides=int(rng.integers(1, 3)), padding=pad)(x), lambda: L.ReLU()(L.BatchNormalization()(x)), lambda: L.Activation("relu")(L.BatchNormalization(axis=pick(rng, [-1, 1]), scale=flip(rng))(x)),
        lambda: L.LayerNormalization(axis=pick(rng, [-1, [1, 2, 3], [2, 3]]))(x), lambda: L.GroupNormalization(groups=1)(x), lambda: L.ZeroPadding2D(((1, 0), (0, 2)))(x), lambda: L.UpSampling2D(2, interpolation=pick(rng, ["nearest", "bilinear"]))(x) if x.shape[1] < 5 else L.MaxPooling2D(2, padding="same")(x),
        lambda: L.Cropping2D(((1, 0), (0, 1)))(x), lambda: L.Add()([x, L.Conv2D(channels, 3, padding="same")(x)]), lambda: L.Concatenate()([x, L.Conv2D(2, 1)(x)]), lambda: L.Multiply()([x, L.Dense(channels, activation="sigmoid")(L.GlobalAveragePooling2D(keepdims=True)(x))]),
        lambda: L.Multiply()([x, L.Dense(channels, activation="sigmoid")(L.GlobalAveragePooling2D()(x))]), lambda: pick(rng, [L.GlobalAveragePooling2D, L.GlobalMaxPooling2D])()(x), lambda: L.Flatten()(x), lambda: L.Reshape((-1, channels))(x), lambda: L.PReLU(shared_axes=[1, 2])(x),
        lambda: L.Permute((3, 1, 2))(x), lambda: L.TimeDistributed(L.Conv1D(3, 2, padding="same"))(x), lambda: x - K.mean(x, axis=(1, 2), keepdims=True), lambda: K.max(x, axis=1)])()


def combination(rng):
    start = pick(rng, ["vector", "series", "image", "ids", "ids", "padded", "two"])
    specs = {"vector": [VECTOR], "series": [SERIES], "image": [(6, 5, 2)], "ids": [IDS], "padded": [PADDED], "two": [SERIES, IDS]}[start]

    def build(*ins):
        x = ins[0]
        if start == "ids":
            x = L.Embedding(6, 4, mask_zero=flip(rng, 0.8))(x)
        elif start == "padded":
            x = L.Masking()(x)
        elif start == "two":
            merge = pick(rng, [L.Add(), L.Multiply(), L.Concatenate(axis=1), L.Concatenate(), L.Attention(), L.MultiHeadAttention(2, 2)])
            other = L.Embedding(6, 4, mask_zero=flip(rng))(ins[1])
            x = merge(x, other) if isinstance(merge, L.MultiHeadAttention) else merge([x, other])
        for _ in range(int(rng.integers(3, 7))):
            x = {2: vector_step, 3: series_step, 4: image_step}[len(x.shape)](rng, x)
            if int(np.prod(x.shape[1:])) > 300:
                raise ValueError("too large")
        return x if flip(rng, 0.3) or len(x.shape) > 3 else L.Dense(2)(x)
    return specs, build


# Normalizations of numbers that are equal but for rounding (12); Keras's own float32 is norm-wise 0.5e-4 to 2.5e-4 from its float64.
ROUNDING = (12, 277, 324, 513, 525)


def combinations(count):
    for i in range(count):
        name = f"random_{i:03d}"
        if not wanted(name) or i in ROUNDING:
            continue
        for attempt in range(30):
            rng = np.random.default_rng([20261116, i, attempt])
            specs, build = combination(rng)
            try:
                model, arrays = make(name, specs, build, n=int(rng.integers(2, 5)), weight=flip(rng, 0.2))
                if not model.trainable_variables or sum(int(np.prod(v.shape)) for v in model.weights) > 600:
                    raise ValueError("too large")
            except Exception:  # noqa: BLE001
                continue
            records.append((name, saved(model), pack(arrays)))
            break


PARTS = (convolutions, pools, normalizations, activations, shapes, merges, masks, recurrents, attentions, others, losses, operations)
for part in PARTS:
    part()
    print(part.__name__, len(records), file=sys.stderr, flush=True)
combinations(560)
for line in refused:
    print("Keras refuses", line)
MEMBERS = ("config.json", "model.weights.h5", "data.bin")


def made():
    for name, model, data in records:
        with zipfile.ZipFile(io.BytesIO(model)) as file:
            yield name, [file.read("config.json"), file.read("model.weights.h5"), data]


def kept():
    """The cases of the file as it is."""
    with zipfile.ZipFile(options.out) as archive:
        content = [archive.read(member) for member in MEMBERS]
        at = [0, 0, 0]
        for line in archive.read("cases.txt").decode().splitlines():
            name, *sizes = line.split()
            ends = [a + int(n) for a, n in zip(at, sizes)]
            yield name, [c[a:e] for c, a, e in zip(content, at, ends)]
            at = ends


fresh = list(made())
assert len(fresh) == len(dict(fresh)), "a name is used twice"
cases = {**(dict(kept()) if options.add else {}), **dict(fresh)}
parts = {member: [case[i] for case in cases.values()] for i, member in enumerate(MEMBERS)}
lines = [" ".join([name] + [str(len(part)) for part in case]) + "\n" for name, case in cases.items()]
with zipfile.ZipFile(options.out, "w") as archive:
    for member, content in [("cases.txt", "".join(lines).encode())] + [(k, b"".join(v)) for k, v in parts.items()]:
        archive.writestr(zipfile.ZipInfo(member, (2026, 11, 15, 0, 0, 0)), content, zipfile.ZIP_DEFLATED, 9)
print(len(cases), "cases,", len(fresh), "made now,", os.path.getsize(options.out), "bytes")
