#!/usr/bin/env python3
"""Writes the models of the planner's tests as JSON, as model.to_json() gives them (no weights).

Usage: make_plan_fixtures.py FOLDER
"""
import pathlib
import sys

import keras
from keras import layers

out = pathlib.Path(sys.argv[1])


def save(name, model, optimizer="adam", loss="mse"):
    model.compile(optimizer=optimizer, loss=loss)
    (out / f"{name}.json").write_text(model.to_json() + "\n")


def conv_pool(size):
    return keras.Sequential([
        keras.Input((size, size, 3)), layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(),
        layers.Dense(10, activation="softmax")], name=f"conv_pool_{size}")


def deep(widths):
    stack = [keras.Input((128, 128, 3))]
    for i, group in enumerate(widths):
        if i:
            stack.append(layers.MaxPooling2D())
        stack += [layers.Conv2D(w, 3, padding="same", activation="relu") for w in group]
    stack += [layers.GlobalAveragePooling2D(), layers.Dense(10, activation="softmax")]
    return keras.Sequential(stack, name="deep")


def unet(height, width):
    def block(x, filters):
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        return x

    x = inputs = keras.Input((height, width, 3))
    skips = []
    for filters in (64, 128, 256, 512):
        x = block(x, filters)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, 1024)
    for filters in (512, 256, 128, 64):
        x = layers.Conv2DTranspose(filters, 2, strides=2)(x)
        x = layers.Concatenate()([skips.pop(), x])
        x = block(x, filters)
    return keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x), name="unet")


save("conv_pool_1024", conv_pool(1024))
save("conv_pool_128", conv_pool(128))
save("deep_1024", deep([(256, 256), (512, 512), (1024, 1024)]))
save("deep_128", deep([(64,), (128,)]))
save("resnet50_10", keras.applications.ResNet50(weights=None, classes=10), loss="categorical_crossentropy")
save("unet_416x608", unet(416, 608), loss="binary_crossentropy")
save("mlp", keras.Sequential([keras.Input((10,)), layers.Dense(10, activation="relu"), layers.Dense(2)], name="mlp"))
save("with_lambda", keras.Sequential([
    keras.Input((32, 32, 3)), layers.Conv2D(8, 3), layers.Lambda(lambda t: t * 2, name="double"), layers.Flatten(),
    layers.Dense(4)], name="with_lambda"))
