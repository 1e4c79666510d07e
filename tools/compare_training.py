#!/usr/bin/env python3
"""Trains small models 20 steps in Keras and in memfit, from the same weights on the same batches, and compares what they
learned: compare_training.py BUILD/memfit

Printed: for each model and optimizer the worst and the median over its arrays of |memfit - keras| / |keras - start|. Biases
before a BatchNormalization have no gradient but rounding, which may be what makes the worst figure of such models.
"""
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
import numpy as np
from keras import layers as L


def residual():
    i = keras.Input((32, 32, 3))
    x = L.Conv2D(16, 3, padding="same")(i)
    for _ in range(2):
        y = L.Activation("relu")(L.BatchNormalization()(x))
        x = L.Add()([x, L.Conv2D(16, 1)(L.DepthwiseConv2D(3, padding="same")(y))])
    x = L.Concatenate()([L.MaxPooling2D()(x), L.AveragePooling2D(2)(x)])
    return keras.Model(i, L.Dense(10, activation="softmax")(L.GlobalAveragePooling2D()(x)))


def recurrent():
    return keras.Sequential([keras.Input((12, 8)), L.LSTM(16, return_sequences=True), L.LayerNormalization(), L.LSTM(16),
                             L.Dense(10, activation="softmax")])


def attention():
    i = keras.Input((10, 16))
    x = L.LayerNormalization()(L.Add()([i, L.MultiHeadAttention(2, 8)(i, i)]))
    x = L.GlobalAveragePooling1D()(L.Dense(16, activation="gelu")(x))
    return keras.Model(i, L.Dense(10, activation="softmax")(x))


memfit = sys.argv[1]
with tempfile.TemporaryDirectory() as t:
    for make in (residual, recurrent, attention):
        for optimizer in ("sgd", "adam"):
            keras.utils.set_random_seed(3)
            m = make()
            m.compile(keras.optimizers.SGD(0.05, momentum=0.9) if optimizer == "sgd" else "adam",
                      "sparse_categorical_crossentropy", metrics=["accuracy"])
            rng = np.random.default_rng(0)
            x = rng.normal(size=(160,) + m.input_shape[1:]).astype("float32")
            y = rng.integers(0, 10, 160).astype("int32")
            m.save(f"{t}/m.keras")
            np.savez(f"{t}/d.npz", x=x, y=y)
            start = [w.copy() for w in m.get_weights()]
            subprocess.run([memfit, "train", f"{t}/m.keras", "--data", f"{t}/d.npz", "--batch-size", "16", "--no-shuffle",
                            "--epochs", "2", "--out", f"{t}/o.keras", "--quiet"], check=True)
            m.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
            n = keras.models.load_model(f"{t}/o.keras")
            d = sorted(np.linalg.norm(a - b) / max(np.linalg.norm(a - c), 1e-12)
                       for a, b, c in zip(m.get_weights(), n.get_weights(), start))
            print(f"{make.__name__:10} {optimizer:5} worst {d[-1]:.1e} median {d[len(d) // 2]:.1e}", flush=True)
