#!/usr/bin/env python3
"""Makes tests/fixtures/train: small models and data for the training tests. Needs Keras and scikit-learn.

digits.h5, digits_chunked.h5   the first 40 of them, contiguous and in compressed chunks
digits.npz   300 of the UCI handwritten digits (8x8, uint8, 0..16), labels uint8
cnn.keras    convolution, batch normalization, pooling, dropout, dense; Adam, sparse categorical cross-entropy
residual, recurrent, attention, unet .json
             small deep models on the same digits, without weights: what the planner's bitwise ways are tried on
unjudged.json
             two outputs, the second without a loss: its weights are never trained
checkpoint_v3.keras
             mlp.keras after 17 steps, as state version 3 wrote it: memfit of that time made it, not this script
beside.keras, beside.npz
             attentions side by side on one masked tensor: which of them still finds the mask depends on Keras's order.
             y is what Keras predicts
mlp.keras    dense only, SGD with momentum, no random layers: the same model runs in pieces with the same mathematics
"""
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import h5py
import keras
import numpy as np
from keras import layers as L
from sklearn.datasets import load_digits

folder = sys.argv[1] if len(sys.argv) > 1 else "tests/fixtures/train"
os.makedirs(folder, exist_ok=True)
d = load_digits()
np.savez(os.path.join(folder, "digits.npz"), x=d.images[:300].astype("uint8"), y=d.target[:300].astype("uint8"))
with h5py.File(os.path.join(folder, "digits.h5"), "w") as f:
    f["x"], f["y"] = d.images[:40].astype("uint8"), d.target[:40].astype("uint8")
with h5py.File(os.path.join(folder, "digits_chunked.h5"), "w") as f:
    f.create_dataset("x", data=d.images[:40].astype("uint8"), chunks=(16, 8, 8), compression="gzip")
    f.create_dataset("y", data=d.target[:40].astype("int64"))

keras.utils.set_random_seed(1)
m = keras.Sequential([keras.Input((8, 8, 1)), L.Conv2D(8, 3, activation="relu", padding="same"), L.BatchNormalization(),
                      L.MaxPooling2D(), L.Flatten(), L.Dropout(0.2), L.Dense(10, activation="softmax")])
m.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
m.save(os.path.join(folder, "cnn.keras"))

keras.utils.set_random_seed(2)
m = keras.Sequential([keras.Input((8, 8, 1)), L.Flatten(), L.Dense(32, activation="relu"), L.Dropout(0.1),
                      L.Dense(10, activation="softmax")])
m.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
m.save(os.path.join(folder, "mlp.keras"))


i = keras.Input((8, 8, 1))
x = L.Flatten()(i)
judged = L.Dense(10, activation="softmax", name="judged")(L.Dense(6, activation="relu", name="trunk")(x))
m = keras.Model(i, [judged, L.Dense(2, name="unjudged")(L.Dense(4, name="side")(x))])
m.compile(keras.optimizers.Adagrad(0.01), loss=["sparse_categorical_crossentropy", None])
with open(os.path.join(folder, "unjudged.json"), "w") as f:
    f.write(m.to_json() + "\n")


def classifier(x, i):
    return keras.Model(i, L.Dense(10, activation="softmax")(x))


def residual():
    i = keras.Input((8, 8, 1))
    x = L.Conv2D(8, 3, padding="same", use_bias=False)(i)
    for k in range(3):
        y = L.ReLU()(L.BatchNormalization()(x))
        y = L.DepthwiseConv2D(3, padding="same")(L.Conv2D(8, 3, padding="same")(y))
        x = L.Add()([x, L.SpatialDropout2D(0.1)(y)])
    return classifier(L.Dropout(0.2)(L.Flatten()(L.MaxPooling2D()(L.Activation("silu")(x)))), i)


def recurrent():
    i = keras.Input((8, 8, 1))
    x = L.Bidirectional(L.LSTM(6, return_sequences=True))(L.Reshape((8, 8))(i))
    x = L.GRU(8)(L.LayerNormalization()(L.Dropout(0.1)(x)))
    return classifier(x, i)


def attention():
    i = keras.Input((8, 8, 1))
    x = L.Dense(8)(L.Reshape((8, 8))(i))
    for _ in range(2):
        x = L.LayerNormalization()(L.Add()([x, L.MultiHeadAttention(2, 4, dropout=0.1)(x, x)]))
        y = L.Dense(8)(L.Dense(16, activation="gelu")(x))
        x = L.LayerNormalization()(L.Add()([x, L.Dropout(0.1)(y)]))
    return classifier(L.GlobalAveragePooling1D()(x), i)


def unet():
    i = keras.Input((8, 8, 1))
    a = L.Conv2D(6, 3, padding="same", activation="relu")(i)
    b = L.Conv2D(8, 3, padding="same", activation="elu")(L.MaxPooling2D()(a))
    c = L.Conv2D(8, 3, padding="same", activation="tanh")(L.AveragePooling2D(2)(b))
    b = L.Concatenate()([b, L.Conv2DTranspose(8, 2, strides=2)(c)])
    b = L.GroupNormalization(4)(L.Conv2D(8, 3, padding="same", activation="relu")(b))
    a = L.Conv2D(6, 3, padding="same", activation="relu")(L.Concatenate()([a, L.UpSampling2D()(b)]))
    return classifier(L.Flatten()(a), i)


def unusual():
    """What libraries have no kernels of their own for: dilated, transposed by another step, in groups, GRUs that reset first."""
    i = keras.Input((24, 24, 8))
    a = L.DepthwiseConv2D(3, padding="same", dilation_rate=2)(L.Conv2D(24, 3, padding="same", dilation_rate=3, activation="relu")(i))
    a = L.Conv2DTranspose(12, 4, strides=3, padding="same")(L.Conv2D(24, 3, strides=2, groups=4)(a))
    s = L.Reshape((96, 48))(i)
    b = L.GRU(32, reset_after=False)(L.Conv1D(32, 3, padding="causal", dilation_rate=4)(s))
    c = L.Conv3D(8, 3, padding="same", dilation_rate=2)(L.Reshape((8, 8, 8, 9))(i))
    d = L.LayerNormalization()(L.Add()([s, L.MultiHeadAttention(4, 12)(s, s)]))
    parts = [L.GlobalAveragePooling2D()(a), b, L.GlobalAveragePooling3D()(c), L.GlobalAveragePooling1D()(d)]
    return classifier(L.Concatenate()(parts), i)


for make in (residual, recurrent, attention, unet, unusual):
    with open(os.path.join(folder, make.__name__ + ".json"), "w") as f:
        f.write(make().to_json() + "\n")


def beside():
    """MultiHeadAttention takes the masks off its inputs: who reads them later in Keras's order finds none."""
    keras.utils.set_random_seed(5)
    a, b = keras.Input((6,), dtype="int32", name="a"), keras.Input((5,), dtype="int32", name="b")
    e = L.Embedding(9, 4, mask_zero=True, embeddings_initializer="normal")
    q, v = e(b), e(a)
    heads = [L.MultiHeadAttention(2, 3)(q, v), L.AdditiveAttention()([q, v]), L.MultiHeadAttention(1, 4)(q, v), L.Attention()([q, v])]
    m = keras.Model([a, b], L.GlobalAveragePooling1D()(L.Concatenate()(heads)))
    m.compile("sgd", "mse")
    x, r = {}, np.random.default_rng(5)
    for name, steps in (("a", 6), ("b", 5)):
        x[name] = r.integers(1, 9, (12, steps)).astype("int32")
        for row in x[name]:
            row[r.integers(1, steps + 1):] = 0
    m.save(os.path.join(folder, "beside.keras"))
    np.savez(os.path.join(folder, "beside.npz"), y=m.predict([x["a"], x["b"]], verbose=0), **x)


beside()
