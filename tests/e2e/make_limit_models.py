#!/usr/bin/env python3
"""make_limit_models.py FOLDER: models that starting has most trouble to keep within a limit, as Keras's JSON:

dilated.json    causal convolutions whose taps lie further and further apart: each shape once, and costly kernels
long.json       convolutions over long sequences: the library takes more to be asked than small plans do
deep.json       a chain of small layers: graphs and plans take more than tensors
frozen.json     a net whose convolutions do not learn, mostly 1x1 or one for each channel: kernels are nearly all it takes beside its arena
"""
import json
import os
import sys


def layer(kind, **config):
    return {"module": "keras.layers", "class_name": kind, "config": config, "registered_name": None}


def write(name, shape, layers):
    first = layer("InputLayer", batch_shape=[None] + shape, dtype="float32", name="input")
    model = {"class_name": "Sequential", "config": {"name": name, "layers": [first] + layers}, "registered_name": None}
    with open(os.path.join(sys.argv[1], name + ".json"), "w") as f:
        json.dump(model, f)


write("dilated", [160, 7], [layer("Conv1D", name=f"conv{i}", filters=8 + 8 * (i % 4), kernel_size=[2 + i % 3], dilation_rate=[1 << i], padding="causal", activation="tanh")
                            for i in range(6)] + [layer("GlobalAveragePooling1D", name="mean"), layer("Dense", name="head", units=4)])
write("long", [6000, 16], [layer("Conv1D", name=f"conv{i}", filters=16, kernel_size=[5], padding="same", activation="relu") for i in range(2)]
      + [layer("GlobalAveragePooling1D", name="mean"), layer("Dense", name="head", units=4)])
write("deep", [12], [layer("Dense", name=f"dense{i}", units=12, activation="relu") for i in range(60)])

blocks = []
for i in range(12):
    blocks += [layer("Conv2D", name=f"wide{i}", filters=24 + 8 * i, kernel_size=[1, 1], use_bias=False, trainable=False),
               layer("BatchNormalization", name=f"norm{i}", trainable=False), layer("Activation", name=f"relu{i}", activation="relu"),
               layer("DepthwiseConv2D", name=f"each{i}", kernel_size=[3, 3], padding="same", use_bias=False, trainable=False),
               layer("Conv2D", name=f"narrow{i}", filters=12 + 4 * i, kernel_size=[1, 1], use_bias=False, trainable=False)]
write("frozen", [16, 16, 3], blocks + [layer("GlobalAveragePooling2D", name="mean"), layer("Dense", name="head", units=10)])
