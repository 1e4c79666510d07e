"""The models whose memory is predicted and measured: keras.applications and own ones, each from code alone.

A case is (model, batch, precision, runtime). Both sides build the model from here: the file that memfit plans, and the
model that the framework trains. Weights are random: they do not matter for memory. A model's name says how it is made: one of MODELS, an
application with its input's side ("VGG19@160"), or a builder with its arguments ("mlp@width=1024,layers=2"); `draw(seed)` draws such names.
"""
import random


def application(name, side):
    def build(keras):
        return getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3), classes=1000)
    return build


def cnn(keras, side=224, width=32):
    """The plain network of tutorials: convolutions with ReLU, pooling, a dense head."""
    L = keras.layers
    return keras.Sequential([
        keras.Input((side, side, 3)),
        L.Conv2D(width, 3, padding="same", activation="relu"), L.Conv2D(width, 3, padding="same", activation="relu"), L.MaxPooling2D(),
        L.Conv2D(2 * width, 3, padding="same", activation="relu"), L.Conv2D(2 * width, 3, padding="same", activation="relu"), L.MaxPooling2D(),
        L.Conv2D(4 * width, 3, padding="same", activation="relu"), L.MaxPooling2D(),
        L.Flatten(), L.Dense(256, activation="relu"), L.Dropout(0.5), L.Dense(10, activation="softmax")])


def bn_cnn(keras, side=128, width=32):
    """Convolution, BatchNormalization, ReLU: the block of most vision models, without residuals."""
    L = keras.layers
    layers = [keras.Input((side, side, 3))]
    for filters in (width, 2 * width, 4 * width, 8 * width):
        layers += [L.Conv2D(filters, 3, padding="same", use_bias=False), L.BatchNormalization(), L.ReLU(), L.MaxPooling2D()]
    return keras.Sequential(layers + [L.GlobalAveragePooling2D(), L.Dense(10, activation="softmax")])


def mlp(keras, width=4096, layers=2):
    L = keras.layers
    return keras.Sequential([keras.Input((784,)), *(L.Dense(width, activation="relu") for _ in range(layers)),
                             L.Dropout(0.3), L.Dense(width, activation="gelu"), L.Dense(10, activation="softmax")])


def unet(keras):
    L = keras.layers

    def block(x, filters):
        for _ in range(2):
            x = L.Conv2D(filters, 3, padding="same")(x)
            x = L.BatchNormalization()(x)
            x = L.Activation("relu")(x)
        return x

    inputs = keras.Input((256, 256, 3))
    x, skips = inputs, []
    for filters in (32, 64, 128, 256):
        x = block(x, filters)
        skips.append(x)
        x = L.MaxPooling2D()(x)
    x = block(x, 512)
    for filters, skip in zip((256, 128, 64, 32), reversed(skips)):
        x = L.Conv2DTranspose(filters, 2, strides=2, padding="same")(x)
        x = block(L.Concatenate()([x, skip]), filters)
    return keras.Model(inputs, L.Conv2D(4, 1, activation="softmax")(x))


def transformer(keras, length=256, width=512, heads=8, blocks=4, vocabulary=8000, causal=True):
    L = keras.layers
    tokens = keras.Input((length,), dtype="int32")
    x = L.Embedding(vocabulary, width)(tokens)
    for _ in range(blocks):
        y = L.LayerNormalization()(x)
        y = L.MultiHeadAttention(heads, width // heads)(y, y, use_causal_mask=causal)
        x = L.Add()([x, L.Dropout(0.1)(y)])
        y = L.LayerNormalization()(x)
        y = L.Dense(4 * width, activation="gelu")(y)
        x = L.Add()([x, L.Dense(width)(y)])
    return keras.Model(tokens, L.Dense(vocabulary, activation="softmax")(L.LayerNormalization()(x)))


def classifier(keras, length=200, width=128):
    """A text classifier: attention without a mask, pooled."""
    L = keras.layers
    tokens = keras.Input((length,), dtype="int32")
    x = L.Embedding(20000, width)(tokens)
    y = L.MultiHeadAttention(4, width // 4)(x, x)
    x = L.LayerNormalization()(L.Add()([x, L.Dropout(0.1)(y)]))
    y = L.Dense(4 * width, activation="relu")(x)
    x = L.LayerNormalization()(L.Add()([x, L.Dense(width)(y)]))
    x = L.GlobalAveragePooling1D()(x)
    return keras.Model(tokens, L.Dense(2, activation="softmax")(L.Dropout(0.1)(x)))


def lstm(keras, length=100, units=256):
    L = keras.layers
    return keras.Sequential([keras.Input((length,), dtype="int32"), L.Embedding(20000, 128), L.LSTM(units, return_sequences=True),
                             L.LSTM(units), L.Dense(2, activation="softmax")])


def autoencoder(keras, side=128, width=64):
    L = keras.layers
    return keras.Sequential([
        keras.Input((side, side, 3)),
        L.Conv2D(width, 3, strides=2, padding="same", activation="relu"), L.Conv2D(2 * width, 3, strides=2, padding="same", activation="relu"),
        L.Conv2D(4 * width, 3, strides=2, padding="same", activation="relu"), L.Conv2DTranspose(2 * width, 3, strides=2, padding="same", activation="relu"),
        L.Conv2DTranspose(width, 3, strides=2, padding="same", activation="relu"),
        L.Conv2DTranspose(3, 3, strides=2, padding="same", activation="sigmoid")])


MODELS = {  # name: (builder, loss, two batches)
    "cnn": (cnn, "scce", (32, 128)),
    "bn_cnn": (bn_cnn, "scce", (32, 128)),
    "mlp": (mlp, "scce", (128, 4096)),
    "unet": (unet, "scce", (8, 24)),
    "transformer": (transformer, "scce", (16, 48)),
    "classifier": (classifier, "scce", (64, 256)),
    "lstm": (lstm, "scce", (64, 256)),
    "autoencoder": (autoencoder, "mse", (32, 128)),
    "ResNet50": (application("ResNet50", 224), "scce", (32, 64)),
    "MobileNetV2": (application("MobileNetV2", 224), "scce", (32, 96)),
    "EfficientNetB0": (application("EfficientNetB0", 224), "scce", (32, 64)),
    "DenseNet121": (application("DenseNet121", 224), "scce", (16, 48)),
    "VGG16": (application("VGG16", 224), "scce", (16, 64)),
    "InceptionV3": (application("InceptionV3", 299), "scce", (16, 48)),
    "Xception": (application("Xception", 299), "scce", (16, 48)),
    "ConvNeXtTiny": (application("ConvNeXtTiny", 224), "scce", (16, 48)),
    "MobileNetV3Small": (application("MobileNetV3Small", 224), "scce", (64, 256)),
    "NASNetMobile": (application("NASNetMobile", 224), "scce", (16, 48)),
    "ResNet50V2": (application("ResNet50V2", 224), "scce", (16, 48)),
    "EfficientNetV2B0": (application("EfficientNetV2B0", 224), "scce", (16, 48)),
}
LOSSES = {"scce": "sparse_categorical_crossentropy", "mse": "mean_squared_error"}
# Models whose steps were not looked at while the models of the frameworks were written: they were only compared with, once. (The sizes
# of library workspaces came from a run that holds all of them.)
APART = {"unet", "lstm", "EfficientNetB0", "DenseNet121", "VGG16", "InceptionV3", "Xception", "ConvNeXtTiny", "MobileNetV3Small", "NASNetMobile",
         "ResNet50V2", "EfficientNetV2B0"}


# What may be drawn: applications with their sides and smallest and largest batch, and own models with their arguments.
APPLICATIONS = {name: ((160, 192, 224), 8, 48) for name in (
    "DenseNet121", "DenseNet169", "EfficientNetB0", "EfficientNetB1", "EfficientNetB2", "EfficientNetV2B1", "EfficientNetV2S", "InceptionV3", "MobileNet",
    "MobileNetV2", "MobileNetV3Large", "ResNet101", "ResNet50", "ResNet101V2", "VGG16", "VGG19", "Xception", "InceptionResNetV2", "ConvNeXtSmall")}
SIZES = {
    "cnn": (dict(side=(96, 128, 160), width=(16, 48)), 16, 128),
    "bn_cnn": (dict(side=(96, 160, 192), width=(16, 24, 48)), 16, 128),
    "mlp": (dict(width=(1024, 2048, 8192), layers=(1, 4)), 64, 8192),
    "transformer": (dict(length=(128, 200, 512), width=(256, 384, 768), blocks=(2, 6), vocabulary=(5000, 20000), causal=(0, 1)), 4, 48),
    "classifier": (dict(length=(100, 400), width=(64, 256)), 32, 256),
    "lstm": (dict(length=(64, 200), units=(128, 512)), 32, 256),
    "autoencoder": (dict(side=(64, 160, 192), width=(32, 48)), 16, 128),
}


def draw(seed, applications=5, own=3):
    """[(name, two batches)] by chance."""
    chance, out = random.Random(seed), []
    for name in chance.sample(sorted(APPLICATIONS), applications):
        sides, least, most = APPLICATIONS[name]
        out.append(("%s@%d" % (name, chance.choice(sides)), least, most))
    for name in chance.sample(sorted(SIZES), own):
        sizes, least, most = SIZES[name]
        out.append((name + "@" + ",".join("%s=%d" % (k, chance.choice(v)) for k, v in sorted(sizes.items())), least, most))
    small = [chance.randint(least, (least + most) // 2) for _, least, most in out]
    return [(name, (b, min(most, b * chance.choice((2, 3))))) for (name, _, most), b in zip(out, small)]


# Of a size that two processors train in seconds: cases for TensorFlow on a CPU.
ON_CPU = ["mlp:128:float32", "cnn:8:float32", "bn_cnn:16:float32", "autoencoder:16:float32", "classifier:16:float32", "lstm:16:float32",
          "transformer:2:float32", "MobileNetV2@96:8:float32", "ResNet50@64:16:float32", "DenseNet121@64:8:float32", "EfficientNetB0@96:8:float32",
          "VGG16@64:16:float32", "mlp:2048:float32", "transformer:8:float32", "autoencoder:64:float32"]


def draw_on_cpu(seed, applications=6, own=4):
    """Such cases by chance."""
    chance = random.Random(seed)
    out = ["%s@%d:%d:float32" % (name, chance.choice((75, 96, 128)), chance.randint(3, 12))
           for name in chance.sample(sorted(APPLICATIONS), applications)]
    for name in chance.sample(sorted(SIZES), own):
        sizes, least, most = SIZES[name]
        text = ",".join("%s=%d" % (k, chance.choice(v)) for k, v in sorted(sizes.items()))
        out.append("%s@%s:%d:float32" % (name, text, max(2, chance.randint(least, most) // 8)))
    return out


def find(name):
    """(what builds it, its loss)"""
    kind, _, sizes = name.partition("@")
    if not sizes:
        return MODELS[name][:2]
    if sizes.isdigit():
        return application(kind, int(sizes)), "scce"
    builder, loss, _ = MODELS[kind]
    arguments = {k: int(v) for k, v in (pair.split("=") for pair in sizes.split(","))}
    return (lambda keras: builder(keras, **arguments)), loss


def zero_weights():
    """Keras on JAX compiles a program for each shape of a weight to draw it by chance: minutes for a large model, and no difference to a step's memory."""
    import jax
    import keras.src.backend.jax.core as core
    import numpy as np
    core.Variable._initialize_with_initializer = lambda self, _: self._initialize(jax.device_put(np.zeros(self._shape, self._dtype)))


def empty_weights():
    """The same for torch, where a model is built for its file alone."""
    import keras.src.backend.torch.core as core
    import torch
    core.Variable._initialize_with_initializer = lambda self, _: self._initialize(torch.empty(self._shape, dtype=core.to_torch_dtype(self._dtype)))


def build(keras, name, precision):
    keras.mixed_precision.set_dtype_policy(precision)
    builder, loss = find(name)
    model = builder(keras)
    model.compile(optimizer=keras.optimizers.Adam(1e-4), loss=LOSSES[loss])
    return model


def data(model, name, batch, steps):
    import numpy as np
    rng = np.random.default_rng(0)
    shape = (batch * steps,) + tuple(model.inputs[0].shape[1:])
    out = tuple(model.outputs[0].shape[1:])
    integer = "int" in str(model.inputs[0].dtype)
    x = rng.integers(0, 1000, shape, dtype="int32") if integer else rng.random(shape, dtype="float32")
    if find(name)[1] == "scce":
        return x, rng.integers(0, out[-1], (batch * steps,) + out[:-1], dtype="int32")
    return x, rng.random((batch * steps,) + out, dtype="float32")
