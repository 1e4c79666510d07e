#!/usr/bin/env python3
"""Writes the models of the training benchmark as .keras files: make_train_models.py FOLDER

Needs Keras (any back end). The models are those of the table in docs/bench/train.md.
"""
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
from keras import layers as L


def s1():
    m = keras.Sequential([keras.Input((10,)), L.Dense(10, activation="relu"), L.Dense(2)])
    m.compile("adam", "mse")
    return m


def s7(size=1024):
    m = keras.Sequential([keras.Input((size, size, 3)), L.Conv2D(32, 3, activation="relu"), L.MaxPooling2D(), L.Flatten(),
                          L.Dense(10, activation="softmax")])
    m.compile("adam", "mse")
    return m


def s9_small():
    m = keras.Sequential([keras.Input((128, 128, 3)), L.Conv2D(64, 3, padding="same", activation="relu"), L.MaxPooling2D(),
                          L.Conv2D(128, 3, padding="same", activation="relu"), L.GlobalAveragePooling2D(),
                          L.Dense(10, activation="softmax")])
    m.compile("adam", "mse")
    return m


def digits():
    m = keras.Sequential([keras.Input((32, 32, 1)), L.Rescaling(1 / 255.0),
                          L.Conv2D(64, 3, padding="same", activation="relu"),
                          L.Conv2D(64, 3, padding="same", activation="relu"), L.MaxPooling2D(),
                          L.Conv2D(128, 3, padding="same", activation="relu"),
                          L.Conv2D(128, 3, padding="same", activation="relu"), L.GlobalAveragePooling2D(),
                          L.Dense(10, activation="softmax")])
    m.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return m


def application(name, **kw):
    m = getattr(keras.applications, name)(weights=None, classes=10, **kw)
    m.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
    return m


def lstm():
    m = keras.Sequential([keras.Input((100, 64)), L.LSTM(128, return_sequences=True), L.LSTM(128), L.Dense(10)])
    m.compile("adam", "mse")
    return m


def transformer():
    x = i = keras.Input((128, 128))
    for _ in range(4):
        a = L.MultiHeadAttention(4, 32)(x, x)
        x = L.LayerNormalization()(L.Add()([x, a]))
        f = L.Dense(128)(L.Dense(512, activation="relu")(x))
        x = L.LayerNormalization()(L.Add()([x, f]))
    m = keras.Model(i, L.Dense(10, activation="softmax")(L.GlobalAveragePooling1D()(x)))
    m.compile("adam", "categorical_crossentropy")
    return m


MODELS = {
    "s1": s1, "s7": s7, "s7-256": lambda: s7(256), "s9-small": s9_small, "digits": digits,
    "resnet50": lambda: application("ResNet50", input_shape=(224, 224, 3)),
    "mobilenetv2": lambda: application("MobileNetV2", input_shape=(224, 224, 3)),
    "vgg16": lambda: application("VGG16", input_shape=(224, 224, 3)),
    "lstm": lstm, "transformer": transformer,
}

if __name__ == "__main__":
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    for name in sys.argv[2:] or MODELS:
        keras.utils.set_random_seed(1)
        MODELS[name]().save(os.path.join(folder, name + ".keras"))
        print(name, flush=True)
