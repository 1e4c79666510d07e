#!/usr/bin/env python3
"""Writes the models of bench_cuda.py as .keras files without weights: make_cuda_models.py FOLDER [NAME...]

Needs Keras (any back end). Without weights a file is a few KiB; memfit draws first values by the initializers in it. The networks are
those of the table in docs/bench/cuda.md; cuda_peers.py has the same in PyTorch.
"""
import os
import sys
import zipfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
from keras import layers as L
from make_train_models import s1, s7


def s9():
    m = keras.Sequential([keras.Input((128, 128, 3))])
    for c in (256, 512, 1024):
        for _ in range(2):
            m.add(L.Conv2D(c, 3, padding="same", activation="relu"))
        if c < 1024:
            m.add(L.MaxPooling2D())
    m.add(L.GlobalAveragePooling2D())
    m.add(L.Dense(10, activation="softmax"))
    m.compile("adam", "mse")
    return m


def application(name):
    m = getattr(keras.applications, name)(weights=None, classes=1000)
    m.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy")
    return m


def block(x, d, heads, causal, epsilon):
    a = L.LayerNormalization(epsilon=epsilon)(x)
    x = L.Add()([x, L.MultiHeadAttention(heads, d // heads)(a, a, use_causal_mask=causal)])
    f = L.LayerNormalization(epsilon=epsilon)(x)
    return L.Add()([x, L.Dense(d)(L.Dense(4 * d, activation="gelu")(f))])


def gpt2(t=1024, d=768, heads=12, blocks=12, words=50257):
    """124M and an output layer of its own. Positions are an input: Keras has no layer of its own for them."""
    i, p = keras.Input((t,), dtype="int32"), keras.Input((t,), dtype="int32")
    x = L.Add()([L.Embedding(words, d)(i), L.Embedding(t, d)(p)])
    for _ in range(blocks):
        x = block(x, d, heads, True, 1e-5)
    m = keras.Model([i, p], L.Dense(words, use_bias=False)(L.LayerNormalization(epsilon=1e-5)(x)))
    m.compile(keras.optimizers.AdamW(1e-4, weight_decay=0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return m


def vit(size=224, patch=16, d=768, heads=12, blocks=12):
    t = (size // patch) ** 2
    i, p = keras.Input((size, size, 3)), keras.Input((t,), dtype="int32")
    x = L.Add()([L.Reshape((t, d))(L.Conv2D(d, patch, patch)(i)), L.Embedding(t, d)(p)])
    for _ in range(blocks):
        x = block(x, d, heads, False, 1e-6)
    x = L.GlobalAveragePooling1D()(L.LayerNormalization(epsilon=1e-6)(x))
    m = keras.Model([i, p], L.Dense(1000, activation="softmax")(x))
    m.compile(keras.optimizers.AdamW(1e-4), "sparse_categorical_crossentropy")
    return m


def lstm(words=20000, t=200):
    m = keras.Sequential([keras.Input((t,), dtype="int32"), L.Embedding(words, 128), L.LSTM(256, return_sequences=True), L.LSTM(256),
                          L.Dense(2, activation="softmax")])
    m.compile("adam", "sparse_categorical_crossentropy")
    return m


def unet(size=256):
    def pair(x, c):
        for _ in range(2):
            x = L.Activation("relu")(L.BatchNormalization()(L.Conv2D(c, 3, padding="same", use_bias=False)(x)))
        return x

    i = x = keras.Input((size, size, 3))
    skips = []
    for c in (64, 128, 256, 512):
        x = pair(x, c)
        skips.append(x)
        x = L.MaxPooling2D()(x)
    x = pair(x, 1024)
    for c in (512, 256, 128, 64):
        x = pair(L.Concatenate()([skips.pop(), L.Conv2DTranspose(c, 2, 2)(x)]), c)
    m = keras.Model(i, L.Conv2D(1, 1, activation="sigmoid")(x))
    m.compile("adam", "binary_crossentropy")
    return m


MODELS = {"s1": s1, "s7": s7, "s9": s9, "resnet50": lambda: application("ResNet50"), "mobilenetv2": lambda: application("MobileNetV2"),
          "gpt2": gpt2, "vit": vit, "lstm": lstm, "unet": unet}


def save_without_weights(model, path):
    model.save(path)
    with zipfile.ZipFile(path) as whole:
        members = {n: whole.read(n) for n in ("config.json", "metadata.json")}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as small:
        for name, data in members.items():
            small.writestr(name, data)


if __name__ == "__main__":
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    for name in sys.argv[2:] or MODELS:
        model = MODELS[name]()
        save_without_weights(model, os.path.join(folder, name + ".keras"))
        print(name, model.count_params(), flush=True)
