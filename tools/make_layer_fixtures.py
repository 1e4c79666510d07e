#!/usr/bin/env python3
"""Writes tests/fixtures/layers.gz: one small model for every layer class and many of its options, from a real Keras.

The format is that of make_application_fixtures.py, two lines of JSON a model, one model after the other.
"""
import gzip
import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import keras  # noqa: E402
from keras import layers as L  # noqa: E402
from keras import ops  # noqa: E402
from make_application_fixtures import layers as describe  # noqa: E402

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "fixtures", "layers.gz")
MODELS = []


def add(name, inputs, outputs, **compile_with):
    model = keras.Model(inputs, outputs, name="m")
    if compile_with:
        model.compile(**compile_with)
    trainable = sum(int(v.numpy().size) for v in model.trainable_variables)
    expected = {"name": name, "parameters": model.count_params(), "trainable": trainable,
                "outputs": [list(t.shape) for t in model.outputs], "layers": list(describe(model))}
    config = json.loads(model.to_json())
    if compile_with:
        config["compile_config"] = model.get_compile_config()
    MODELS.append(json.dumps(expected, separators=(",", ":")) + "\n" + json.dumps(config, separators=(",", ":")) + "\n")


def each(name, shape, variants, dtype="float32"):
    """One model a variant: a trainable layer in front (for gradients), then the layer."""
    for i, make in enumerate(variants):
        x = keras.Input(shape, name="in", dtype=dtype)
        y = x if dtype != "float32" else L.Dense(shape[-1], name="before")(x)
        add(f"{name}-{i}", x, make(y))


def pairs(name, shape, make, other=None):
    a, b = keras.Input(shape, name="a"), keras.Input(other or shape, name="b")
    add(name, [a, b], make(L.Dense(shape[-1])(a), L.Dense((other or shape)[-1])(b)))


def convolutions():
    each("conv1d", (12, 3), [L.Conv1D(4, 3), L.Conv1D(4, 3, strides=2, padding="same"),
                            L.Conv1D(4, 3, padding="causal", dilation_rate=2), L.Conv1D(6, 3, groups=3)])
    each("conv2d", (9, 11, 4), [L.Conv2D(6, 3), L.Conv2D(6, (3, 5), strides=(2, 1), padding="same", activation="relu"),
                               L.Conv2D(4, 2, dilation_rate=2, use_bias=False), L.Conv2D(8, 1, groups=2)])
    each("conv3d", (6, 7, 8, 2), [L.Conv3D(3, 3), L.Conv3D(3, 2, strides=2, padding="same")])
    each("depthwise", (9, 11, 4), [L.DepthwiseConv2D(3), L.DepthwiseConv2D(3, depth_multiplier=2, padding="same"),
                                  L.DepthwiseConv2D(5, strides=2, use_bias=False)])
    each("depthwise1d", (12, 3), [L.DepthwiseConv1D(3, depth_multiplier=2, padding="same")])
    each("separable", (9, 11, 4), [L.SeparableConv2D(5, 3), L.SeparableConv2D(5, 3, depth_multiplier=2, strides=2,
                                                                             padding="same", activation="relu")])
    each("separable1d", (12, 3), [L.SeparableConv1D(5, 3, padding="same")])
    each("transpose1d", (6, 3), [L.Conv1DTranspose(4, 3), L.Conv1DTranspose(4, 3, strides=2, padding="same")])
    each("transpose2d", (5, 6, 3), [L.Conv2DTranspose(4, 3), L.Conv2DTranspose(4, 3, strides=2, padding="same"),
                                   L.Conv2DTranspose(4, 2, strides=3), L.Conv2DTranspose(4, 2, strides=2, padding="same"),
                                   L.Conv2DTranspose(4, 3, strides=2, padding="same", output_padding=1),
                                   L.Conv2DTranspose(4, 3, strides=2, output_padding=1)])
    each("transpose3d", (3, 4, 5, 2), [L.Conv3DTranspose(3, 3, strides=2, padding="same")])


def pooling():
    each("max1d", (12, 3), [L.MaxPooling1D(2), L.MaxPooling1D(3, strides=2, padding="same")])
    each("max2d", (9, 11, 4), [L.MaxPooling2D(), L.MaxPooling2D(3, 2, padding="same"), L.MaxPooling2D((20, 16), 1, padding="same")])
    each("max3d", (6, 7, 8, 2), [L.MaxPooling3D(2)])
    each("avg1d", (12, 3), [L.AveragePooling1D(2, padding="same")])
    each("avg2d", (9, 11, 4), [L.AveragePooling2D(2), L.AveragePooling2D(3, 2, padding="same")])
    each("avg3d", (6, 7, 8, 2), [L.AveragePooling3D(2)])
    for d, shape in ((1, (12, 3)), (2, (9, 11, 4)), (3, (6, 7, 8, 2))):
        for kind in ("Average", "Max"):
            make = getattr(L, f"Global{kind}Pooling{d}D")
            each(f"global{kind}{d}", shape, [make(), make(keepdims=True)])


def normalization():
    each("batch", (9, 11, 4), [L.BatchNormalization(), L.BatchNormalization(axis=1), L.BatchNormalization(scale=False),
                              L.BatchNormalization(center=False, momentum=0.9, epsilon=1e-5)])
    each("batch2", (7,), [L.BatchNormalization()])
    each("layer", (9, 11, 4), [L.LayerNormalization(), L.LayerNormalization(axis=[2, 3]), L.LayerNormalization(axis=1),
                              L.LayerNormalization(center=False), L.LayerNormalization(scale=False)])
    each("rms", (9, 8), [L.RMSNormalization()])
    each("group", (9, 11, 8), [L.GroupNormalization(4), L.GroupNormalization(-1), L.GroupNormalization(1)])
    each("unit", (9, 8), [L.UnitNormalization(), L.UnitNormalization(axis=[1, 2])])
    x = keras.Input((6, 5), name="in")
    add("normalization-0", x, L.Dense(2)(L.Normalization()(x)))
    add("normalization-1", x, L.Dense(2)(L.Normalization(mean=[1., 2., 3., 4., 5.], variance=[1., 1., 2., 2., 3.])(x)))
    add("normalization-2", x, L.Dense(2)(L.Normalization(axis=None, mean=1., variance=4.)(x)))
    add("normalization-3", x, L.Dense(2)(L.Normalization(axis=1)(x)))
    each("rescaling", (6, 5), [L.Rescaling(1 / 255.), L.Rescaling(2., offset=-1.), L.Rescaling([1., 2., 3., 4., 5.], offset=0.5)])


def pointwise():
    names = ("linear relu relu6 leaky_relu elu selu celu sigmoid hard_sigmoid tanh hard_tanh softplus softsign silu swish "
             "hard_silu gelu mish exponential log_sigmoid tanh_shrink soft_shrink hard_shrink squareplus sparse_plus "
             "threshold softmax log_softmax sparsemax sparse_sigmoid").split()
    each("activation", (6, 8), [L.Activation(n) for n in names if n != "threshold"])
    each("relu", (6, 8), [L.ReLU(), L.ReLU(6.), L.ReLU(max_value=4.), L.ReLU(negative_slope=0.1), L.ReLU(threshold=1.),
                          L.ReLU(max_value=3., negative_slope=0.1, threshold=0.5)])
    each("act", (6, 8), [L.LeakyReLU(), L.LeakyReLU(0.1), L.ELU(), L.ELU(0.5), L.PReLU(), L.PReLU(shared_axes=[1]),
                         L.Softmax(), L.Softmax(axis=1), L.Dense(3, activation=L.LeakyReLU(0.2))])
    each("dropout", (6, 8), [L.Dropout(0.5), L.Dropout(0.5, noise_shape=(None, 1, 8)), L.SpatialDropout1D(0.3),
                             L.GaussianNoise(0.1), L.GaussianDropout(0.2), L.AlphaDropout(0.2)])
    each("dropout2", (6, 7, 8), [L.SpatialDropout2D(0.3)])
    each("dropout3", (4, 6, 7, 8), [L.SpatialDropout3D(0.3)])


def shapes():
    each("reshape", (6, 8), [L.Flatten(), L.Reshape((3, 16)), L.Reshape((-1, 2, 4)), L.Permute((2, 1)), L.Identity(),
                             L.ZeroPadding1D(2), L.ZeroPadding1D((1, 0)), L.Cropping1D(1), L.Cropping1D((0, 2)),
                             L.UpSampling1D(3)])
    each("repeat", (5,), [L.RepeatVector(4)])
    each("image", (8, 10, 3), [L.ZeroPadding2D(), L.ZeroPadding2D((2, 1)), L.ZeroPadding2D(((1, 0), (2, 3))),
                               L.Cropping2D(1), L.Cropping2D(((1, 0), (2, 3))), L.UpSampling2D(),
                               L.UpSampling2D((2, 3), interpolation="bilinear"), L.Resizing(4, 5), L.Resizing(16, 12),
                               L.Resizing(4, 4, crop_to_aspect_ratio=True), L.Resizing(6, 6, interpolation="nearest"),
                               L.CenterCrop(4, 6), L.CenterCrop(8, 10), L.Flatten()])
    each("volume", (4, 5, 6, 2), [L.ZeroPadding3D(1), L.Cropping3D(1), L.UpSampling3D(2)])


def merging():
    pairs("add", (4, 6), lambda a, b: L.Add()([a, b]))
    pairs("add3", (4, 6), lambda a, b: L.Add()([a, b, a]))
    pairs("add-broadcast", (4, 6), lambda a, b: L.Add()([a, b]), (1, 6))
    for name in "Subtract Multiply Average Maximum Minimum".split():
        pairs(name, (4, 6), lambda a, b: getattr(L, name)()([a, b]))
    pairs("concat-0", (4, 6), lambda a, b: L.Concatenate()([a, b]))
    pairs("concat-1", (4, 6), lambda a, b: L.Concatenate(axis=1)([a, b]), (3, 6))
    pairs("dot-0", (6,), lambda a, b: L.Dot(axes=1)([a, b]))
    pairs("dot-1", (4, 6), lambda a, b: L.Dot(axes=(2, 2))([a, b]), (5, 6))
    pairs("dot-2", (4, 6), lambda a, b: L.Dot(axes=(1, 1), normalize=True)([a, b]), (4, 3))
    pairs("dot-3", (6, 4), lambda a, b: L.Dot(axes=(2, 1))([a, b]), (4, 5))


def recurrent():
    for name in "LSTM GRU SimpleRNN".split():
        R = getattr(L, name)
        each(name, (7, 3), [R(5), R(5, return_sequences=True), R(5, go_backwards=True, return_sequences=True),
                            R(5, use_bias=False), R(5, dropout=0.2), R(5, activation="relu"),
                            L.Bidirectional(R(5)), L.Bidirectional(R(5, return_sequences=True)),
                            L.Bidirectional(R(5), merge_mode="sum"), L.Bidirectional(R(5), merge_mode="ave"),
                            L.RNN(getattr(L, name + "Cell")(4), return_sequences=True)])
        x = keras.Input((7, 3), name="in")
        outs = R(4, return_state=True, return_sequences=True)(x)
        again = R(4)(outs[0], initial_state=outs[1:] if name == "LSTM" else outs[1])
        add(name + "-state", x, again)
        add(name + "-merge-none", x, L.Bidirectional(R(4, return_state=True), merge_mode="concat")(x)[0])
    each("gru", (7, 3), [L.GRU(5, reset_after=False)])
    each("distributed", (5, 6, 8), [L.TimeDistributed(L.Dense(3)), L.TimeDistributed(L.Flatten()),
                                    L.TimeDistributed(L.Conv1D(2, 3, activation="relu")),
                                    L.TimeDistributed(L.BatchNormalization()), L.TimeDistributed(L.LSTM(4))])
    inner = keras.Sequential([keras.Input((6, 8)), L.Conv1D(4, 3), L.GlobalAveragePooling1D(), L.Dense(2)])
    each("distributed-model", (5, 6, 8), [L.TimeDistributed(inner)])
    x = keras.Input((9,), name="in", dtype="int32")
    add("embedding-0", x, L.Embedding(50, 6)(x))
    add("embedding-1", x, L.LSTM(4)(L.Embedding(50, 6, mask_zero=True)(x)))
    add("embedding-2", x, L.Dense(1)(L.GlobalAveragePooling1D()(L.Embedding(50, 6, mask_zero=True)(x))))
    x = keras.Input((9, 3), name="in")
    add("masking", x, L.Bidirectional(L.GRU(4))(L.Masking(-1.)(x)))


def attention():
    each("mha", (6, 8), [lambda y: L.MultiHeadAttention(2, 4)(y, y), lambda y: L.MultiHeadAttention(2, 4, value_dim=3)(y, y),
                         lambda y: L.MultiHeadAttention(2, 4, dropout=0.1, use_bias=False)(y, y, y),
                         lambda y: L.MultiHeadAttention(2, 4, output_shape=5)(y, y),
                         lambda y: L.MultiHeadAttention(2, 4)(query=y, value=y, use_causal_mask=True)])
    pairs("mha-cross", (4, 6), lambda a, b: L.MultiHeadAttention(2, 3)(a, b), (5, 7))
    pairs("attention", (4, 6), lambda a, b: L.Attention()([a, b]), (5, 6))
    pairs("attention-scale", (4, 6), lambda a, b: L.Attention(use_scale=True, dropout=0.1)([a, b, b]), (5, 6))
    pairs("attention-concat", (4, 6), lambda a, b: L.Attention(score_mode="concat")([a, b]), (5, 6))
    pairs("attention-additive", (4, 6), lambda a, b: L.AdditiveAttention()([a, b]), (5, 6))
    x = keras.Input((9,), name="in", dtype="int32")
    e = L.Embedding(50, 6, mask_zero=True)(x)
    add("mha-mask", x, L.MultiHeadAttention(2, 3)(e, e))
    m = keras.Input((6, 6), name="mask", dtype="bool")
    y = keras.Input((6, 8), name="in")
    add("mha-given-mask", [y, m], L.MultiHeadAttention(2, 4)(y, y, attention_mask=m))
    each("einsum", (6, 8), [L.EinsumDense("abc,cd->abd", output_shape=(None, 5), bias_axes="d"),
                            L.EinsumDense("...x,xy->...y", output_shape=5, bias_axes="y", activation="relu"),
                            L.EinsumDense("abc,bcd->abd", output_shape=(6, 3)),
                            L.EinsumDense("abc,cde->abde", output_shape=(None, 2, 3), bias_axes="de"),
                            L.EinsumDense("abc,dc->adb", output_shape=(4, None))])


def operations():
    x, y = keras.Input((4, 6), name="x"), keras.Input((4, 6), name="y")
    a, b = L.Dense(6)(x), L.Dense(6)(y)
    results = {
        "add": a + b, "scale": a * 2.0, "rsub": 1 - a, "div": a / (b * b + 1.0), "pow": a ** 2, "neg": -a, "item": a[:, 0],
        "slices": a[:, 1:3, ::2], "newaxis": a[..., None], "negstep": a[:, ::-1], "mean": ops.mean(a, axis=1),
        "reshape": ops.reshape(a, (-1, 24)), "transpose": ops.transpose(a, (0, 2, 1)),
        "concat": ops.concatenate([a, b], axis=-1), "stack": ops.stack([a, b], axis=1),
        "squeeze": ops.squeeze(ops.expand_dims(a, 1), 1), "matmul": ops.matmul(a, ops.transpose(b, (0, 2, 1))),
        "einsum": ops.einsum("bij,bkj->bik", a, b), "clip": ops.clip(a, 0, 1), "relu": keras.activations.relu(a, max_value=6),
        "gelu": keras.activations.gelu(a), "softmax": ops.softmax(a, axis=-1), "maximum": ops.maximum(a, b),
        "sum": ops.sum(a, axis=[1, 2], keepdims=True), "split": ops.split(a, 2, axis=-1)[1], "tile": ops.tile(a, (1, 2, 1)),
        "pad": ops.pad(a, ((0, 0), (1, 1), (0, 0))), "array": a * keras.ops.convert_to_numpy([1., 2., 3., 4., 5., 6.]),
        "sqrt": ops.sqrt(ops.square(a) + 1e-3), "norm": ops.norm(a, axis=-1), "repeat": ops.repeat(a, 2, axis=1),
        "flip": ops.flip(a, axis=1), "log1p": ops.log1p(ops.exp(a)), "swap": ops.swapaxes(a, 1, 2),
        "move": ops.moveaxis(a, 1, 2), "max": ops.max(a, axis=-1), "var": ops.var(a, axis=1), "tanh": ops.tanh(a),
        "minimum": ops.minimum(a, 0.5), "abs": ops.abs(a), "sigmoid": ops.sigmoid(a),
    }
    for name, out in results.items():
        add("op-" + name, [x, y], [out, L.Dense(1)(b)])


def augmentation():
    for name, layer in {
            "flip": L.RandomFlip("horizontal"), "rotation": L.RandomRotation(0.1), "zoom": L.RandomZoom(0.2),
            "translation": L.RandomTranslation(0.1, 0.2), "contrast": L.RandomContrast(0.2), "brightness": L.RandomBrightness(0.2),
            "crop": L.RandomCrop(6, 5), "hue": L.RandomHue(0.2), "gray": L.RandomGrayscale(0.3), "shear": L.RandomShear(0.2)}.items():
        x = keras.Input((8, 10, 3), name="in")
        add("augment-" + name, x, L.Conv2D(2, 3)(layer(x)))


def structure():
    """Shared layers, nested models, several outputs, frozen parts, settings."""
    shared, head = L.Dense(5, name="shared"), L.Dense(2, name="head")
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    add("shared", [a, b], [head(shared(a)), head(shared(b))], optimizer="sgd", loss=["mse", "mae"], loss_weights=[1., .5])
    inner = keras.Sequential([keras.Input((4,)), L.Dense(6, activation="relu"), L.Dropout(0.5), L.BatchNormalization()], name="inner")
    add("nested-twice", [a, b], L.Concatenate()([inner(a), inner(b)]))
    frozen = keras.Sequential([keras.Input((4,)), L.Dense(6), L.BatchNormalization(), L.Dense(3)], name="frozen")
    frozen.trainable = False
    add("frozen", a, L.Dense(2)(frozen(a)), optimizer="adam", loss="mse")
    add("frozen-middle", a, L.Dense(2)(frozen(L.Dense(4)(a))), optimizer=keras.optimizers.AdamW(), loss="huber")
    two = keras.Model([a, b], [L.Dense(3)(a), L.Add()([L.Dense(3)(a), L.Dense(3)(b)])], name="two")
    p, q = two([a, b])
    add("nested-outputs", [a, b], L.Multiply()([p, q]))
    add("training-false", a, L.Dense(2)(inner(a, training=False)))
    reg = keras.regularizers
    add("regularized", a, L.Dense(2, kernel_regularizer=reg.L2(1e-3), bias_regularizer="l1")(
        L.Dense(3, kernel_regularizer=reg.L1L2(1e-4, 1e-3))(a)), optimizer=keras.optimizers.Adam(global_clipnorm=1.), loss="mse")
    for name, optimizer in {
            "momentum": keras.optimizers.SGD(momentum=0.9, nesterov=True), "rmsprop": keras.optimizers.RMSprop(momentum=0.1, centered=True),
            "amsgrad": keras.optimizers.Adam(amsgrad=True), "nadam": keras.optimizers.Nadam(), "adamax": keras.optimizers.Adamax(),
            "adagrad": keras.optimizers.Adagrad(), "adadelta": keras.optimizers.Adadelta(), "adafactor": keras.optimizers.Adafactor(),
            "lion": keras.optimizers.Lion(), "ftrl": keras.optimizers.Ftrl(), "lamb": keras.optimizers.Lamb(),
            "clipnorm": keras.optimizers.Adam(clipnorm=1.), "clipvalue": keras.optimizers.Adam(clipvalue=.5),
            "decay": keras.optimizers.SGD(weight_decay=0.01), "ema": keras.optimizers.Adam(use_ema=True),
            "accumulate": keras.optimizers.Adam(gradient_accumulation_steps=4),
            "schedule": keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.9))}.items():
        add("optimizer-" + name, a, L.Dense(2)(L.Dense(3)(a)), optimizer=optimizer, loss="mse")
    for loss in ("mse mae mape msle huber log_cosh poisson kl_divergence hinge squared_hinge categorical_hinge binary_crossentropy "
                 "categorical_crossentropy binary_focal_crossentropy categorical_focal_crossentropy cosine_similarity").split():
        add("loss-" + loss, a, L.Dense(3, activation="softmax")(a), optimizer="adam", loss=loss, metrics=["accuracy", "mae"])
    add("loss-sparse", a, L.Dense(3, activation="softmax")(a), optimizer="adam", loss="sparse_categorical_crossentropy",
        metrics=["accuracy", "sparse_top_k_categorical_accuracy"])
    add("loss-logits", a, L.Dense(3)(a), optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"])
    add("loss-binary", a, L.Dense(1, activation="sigmoid")(a), optimizer="adam",
        loss=keras.losses.BinaryCrossentropy(label_smoothing=0.1),
        metrics=["accuracy", keras.metrics.Precision(), keras.metrics.Recall(), keras.metrics.AUC(), "mse"])
    keras.mixed_precision.set_global_policy("mixed_float16")
    h = L.BatchNormalization()(L.Dense(6, activation="relu")(a))
    add("mixed", a, L.Activation("softmax", dtype="float32")(L.Dense(3)(h)), optimizer="adam", loss="categorical_crossentropy")
    keras.mixed_precision.set_global_policy("float32")


def main():
    for part in (convolutions, pooling, normalization, pointwise, shapes, merging, recurrent, attention, operations,
                 augmentation, structure):
        part()
    with open(PATH, "wb") as f:
        f.write(gzip.compress("".join(MODELS).encode(), 9, mtime=0))
    print(f"{len(MODELS)} models, {os.path.getsize(PATH):,} bytes")


if __name__ == "__main__":
    main()
