#!/usr/bin/env python3
"""Makes tests/fixtures/train: small models and data for the training tests. Needs Keras and scikit-learn.

digits.h5, digits_chunked.h5   the first 40 of them, contiguous and in compressed chunks
digits.npz   300 of the UCI handwritten digits (8x8, uint8, 0..16), labels uint8
cnn.keras    convolution, batch normalization, pooling, dropout, dense; Adam, sparse categorical cross-entropy
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
