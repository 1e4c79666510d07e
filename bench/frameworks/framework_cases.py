"""The models whose memory is predicted and measured: keras.applications and own ones, each from code alone.

A case is (model, batch, precision, runtime). Both sides build the model from here: the file that memfit plans, and the
model that the framework trains. Weights are random: they do not matter for memory.
"""


def application(name, side):
    def build(keras):
        return getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3), classes=1000)
    return build


def cnn(keras):
    """The plain network of tutorials: convolutions with ReLU, pooling, a dense head."""
    L = keras.layers
    return keras.Sequential([
        keras.Input((224, 224, 3)),
        L.Conv2D(32, 3, padding="same", activation="relu"), L.Conv2D(32, 3, padding="same", activation="relu"), L.MaxPooling2D(),
        L.Conv2D(64, 3, padding="same", activation="relu"), L.Conv2D(64, 3, padding="same", activation="relu"), L.MaxPooling2D(),
        L.Conv2D(128, 3, padding="same", activation="relu"), L.MaxPooling2D(),
        L.Flatten(), L.Dense(256, activation="relu"), L.Dropout(0.5), L.Dense(10, activation="softmax")])


def bn_cnn(keras):
    """Convolution, BatchNormalization, ReLU: the block of most vision models, without residuals."""
    L = keras.layers
    layers = [keras.Input((128, 128, 3))]
    for filters in (32, 64, 128, 256):
        layers += [L.Conv2D(filters, 3, padding="same", use_bias=False), L.BatchNormalization(), L.ReLU(), L.MaxPooling2D()]
    return keras.Sequential(layers + [L.GlobalAveragePooling2D(), L.Dense(10, activation="softmax")])


def mlp(keras):
    L = keras.layers
    return keras.Sequential([keras.Input((784,)), L.Dense(4096, activation="relu"), L.Dense(4096, activation="relu"),
                             L.Dropout(0.3), L.Dense(4096, activation="gelu"), L.Dense(10, activation="softmax")])


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


def classifier(keras):
    """A text classifier: attention without a mask, pooled."""
    L = keras.layers
    tokens = keras.Input((200,), dtype="int32")
    x = L.Embedding(20000, 128)(tokens)
    y = L.MultiHeadAttention(4, 32)(x, x)
    x = L.LayerNormalization()(L.Add()([x, L.Dropout(0.1)(y)]))
    y = L.Dense(512, activation="relu")(x)
    x = L.LayerNormalization()(L.Add()([x, L.Dense(128)(y)]))
    x = L.GlobalAveragePooling1D()(x)
    return keras.Model(tokens, L.Dense(2, activation="softmax")(L.Dropout(0.1)(x)))


def lstm(keras):
    L = keras.layers
    return keras.Sequential([keras.Input((100,), dtype="int32"), L.Embedding(20000, 128), L.LSTM(256, return_sequences=True),
                             L.LSTM(256), L.Dense(2, activation="softmax")])


def autoencoder(keras):
    L = keras.layers
    return keras.Sequential([
        keras.Input((128, 128, 3)),
        L.Conv2D(64, 3, strides=2, padding="same", activation="relu"), L.Conv2D(128, 3, strides=2, padding="same", activation="relu"),
        L.Conv2D(256, 3, strides=2, padding="same", activation="relu"), L.Conv2DTranspose(128, 3, strides=2, padding="same", activation="relu"),
        L.Conv2DTranspose(64, 3, strides=2, padding="same", activation="relu"),
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


def build(keras, name, precision):
    keras.mixed_precision.set_dtype_policy(precision)
    builder, loss, _ = MODELS[name]
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
    if MODELS[name][1] == "scce":
        return x, rng.integers(0, out[-1], (batch * steps,) + out[:-1], dtype="int32")
    return x, rng.random((batch * steps,) + out, dtype="float32")
