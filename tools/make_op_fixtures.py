#!/usr/bin/env python3
"""Writes tests/fixtures/ops/*.zip: what Keras (TensorFlow back end) computes for every layer, activation, loss, metric
and optimizer that memfit trains, on tiny inputs. Run with a Python that has keras and tensorflow:

    python tools/make_op_fixtures.py [name-part ...]      only fixtures whose name contains one of the parts

Each archive holds, per fixture, NAME/model.keras (as Keras saves it) and NAME/data.bin, a list of arrays (keras_fixture.py):

layers, losses   x<i> inputs, y<i> targets, [w] sample weights, out<i> outputs of inference, loss of one training step,
                 grad<i> gradients and key<i> the first values of their variable (that is how the test finds it),
                 stat<i> non-trainable variables after the step, statkey<i> before
metrics          x<i>, y<i>, [w], then metric:<name> after two batches (the halves of x)
optimizers       grad<s>.<i> gradient of variable i fed in step s, var<i> variable after five steps, key<i> before, rate

The file is long because it is a list of fixtures.
"""
import os
import sys
import zipfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ["KERAS_BACKEND"] = "tensorflow"

import numpy as np  # noqa: E402
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers as L  # noqa: E402
from keras_fixture import as_list, key_of, pack, saved, step_arrays  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "tests", "fixtures", "ops")
rng = np.random.default_rng(20261115)
archives = {}


def save(archive, name, model, arrays):
    archives.setdefault(archive, []).append((name, saved(model), pack(arrays)))


def write_archives():
    os.makedirs(OUT, exist_ok=True)
    for archive, entries in archives.items():
        if selected and os.path.exists(os.path.join(OUT, archive + ".zip")):  # keep the others
            with zipfile.ZipFile(os.path.join(OUT, archive + ".zip")) as old:
                known = {name for name, _, _ in entries}
                names = [n[:-len("/data.bin")] for n in old.namelist() if n.endswith("/data.bin")]
                entries[:0] = [(n, old.read(n + "/model.keras"), old.read(n + "/data.bin")) for n in names if n not in known]
        with zipfile.ZipFile(os.path.join(OUT, archive + ".zip"), "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
            for name, model, data in entries:
                for member, content in (("model.keras", model), ("data.bin", data)):
                    z.writestr(zipfile.ZipInfo(f"{name}/{member}", (2026, 11, 15, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)


def randomize(model):
    for v in model.weights:
        if not str(v.dtype).startswith("float"):
            continue
        value = rng.uniform(-0.6, 0.6, v.shape)
        if any(word in v.name for word in ("gamma", "variance")):
            value = rng.uniform(0.5, 1.5, v.shape)
        v.assign(value.astype("float32"))


def draw(spec, n):
    """An input by its Keras tensor: floats in [-1, 1), whole numbers below `high` for integer inputs."""
    shape = (n,) + tuple(spec.shape[1:])
    if str(spec.dtype).startswith("int"):
        return rng.integers(0, getattr(spec, "high", 6), shape).astype("int32")
    return rng.uniform(-1, 1, shape).astype("float32")


selected = sys.argv[1:]


def wanted(name):
    return not selected or any(part in name for part in selected)


def layer(name, inputs, outputs, n=3, loss="mse", train=True, target=None, xs=None, archive="layers", weight=None,
          prepare=None, compile_args=None, model=None):
    model = model or keras.Model(inputs, outputs, name="model")
    randomize(model)
    if prepare:
        prepare(model)
    model.compile(optimizer="sgd", loss=loss, **(compile_args or {}))
    ins = as_list(inputs)
    xs = xs or [draw(i, n) for i in ins]
    ys = target if target is not None else [rng.uniform(-1, 1, tuple(o.shape)).astype("float32")
                                            for o in as_list(model(xs[0] if len(xs) == 1 else xs))]
    save(archive, name, model, step_arrays(model, xs, as_list(ys), weight, train))


def one(name, shape, *stack, dtype="float32", **more):
    """A chain of layers on one input."""
    if not wanted(name):
        return
    i = keras.Input(shape, dtype=dtype, name="input")
    y = i
    for s in stack:
        y = s(y)
    layer(name, i, y, **more)


def image(name, *stack, shape=(6, 7, 3), **more):
    """The layer under test behind a convolution, so that its gradient shows in the kernel's."""
    one(name, shape, L.Conv2D(4, 1, name="probe"), *stack, **more)


def volume(name, *stack, shape=(4, 5, 6, 2), **more):
    one(name, shape, L.Conv3D(2, 1, name="probe"), *stack, **more)


def series(name, *stack, shape=(7, 3), **more):
    one(name, shape, L.Dense(4, name="probe"), *stack, **more)


def vector(name, *stack, shape=(5,), **more):
    one(name, shape, L.Dense(6, name="probe"), *stack, **more)


def dense_and_activations():
    one("dense", (5,), L.Dense(4))
    one("dense_no_bias", (5,), L.Dense(4, use_bias=False))
    one("dense_rank3", (4, 5), L.Dense(3, activation="relu"))
    one("dense_deep", (5,), L.Dense(8, activation="relu"), L.Dense(8, activation="tanh"), L.Dense(2))
    for a in ("relu", "sigmoid", "tanh", "softmax", "softplus", "softsign", "selu", "elu", "exponential", "leaky_relu",
              "relu6", "silu", "hard_silu", "gelu", "hard_sigmoid", "linear", "mish", "log_softmax", "log_sigmoid", "celu",
              "hard_tanh", "hard_shrink", "soft_shrink", "tanh_shrink", "squareplus", "sparse_plus",
              "sparse_sigmoid"):  # not sparsemax: Keras 3.15 computes it wrongly (its outputs do not sum to 1); not glu: it fails in a saved model
        vector("activation_" + a, L.Activation(a), L.Dense(2), n=6)
    R = keras.regularizers
    one("activity_dense", (5,), L.Dense(4, activation="tanh", activity_regularizer=R.L2(0.1)), L.Dense(2, activity_regularizer="l1"))
    one("activity_conv", (6, 7, 3), L.Conv2D(4, 3, activation="relu", activity_regularizer=R.L1L2(0.03, 0.02)), L.Flatten(), L.Dense(2))
    one("activity_layer", (7, 3), L.Dense(4), L.ActivityRegularization(l1=0.05, l2=0.1), L.LSTM(3, activity_regularizer=R.L2(0.2)))
    one("activity_gru", (7, 3), L.Dense(4), L.GRU(3, return_sequences=True, activity_regularizer=R.L2(0.2)), L.Dense(2, activity_regularizer=R.L1(0.1)))
    one("activity_norm", (6, 7, 3), L.Conv2D(4, 3), L.BatchNormalization(activity_regularizer=R.L1(0.02)), L.ReLU(activity_regularizer=R.L2(0.05)))
    one("einsum_dense", (4, 5), L.EinsumDense("abc,cd->abd", output_shape=(None, 6), bias_axes="d"))
    one("einsum_dense_heads", (4, 6), L.EinsumDense("abc,cde->abde", output_shape=(None, 2, 3), bias_axes="de"))
    one("einsum_dense_merge", (4, 2, 3), L.EinsumDense("abcd,cde->abe", output_shape=(None, 5), bias_axes="e",
                                                       activation="relu"))
    one("embedding", (5,), L.Embedding(6, 4), L.Dense(2), dtype="int32")
    one("embedding_masked_lstm", (5,), L.Embedding(6, 4, mask_zero=True), L.LSTM(3), dtype="int32")
    one("embedding_masked_mean", (5,), L.Embedding(6, 4, mask_zero=True), L.GlobalAveragePooling1D(), dtype="int32")
    vector("relu_layer", L.ReLU())
    vector("relu_layer_max", L.ReLU(max_value=0.5, negative_slope=0.1, threshold=0.1))
    vector("relu_layer_6", L.ReLU(6.0))
    vector("leaky_relu_layer", L.LeakyReLU(0.3))
    vector("elu_layer", L.ELU(0.7))
    series("prelu", L.PReLU())
    image("prelu_shared", L.PReLU(shared_axes=[1, 2]))
    series("softmax_layer", L.Softmax())
    series("softmax_layer_axis", L.Softmax(axis=1))


def convolutions():
    for p in ("same", "valid"):
        one("conv2d_" + p, (6, 7, 3), L.Conv2D(4, 3, padding=p, activation="relu"))
        one("conv2d_stride_" + p, (6, 7, 3), L.Conv2D(4, (3, 2), strides=2, padding=p))
        one("conv1d_" + p, (9, 3), L.Conv1D(4, 3, padding=p))
        one("depthwise2d_" + p, (6, 7, 3), L.DepthwiseConv2D(3, strides=2, padding=p))
        one("conv2d_transpose_" + p, (4, 5, 3), L.Conv2DTranspose(2, 3, strides=2, padding=p))
        one("conv2d_transpose_even_" + p, (4, 5, 3), L.Conv2DTranspose(2, (2, 4), strides=(2, 3), padding=p))
        one("conv1d_transpose_" + p, (4, 3), L.Conv1DTranspose(2, 3, strides=2, padding=p))
        one("conv3d_" + p, (4, 5, 4, 2), L.Conv3D(3, 2, padding=p))
        one("conv3d_transpose_" + p, (2, 3, 2, 2), L.Conv3DTranspose(2, 3, strides=2, padding=p))
    one("conv2d_dilated", (8, 8, 2), L.Conv2D(3, 3, dilation_rate=2, padding="same"))
    one("conv2d_groups", (6, 6, 4), L.Conv2D(6, 3, groups=2, padding="same", use_bias=False))
    one("conv1d_causal", (9, 3), L.Conv1D(4, 3, padding="causal", dilation_rate=2))
    one("conv1d_stride", (9, 3), L.Conv1D(4, 3, strides=2))
    one("depthwise2d_multiplier", (6, 7, 3), L.DepthwiseConv2D(3, depth_multiplier=2, padding="same"))
    one("depthwise1d", (9, 3), L.DepthwiseConv1D(3, depth_multiplier=2, padding="same"))
    one("separable2d", (6, 7, 3), L.SeparableConv2D(5, 3, padding="same", depth_multiplier=2))
    one("separable1d", (9, 3), L.SeparableConv1D(5, 3))
    one("conv2d_transpose_stride1", (4, 5, 3), L.Conv2DTranspose(2, 3, padding="same", activation="relu"))
    one("conv2d_transpose_output_padding", (4, 5, 3), L.Conv2DTranspose(2, 3, strides=2, padding="same",
                                                                       output_padding=1))
    one("conv2d_deep", (8, 8, 2), L.Conv2D(4, 3, activation="relu"), L.MaxPooling2D(), L.Conv2D(3, 2, activation="relu"),
        L.Flatten(), L.Dense(3, activation="softmax"), loss="categorical_crossentropy",
        target=[np.eye(3, dtype="float32")])


def pooling():
    for p in ("same", "valid"):
        image("max_pooling2d_" + p, L.MaxPooling2D((2, 3), strides=2, padding=p))
        image("average_pooling2d_" + p, L.AveragePooling2D((3, 2), strides=2, padding=p))
        series("max_pooling1d_" + p, L.MaxPooling1D(3, strides=2, padding=p))
        series("average_pooling1d_" + p, L.AveragePooling1D(3, padding=p))
        volume("max_pooling3d_" + p, L.MaxPooling3D(2, padding=p))
        volume("average_pooling3d_" + p, L.AveragePooling3D(2, padding=p))
    for keep in (False, True):
        suffix = "_keep" if keep else ""
        image("global_average2d" + suffix, L.GlobalAveragePooling2D(keepdims=keep))
        image("global_max2d" + suffix, L.GlobalMaxPooling2D(keepdims=keep))
    series("global_average1d", L.GlobalAveragePooling1D())
    series("global_max1d", L.GlobalMaxPooling1D())
    volume("global_average3d", L.GlobalAveragePooling3D())
    volume("global_max3d", L.GlobalMaxPooling3D())


def normalization():
    image("batch_norm", L.BatchNormalization())
    vector("batch_norm_vector", L.BatchNormalization(epsilon=1e-5, momentum=0.9), n=7)
    series("batch_norm_plain", L.BatchNormalization(center=False, scale=False))
    image("batch_norm_axis", L.BatchNormalization(axis=1))
    image("batch_norm_frozen", L.BatchNormalization(trainable=False))
    image("batch_norm_chain", L.BatchNormalization(), L.ReLU(), L.Conv2D(3, 3), L.BatchNormalization(), L.ReLU(),
          L.GlobalAveragePooling2D(), L.Dense(2))
    series("layer_norm", L.LayerNormalization())
    series("layer_norm_plain", L.LayerNormalization(center=False, scale=False, epsilon=1e-6))
    series("layer_norm_axes", L.LayerNormalization(axis=[-2, -1]))
    series("layer_norm_axis1", L.LayerNormalization(axis=1))
    image("group_norm", L.GroupNormalization(groups=2))
    image("group_norm_instance", L.GroupNormalization(groups=-1))
    series("group_norm_layer", L.GroupNormalization(groups=1, epsilon=1e-5))
    series("rms_norm", L.RMSNormalization())
    series("unit_norm", L.UnitNormalization())
    image("unit_norm_axes", L.UnitNormalization(axis=[1, 2, 3]))
    series("rescaling", L.Rescaling(1 / 127.5, offset=-1))
    one("normalization", (4, 3), L.Normalization(mean=[0.1, 0.2, 0.3], variance=[1.0, 2.0, 0.5]), L.Dense(2))
    one("normalization_adapted", (4, 3), L.Normalization(), L.Dense(2),
        prepare=lambda m: m.layers[1].adapt(rng.uniform(-1, 1, (16, 4, 3)).astype("float32")))


def shapes():
    image("flatten", L.Flatten(), L.Dense(2))
    image("reshape", L.Reshape((-1, 2)), L.Dense(2))
    image("permute", L.Permute((3, 1, 2)), L.Dense(2))
    vector("repeat_vector", L.RepeatVector(3), L.Dense(2))
    series("zero_padding1d", L.ZeroPadding1D((1, 2)), L.Dense(2))
    image("zero_padding2d", L.ZeroPadding2D(((1, 2), (0, 3))), L.Conv2D(2, 2))
    volume("zero_padding3d", L.ZeroPadding3D(1))
    series("cropping1d", L.Cropping1D((1, 2)))
    image("cropping2d", L.Cropping2D(((1, 2), (0, 3))))
    volume("cropping3d", L.Cropping3D(((1, 0), (1, 1), (0, 2))))
    series("up_sampling1d", L.UpSampling1D(2), L.Dense(2))
    image("up_sampling2d", L.UpSampling2D((2, 3)), L.Conv2D(2, 2))
    image("up_sampling2d_bilinear", L.UpSampling2D(2, interpolation="bilinear"), L.Conv2D(2, 2))
    volume("up_sampling3d", L.UpSampling3D(2))
    for method in ("nearest", "bilinear", "bicubic", "area", "lanczos3"):
        # TensorFlow has no gradient of its own for "area"
        image("resizing_" + method, L.Resizing(9, 5, interpolation=method), L.Conv2D(2, 2), train=method != "area")
    image("center_crop", L.CenterCrop(4, 3), L.Conv2D(2, 2))
    image("dropout_zero", L.Dropout(0.0))
    for a in (L.Dropout(0.4), L.SpatialDropout2D(0.4), L.GaussianNoise(0.3), L.GaussianDropout(0.3), L.AlphaDropout(0.3)):
        image("inference_" + type(a).__name__.lower(), a, train=False)
    series("inference_spatialdropout1d", L.SpatialDropout1D(0.4), train=False)
    volume("inference_spatialdropout3d", L.SpatialDropout3D(0.4), train=False)
    for a in (L.RandomFlip(), L.RandomRotation(0.2), L.RandomZoom(0.2), L.RandomTranslation(0.1, 0.1), L.RandomContrast(0.2),
              L.RandomBrightness(0.2)):  # not RandomCrop: outside training Keras 3.15 does not crop at all
        image("inference_" + type(a).__name__.lower(), a, train=False)
    image("identity", L.Identity(), L.Conv2D(2, 1))


def private():
    """Layers of keras.applications that have no public name."""
    from keras.src.applications.convnext import LayerScale, StochasticDepth
    from keras.src.applications.inception_resnet_v2 import CustomScaleLayer
    image("layer_scale", LayerScale(0.5, 4), L.Conv2D(2, 1))
    image("inference_stochasticdepth", StochasticDepth(0.4), train=False)
    if wanted("custom_scale"):
        a, b = keras.Input((4, 4, 2), name="a"), keras.Input((4, 4, 2), name="b")
        layer("custom_scale", [a, b], CustomScaleLayer(0.3)([L.Conv2D(3, 1)(a), L.Conv2D(3, 1)(b)]))


def merging():
    def two(name, merge, sa=(4, 3), sb=(4, 3)):
        if wanted(name):
            a, b = keras.Input(sa, name="a"), keras.Input(sb, name="b")
            y = merge(L.Dense(3, name="pa")(a), L.Dense(3, name="pb")(b))
            layer(name, [a, b], y)

    for cls in (L.Add, L.Subtract, L.Multiply, L.Average, L.Maximum, L.Minimum):
        two("merge_" + cls.__name__.lower(), lambda a, b, cls=cls: cls()([a, b]))
    two("concatenate", lambda a, b: L.Concatenate()([a, b]))
    two("concatenate_axis", lambda a, b: L.Concatenate(axis=1)([a, b]), (4, 3), (2, 3))
    two("dot", lambda a, b: L.Dot(axes=2)([a, b]))
    two("dot_normalized", lambda a, b: L.Dot(axes=(2, 2), normalize=True)([a, b]), (4, 3), (2, 3))
    two("operators", lambda a, b: (a + b) * 0.5 - a / (2.0 + keras.ops.square(b)))
    two("broadcast_add", lambda a, b: L.Add()([a, L.GlobalAveragePooling1D(keepdims=True)(b)]))
    if wanted("three_inputs"):
        ins = [keras.Input((4,), name=f"i{k}") for k in range(3)]
        layer("three_inputs", ins, L.Add()([L.Dense(3)(i) for i in ins]))
    if wanted("two_outputs"):
        i = keras.Input((5,), name="input")
        h = L.Dense(4, activation="relu")(i)
        layer("two_outputs", i, [L.Dense(2, name="left")(h), L.Dense(3, activation="softmax", name="right")(h)],
              loss=["mse", "sparse_categorical_crossentropy"], compile_args={"loss_weights": [0.3, 1.5]},
              target=[rng.uniform(-1, 1, (3, 2)).astype("float32"), np.array([[0], [2], [1]], "int32")])
    if wanted("shared_layer"):
        a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
        shared = L.Dense(3, activation="tanh")
        layer("shared_layer", [a, b], L.Concatenate()([shared(a), shared(b)]))
    if wanted("nested_model"):
        inner = keras.Sequential([keras.Input((4,)), L.Dense(3, activation="relu"), L.Dense(2)], name="inner")
        i = keras.Input((4,), name="input")
        layer("nested_model", i, L.Dense(2)(inner(i)))
    vector("regularized", L.Dense(4, kernel_regularizer=keras.regularizers.L1L2(0.01, 0.02),
                                  bias_regularizer=keras.regularizers.L2(0.1)))
    vector("frozen_dense", L.Dense(4, trainable=False), L.Dense(2))


def masked_series(steps, width):
    """Three samples that end after 3, 5 and 2 steps."""
    x = rng.uniform(-1, 1, (3, steps, width)).astype("float32")
    for sample, end in enumerate((3, 5, 2)):
        x[sample, end:] = 0
    return x


def recurrent():
    more = {"return_sequences": True}
    for cls in (L.SimpleRNN, L.LSTM, L.GRU):
        n = cls.__name__.lower()
        series(n, cls(3))
        series(n + "_sequences", cls(3, **more), L.Dense(2))
        series(n + "_backwards", cls(3, go_backwards=True, **more), L.Dense(2))
        series(n + "_backwards_last", cls(3, go_backwards=True))
        series(n + "_no_bias", cls(3, use_bias=False, activation="relu"))
        series(n + "_masked", L.Masking(0.0), cls(3), shape=(5, 4))
        series(n + "_stacked", cls(3, **more), cls(2))
        series("bidirectional_" + n, L.Bidirectional(cls(3)))
        series("bidirectional_sequences_" + n, L.Bidirectional(cls(3, **more)), L.Dense(2))
    if wanted("sequential_masked"):
        model = keras.Sequential([keras.Input((6,), dtype="int32"), L.Embedding(7, 4, mask_zero=True),
                                  L.Bidirectional(L.LSTM(3, **more)), L.GRU(3), L.Dense(2)])
        layer("sequential_masked", model.inputs[0], model.outputs[0], model=model)
    for cls in (L.SimpleRNN, L.LSTM, L.GRU):  # no probe: what it makes of 0 is not 0
        n = cls.__name__.lower()
        one("masked_" + n, (5, 4), L.Masking(0.0), cls(3), L.Dense(2), xs=[masked_series(5, 4)])
        one("masked_sequences_" + n, (5, 4), L.Masking(0.0), cls(3, **more), L.Conv1D(2, 3), xs=[masked_series(5, 4)])
        one("masked_bidirectional_" + n, (5, 4), L.Masking(0.0), L.Bidirectional(cls(3, **more)), L.Conv1D(2, 3),
            xs=[masked_series(5, 4)])
    one("masked_rnn_zero", (5, 4), L.Masking(0.0), L.RNN(L.LSTMCell(3), zero_output_for_mask=True, **more),
        L.Conv1D(2, 3), xs=[masked_series(5, 4)])
    series("gru_reset_before", L.GRU(3, reset_after=False, **more))
    series("lstm_hard_sigmoid", L.LSTM(3, recurrent_activation="hard_sigmoid"))
    series("gru_hard_sigmoid", L.GRU(3, recurrent_activation="hard_sigmoid", **more))
    series("gru_reset_before_hard_sigmoid", L.GRU(3, reset_after=False, recurrent_activation="hard_sigmoid", use_bias=False))
    series("gru_reset_before_backwards", L.GRU(3, reset_after=False, go_backwards=True))
    one("masked_gru_reset_before", (5, 4), L.Masking(0.0), L.GRU(3, reset_after=False, **more), L.Conv1D(2, 3), xs=[masked_series(5, 4)])
    series("lstm_activations", L.LSTM(3, activation="relu", recurrent_activation="tanh"))
    series("lstm_unrolled", L.LSTM(3, unroll=True))
    for mode in ("sum", "mul", "ave"):
        series("bidirectional_" + mode, L.Bidirectional(L.LSTM(3, **more), merge_mode=mode))
    if wanted("lstm_states"):
        i = keras.Input((5, 3), name="input")
        y, h, c = L.LSTM(4, return_state=True, return_sequences=True)(i)
        z = L.LSTM(4)(y, initial_state=[h, c])
        layer("lstm_states", i, [z, L.Dense(2)(c)])
    if wanted("gru_states"):
        i = keras.Input((5, 3), name="input")
        y, h = L.GRU(4, return_state=True)(i)
        layer("gru_states", i, L.GRU(4)(L.RepeatVector(3)(y), initial_state=h))
    series("time_distributed", L.TimeDistributed(L.Dense(3, activation="relu")))
    one("time_distributed_conv", (3, 5, 5, 2), L.TimeDistributed(L.Conv2D(3, 3)), L.TimeDistributed(L.Flatten()),
        L.LSTM(3))


class FixedMasks:
    """Keras draws what memfit draws: Philox 4x32-10 with seed 1, step 0, and one key for each random layer in the order of the
    model (a recurrent layer has two: of its input, of its state). Masks then agree, and outputs and gradients can be compared."""

    def __init__(self, model):
        self.keys, key = {}, 0
        for l in model.layers:
            if isinstance(l, (L.SimpleRNN, L.LSTM, L.GRU)):
                self.fix_cell(l.cell, key)
                key += 2
            elif isinstance(l, (L.Dropout, L.SpatialDropout1D, L.SpatialDropout2D)):
                self.keys[id(l.seed_generator)] = key
                key += 1

    @staticmethod
    def uniform(key, samples, count):
        out = np.zeros((samples, (count + 3) // 4 * 4))
        for s in range(samples):
            for block in range((count + 3) // 4):
                c, k = [block, s, 0, key], [1, 0]
                for _ in range(10):
                    p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
                    c = [p1 >> 32 ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, p0 >> 32 ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
                    k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
                out[s, 4 * block:4 * block + 4] = [(x >> 8) * 2.0 ** -24 for x in c]
        return out[:, :count]

    def mask(self, key, rate, shape):
        u = self.uniform(key, shape[0], int(np.prod(shape[1:])))
        return tf.constant(((u >= rate) / (1 - rate)).reshape(shape).astype("float32"))

    def fix_cell(self, cell, key):
        gates = {"SimpleRNNCell": 1, "LSTMCell": 4, "GRUCell": 3}[type(cell).__name__]

        def of_state(h):
            if cell.recurrent_dropout == 0:
                return None
            masks = tf.split(self.mask(key + 1, cell.recurrent_dropout, (h.shape[0], gates * cell.units)), gates, axis=1)
            return masks if gates > 1 else masks[0]

        cell.get_dropout_mask = lambda x: self.mask(key, cell.dropout, tuple(x.shape)) if cell.dropout else None
        cell.get_recurrent_dropout_mask = of_state

    def dropout(self, inputs, rate, noise_shape=None, seed=None):
        shape = tuple(inputs.shape if noise_shape is None else (n or d for n, d in zip(noise_shape, inputs.shape)))
        return inputs * self.mask(self.keys[id(seed)], rate, shape)


def fixed_masks():
    def fixed(name, shape, *stack):
        if not wanted(name):
            return
        i = keras.Input(shape, name="input")
        y = i
        for s in stack:
            y = s(y)
        model = keras.Model(i, y, name="model")
        masks, own = FixedMasks(model), keras.src.backend.random.dropout
        keras.src.backend.random.dropout = masks.dropout
        layer(name, i, y, n=5, model=model)
        keras.src.backend.random.dropout = own

    sequences = {"return_sequences": True}
    fixed("fixed_dropout", (6, 5), L.Dense(7), L.Dropout(0.4), L.Dense(3), L.Dropout(0.2))
    fixed("fixed_dropout_shared", (6, 5), L.Dense(7), L.Dropout(0.4, noise_shape=(None, 1, 7)), L.Dense(3))
    fixed("fixed_spatial_dropout1d", (6, 5), L.Conv1D(7, 1), L.SpatialDropout1D(0.4), L.Conv1D(2, 3))
    fixed("fixed_spatial_dropout2d", (6, 5, 3), L.Conv2D(7, 1), L.SpatialDropout2D(0.4), L.Conv2D(2, 3))
    for cls in (L.SimpleRNN, L.LSTM, L.GRU):
        n = "fixed_" + cls.__name__.lower()
        fixed(n + "_dropout", (6, 5), L.Dense(4), cls(5, dropout=0.3, **sequences), cls(3, dropout=0.2))
        fixed(n + "_recurrent_dropout", (6, 5), L.Dense(4), cls(5, recurrent_dropout=0.3, **sequences), cls(3, recurrent_dropout=0.4))
    fixed("fixed_gru_reset_before", (6, 5), L.Dense(4), L.GRU(5, reset_after=False, recurrent_dropout=0.3, **sequences), L.GRU(3, reset_after=False))
    fixed("fixed_lstm_hard_sigmoid", (6, 5), L.Dense(4), L.LSTM(5, recurrent_activation="hard_sigmoid", recurrent_dropout=0.3))
    fixed("fixed_gru_backwards", (6, 5), L.Dense(4), L.GRU(5, go_backwards=True, recurrent_dropout=0.3, **sequences))


def attention():
    def mha(name, cross=False, call=None, **args):
        if not wanted(name):
            return
        q = keras.Input((4, 6), name="q")
        v = keras.Input((5, 6), name="v") if cross else q
        y = L.MultiHeadAttention(**args)(q, v, **(call or {}))
        layer(name, [q, v] if cross else q, y)

    mha("mha", num_heads=2, key_dim=3)
    mha("mha_cross", cross=True, num_heads=2, key_dim=3, value_dim=4)
    mha("mha_no_bias", num_heads=1, key_dim=2, use_bias=False, output_shape=5)
    mha("mha_causal", call={"use_causal_mask": True}, num_heads=2, key_dim=3)
    for name, make in (("attention", lambda: L.Attention()), ("attention_scaled", lambda: L.Attention(use_scale=True)),
                       ("attention_concat", lambda: L.Attention(score_mode="concat")),
                       ("additive_attention", lambda: L.AdditiveAttention())):
        if wanted(name):
            q, v = keras.Input((4, 3), name="q"), keras.Input((5, 3), name="v")
            layer(name, [q, v], make()([L.Dense(3)(q), L.Dense(3)(v)]))
    if wanted("transformer_block"):
        i = keras.Input((5, 8), name="input")
        a = L.MultiHeadAttention(num_heads=2, key_dim=4)(i, i)
        x = L.LayerNormalization(epsilon=1e-6)(L.Add()([i, a]))
        f = L.Dense(8)(L.Dense(16, activation="gelu")(x))
        x = L.LayerNormalization(epsilon=1e-6)(L.Add()([x, f]))
        layer("transformer_block", i, L.Dense(3, activation="softmax")(L.GlobalAveragePooling1D()(x)),
              loss="sparse_categorical_crossentropy", target=[np.array([0, 2, 1], "int32")])


def losses():
    n, k = 4, 5
    labels = rng.integers(0, k, (n, 1)).astype("int32")
    one_hot = np.eye(k, dtype="float32")[labels[:, 0]]
    binary = rng.integers(0, 2, (n, k)).astype("float32")
    real = rng.uniform(-1, 1, (n, k)).astype("float32")
    share = rng.uniform(0.1, 1, (n, k)).astype("float32")
    share /= share.sum(1, keepdims=True)
    weight = rng.uniform(0.2, 2, (n,)).astype("float32")
    K = keras.losses
    cases = {
        "mse": ("mse", None, real), "mae": ("mae", None, real), "mape": ("mape", None, real + 2),
        "msle": ("msle", "softplus", share), "huber": ("huber", None, 3 * real), "log_cosh": ("log_cosh", None, real),
        "poisson": ("poisson", "softplus", share), "kl": ("kl_divergence", "softmax", share),
        "hinge": ("hinge", None, binary), "hinge_signed": ("hinge", None, 2 * binary - 1),
        "squared_hinge": ("squared_hinge", None, binary), "categorical_hinge": ("categorical_hinge", None, one_hot),
        "bce_sigmoid": ("binary_crossentropy", "sigmoid", binary),
        "bce_logits": (K.BinaryCrossentropy(from_logits=True), None, binary),
        "bce_smoothed": (K.BinaryCrossentropy(label_smoothing=0.1), "sigmoid", binary),
        "bce_probabilities": ("binary_crossentropy", "hard_sigmoid", binary),
        "cce_softmax": ("categorical_crossentropy", "softmax", one_hot),
        "cce_soft_targets": ("categorical_crossentropy", "softmax", share),
        "cce_logits": (K.CategoricalCrossentropy(from_logits=True), None, one_hot),
        "cce_smoothed": (K.CategoricalCrossentropy(label_smoothing=0.2), "softmax", one_hot),
        "cce_probabilities": ("categorical_crossentropy", "softplus", one_hot),
        "scce_softmax": ("sparse_categorical_crossentropy", "softmax", labels),
        "scce_logits": (K.SparseCategoricalCrossentropy(from_logits=True), None, labels),
        "scce_probabilities": ("sparse_categorical_crossentropy", "hard_sigmoid", labels),
        "binary_focal": ("binary_focal_crossentropy", "sigmoid", binary),
        "binary_focal_balanced": (K.BinaryFocalCrossentropy(apply_class_balancing=True, alpha=0.3, gamma=1.5), "sigmoid",
                                  binary),
        "categorical_focal": ("categorical_focal_crossentropy", "softmax", one_hot),
        "cosine": ("cosine_similarity", None, real),
        "mse_sum": (K.MeanSquaredError(reduction="sum"), None, real),
    }
    for name, (loss, activation, target) in cases.items():
        one("loss_" + name, (3,), L.Dense(k, activation=activation), n=n, loss=loss, target=[target], archive="losses")
    for name in ("mse", "scce_softmax", "bce_sigmoid"):
        loss, activation, target = cases[name]
        one("loss_weighted_" + name, (3,), L.Dense(k, activation=activation), n=n, loss=loss, target=[target],
            archive="losses", weight=weight)
    one("loss_rank3_scce", (6, 3), L.Dense(k, activation="softmax"), n=2, loss="sparse_categorical_crossentropy",
        target=[rng.integers(0, k, (2, 6)).astype("int32")], archive="losses")
    some = labels.copy()
    some[1] = -1
    one("loss_scce_ignored", (3,), L.Dense(k, activation="softmax"), n=n, loss=K.SparseCategoricalCrossentropy(ignore_class=-1),
        target=[some], archive="losses", compile_args={"metrics": ["accuracy"]})
    one("loss_weighted_scce_ignored", (3,), L.Dense(k), n=n, target=[some], archive="losses", weight=weight,
        loss=K.SparseCategoricalCrossentropy(ignore_class=-1, from_logits=True))
    pixels = rng.integers(0, k, (2, 6)).astype("int32")
    pixels[0, :3] = pixels[1, 4] = 255
    one("loss_rank3_scce_ignored", (6, 3), L.Dense(k, activation="softmax"), n=2, target=[pixels], archive="losses",
        loss=K.SparseCategoricalCrossentropy(ignore_class=255))
    one("loss_rank3_scce_ignored_masked", (6, 3), L.Masking(0.0), L.LSTM(4, return_sequences=True), L.Dense(k), n=3,
        xs=[masked_series(6, 3)], target=[np.concatenate([pixels, pixels[:1]])], archive="losses",
        loss=K.SparseCategoricalCrossentropy(ignore_class=255, from_logits=True, reduction="sum"))
    one("loss_rank4_bce", (4, 4, 2), L.Conv2D(1, 1, activation="sigmoid"), n=2, loss="binary_crossentropy",
        target=[rng.integers(0, 2, (2, 4, 4, 1)).astype("float32")], archive="losses")
    one("loss_binary_one", (3,), L.Dense(1, activation="sigmoid"), n=n, loss="binary_crossentropy",
        target=[binary[:, :1]], archive="losses")


def mixed():
    for policy in ("mixed_float16", "mixed_bfloat16"):
        keras.mixed_precision.set_dtype_policy(policy)
        more = {"archive": "mixed"}
        one(policy + "_dense", (5,), L.Dense(8, activation="relu"), L.Dense(3, dtype="float32"), **more)
        one(policy + "_conv", (6, 6, 3), L.Conv2D(4, 3, activation="relu"), L.MaxPooling2D(), L.Flatten(),
            L.Dense(3, activation="softmax", dtype="float32"), loss="sparse_categorical_crossentropy",
            target=[np.array([0, 2, 1], "int32")], **more)
        one(policy + "_batch_norm", (6, 6, 3), L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU(),
            L.GlobalAveragePooling2D(), L.Dense(2, dtype="float32"), n=6, **more)
        one(policy + "_layer_norm", (5, 6), L.Dense(8), L.LayerNormalization(), L.Dense(2, dtype="float32"), **more)
        one(policy + "_lstm", (5, 3), L.LSTM(4), L.Dense(2, dtype="float32"), **more)
        keras.mixed_precision.set_dtype_policy("float32")


def metrics():
    n, k = 8, 5
    labels = rng.integers(0, k, (n, 1)).astype("int32")
    one_hot = np.eye(k, dtype="float32")[labels[:, 0]]
    binary = rng.integers(0, 2, (n, 1)).astype("float32")
    M = keras.metrics
    cases = {
        "sparse": ("softmax", k, labels, ["accuracy", "sparse_categorical_accuracy",
                                          M.SparseTopKCategoricalAccuracy(k=2, name="top2")],
                   "sparse_categorical_crossentropy"),
        "categorical": ("softmax", k, one_hot, ["accuracy", "categorical_accuracy", M.TopKCategoricalAccuracy(k=3, name="top3"),
                                                M.Precision(name="precision"), M.Recall(name="recall")],
                        "categorical_crossentropy"),
        "binary": ("sigmoid", 1, binary, ["accuracy", M.BinaryAccuracy(name="binary_accuracy", threshold=0.4),
                                          M.Precision(name="precision"), M.Recall(name="recall", thresholds=0.3),
                                          M.AUC(name="auc")], "binary_crossentropy"),
        "real": (None, 3, rng.uniform(-1, 1, (n, 3)).astype("float32"),
                 ["mae", "mse", M.RootMeanSquaredError(name="rmse")], "mse"),
    }
    for name, (activation, units, target, which, loss) in cases.items():
        name = "metric_" + name
        if not wanted(name):
            continue
        i = keras.Input((4,), name="input")
        model = keras.Model(i, L.Dense(units, activation=activation)(i), name="model")
        randomize(model)
        model.compile("sgd", loss, metrics=which)
        x = rng.uniform(-1, 1, (n, 4)).astype("float32")
        result = model.evaluate(x, target, batch_size=n // 2, verbose=0, return_dict=True)
        arrays = {"x0": x, "y0": target}
        arrays.update({"metric:" + key: np.float32(value) for key, value in result.items()})
        save("metrics", name, model, arrays)


def optimizers():
    O = keras.optimizers
    schedule = keras.optimizers.schedules
    cases = {
        "sgd": O.SGD(0.1), "sgd_momentum": O.SGD(0.1, momentum=0.9), "sgd_nesterov": O.SGD(0.1, momentum=0.9, nesterov=True),
        "sgd_decay": O.SGD(0.1, weight_decay=0.01), "sgd_clipnorm": O.SGD(0.1, clipnorm=0.5),
        "sgd_clipvalue": O.SGD(0.1, clipvalue=0.3), "sgd_global_clipnorm": O.SGD(0.1, global_clipnorm=0.7),
        "rmsprop": O.RMSprop(0.01), "rmsprop_centered": O.RMSprop(0.01, momentum=0.9, centered=True),
        "rmsprop_momentum": O.RMSprop(0.01, momentum=0.9), "adam": O.Adam(0.01),
        "adam_amsgrad": O.Adam(0.01, amsgrad=True), "adam_betas": O.Adam(0.02, beta_1=0.8, beta_2=0.95, epsilon=1e-4),
        "adam_clipnorm": O.Adam(0.01, clipnorm=0.5, weight_decay=0.02), "adamw": O.AdamW(0.01),
        "adamw_decay": O.AdamW(0.01, weight_decay=0.1), "nadam": O.Nadam(0.01), "adamax": O.Adamax(0.01),
        "adagrad": O.Adagrad(0.05), "adadelta": O.Adadelta(1.0), "adafactor": O.Adafactor(0.05),
        "adafactor_fixed": O.Adafactor(0.05, relative_step=False, clip_threshold=0.8), "lion": O.Lion(0.01),
        "lion_decay": O.Lion(0.01, weight_decay=0.1), "ftrl": O.Ftrl(0.1),
        "ftrl_strong": O.Ftrl(0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.02,
                              l2_shrinkage_regularization_strength=0.03, beta=0.1),
        "lamb": O.Lamb(0.01), "adam_ema": O.Adam(0.01, use_ema=True, ema_momentum=0.9),
    }
    C = keras.constraints
    constraints = {
        "max_norm": C.MaxNorm(0.7), "max_norm_axes": C.MaxNorm(0.5, axis=[0, 1, 2]), "unit_norm": C.UnitNorm(),
        "non_neg": C.NonNeg(), "min_max_norm": C.MinMaxNorm(0.6, 0.9), "min_max_norm_rate": C.MinMaxNorm(0.6, 0.9, rate=0.4),
    }
    cases = {name: (optimizer, None) for name, optimizer in cases.items()}
    cases.update({"constrained_" + name: (O.Adam(0.05, use_ema=name == "unit_norm", ema_momentum=0.9), c)
                  for name, c in constraints.items()})
    for name, (optimizer, constraint) in cases.items():
        name = "optimizer_" + name
        if not wanted(name):
            continue
        i = keras.Input((6, 6, 2), name="input")
        y = L.Conv2D(4, 3, kernel_constraint=constraint)(i)
        y = L.Dense(3, bias_constraint=C.NonNeg() if constraint else None)(L.GlobalAveragePooling2D()(y))
        model = keras.Model(i, y, name="model")
        randomize(model)
        model.compile(optimizer, "mse")
        optimizer.build(model.trainable_variables)
        start = [np.array(v.numpy()) for v in model.trainable_variables]
        arrays = {"rate": np.float32(optimizer.learning_rate)}
        start_file = saved(model)
        for s in range(5):
            grads = [rng.uniform(-1, 1, v.shape).astype("float32") * (0.1 if s == 3 else 1) for v in start]
            for k, g in enumerate(grads):
                arrays[f"grad{s}.{k}"] = g
            optimizer.apply([tf.constant(g) for g in grads], model.trainable_variables)
        for k, v in enumerate(model.trainable_variables):
            arrays[f"key{k}"] = key_of(start[k])
            arrays[f"var{k}"] = np.array(v.numpy())
        if optimizer.use_ema:
            for k, v in enumerate(optimizer._model_variables_moving_average):
                arrays[f"ema{k}"] = np.array(v.numpy())
        archives.setdefault("optimizers", []).append((name, start_file, pack(arrays)))


for part in (dense_and_activations, convolutions, pooling, normalization, shapes, private, merging, recurrent, attention, losses,
             mixed, metrics, optimizers, fixed_masks):
    keras.backend.clear_session()
    part()
write_archives()
for archive in sorted(archives):
    print(archive, len(archives[archive]), os.path.getsize(os.path.join(OUT, archive + ".zip")))
