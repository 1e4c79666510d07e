"""memfit.plan of live Keras models against `memfit plan` of the same models saved whole, in every key but times.

MEMFIT_FULL_PROGRAM names the program that reads the files (the package's own otherwise); MEMFIT_APPLICATIONS=all takes every one of
keras.applications, which is long; the default takes three. Of an installed wheel against a full build:

    pip install --no-deps --target pkg dist/memfit-*.whl
    PYTHONPATH=pkg MEMFIT_FULL_PROGRAM=build/memfit MEMFIT_APPLICATIONS=all python tests/python/frameworks/test_keras_plans.py
"""

import json
import os
import subprocess
import tempfile
import time
import unittest

import keras
import memfit
import numpy as np
from memfit import _program

L = keras.layers
FULL = os.environ.get("MEMFIT_FULL_PROGRAM") or memfit.program()
CARD = "rtx-3080"


def told(path, batch, shape):
    words = ["--input-shape", ",".join(map(str, shape))] if shape else []
    done = subprocess.run([FULL, "plan", path, "--batch-size", str(batch), "--for", CARD, "--json", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", check=False)
    return json.loads(done.stdout)


def without_times(answer):
    return {k: v for k, v in answer.items() if k != "plan_seconds"}


class Written:
    """The largest file that a plan put into the temporary folder: looked at when the program has answered, before anything is removed."""

    def __enter__(self):
        self.largest, self._ask, self._folder = 0, _program.ask, tempfile.TemporaryDirectory()
        self._before, tempfile.tempdir = tempfile.tempdir, self._folder.name

        def ask(*args, **more):
            answer = self._ask(*args, **more)
            sizes = [os.path.getsize(os.path.join(at, n)) for at, _, names in os.walk(self._folder.name) for n in names]
            self.largest = max([self.largest, *sizes])
            return answer

        _program.ask = ask
        return self

    def __exit__(self, *error):
        _program.ask, tempfile.tempdir = self._ask, self._before
        self._folder.cleanup()


def applications():
    names = ["MobileNetV3Small", "ResNet50", "EfficientNetB0"]
    if os.environ.get("MEMFIT_APPLICATIONS") == "all":
        names = sorted(n for n in dir(keras.applications) if n[0].isupper() and callable(getattr(keras.applications, n)))
    return names


def odd_models():
    """Twenty models as people write them."""
    def seq(*layers):
        return keras.Sequential(list(layers))

    def functional(make, *shapes, **more):
        inputs = [keras.Input(s, **more) for s in shapes]
        return keras.Model(inputs, make(*inputs))

    inner = seq(keras.Input((16,)), L.Dense(16, activation="relu"), L.Dense(16))
    shared = L.Dense(8, name="shared")
    cell = seq(keras.Input((8, 8, 3)), L.Conv2D(4, 3), L.Flatten())
    yield "dense", seq(keras.Input((10,)), L.Dense(10, activation="relu"), L.Dense(2))
    yield "nested", functional(lambda x: L.Dense(3)(inner(L.Dense(16)(x))), (5,))
    yield "nested twice", functional(lambda x: L.Dense(3)(inner(inner(L.Dense(16)(x)))), (5,))
    yield "shared layer", functional(lambda a, b: L.Dense(1)(L.concatenate([shared(a), shared(b)])), (4,), (4,))
    yield "siamese", functional(lambda a, b: L.Dense(1)(L.subtract([cell(a), cell(b)])), (8, 8, 3), (8, 8, 3))
    yield "two outputs", functional(lambda x: [L.Dense(2, name="a")(x), L.Dense(3, name="b")(x)], (6,))
    yield "image and table", functional(lambda a, b: L.Dense(2)(L.concatenate([L.Flatten()(L.Conv2D(3, 3)(a)), b])), (8, 8, 3), (5,))
    yield "lstm", seq(keras.Input((20, 8)), L.LSTM(16, return_sequences=True), L.LSTM(8), L.Dense(1))
    yield "bidirectional", seq(keras.Input((20, 8)), L.Bidirectional(L.GRU(6)), L.Dense(1))
    yield "embedding and mask", seq(keras.Input((12,)), L.Embedding(100, 8, mask_zero=True), L.LSTM(4), L.Dense(1))
    yield "attention", functional(lambda x: L.Dense(1)(L.MultiHeadAttention(2, 8)(x, x)), (10, 16))
    yield "residual", functional(lambda x: L.GlobalAveragePooling2D()(L.add([x, L.BatchNormalization()(L.Conv2D(4, 3, padding="same")(x))])), (16, 16, 4))
    yield "depthwise", seq(keras.Input((16, 16, 4)), L.SeparableConv2D(8, 3), L.DepthwiseConv2D(3), L.GlobalMaxPooling2D())
    yield "time distributed", seq(keras.Input((5, 8, 8, 1)), L.TimeDistributed(L.Conv2D(2, 3)), L.TimeDistributed(L.Flatten()), L.LSTM(4))
    yield "operators", functional(lambda x: L.Dense(1)(x * 2 + keras.ops.relu(x) - 1), (7,))
    yield "dropout and noise", seq(keras.Input((32,)), L.Dropout(0.5), L.GaussianNoise(0.1), L.Dense(4, kernel_regularizer="l2"))
    yield "transposed", seq(keras.Input((8, 8, 4)), L.Conv2DTranspose(4, 3, strides=2), L.UpSampling2D(), L.Conv2D(1, 1))
    yield "frozen", functional(lambda x: L.Dense(2)(frozen()(x)), (12,))
    yield "odd names", functional(lambda x: L.Dense(2, name="out_ü 1")(L.Dense(3, name="a b")(x)), (4,), name="ein gang")
    yield "one dimension", seq(keras.Input((64, 3)), L.Conv1D(8, 5, padding="causal", dilation_rate=2), L.MaxPooling1D(), L.Flatten(), L.Dense(1))


def frozen():
    layer = keras.Sequential([keras.Input((12,)), L.Dense(12)])
    layer.trainable = False
    return layer


class Plans(unittest.TestCase):
    def same(self, name, model, batch=16):
        with tempfile.TemporaryDirectory() as folder, Written() as written:
            path = os.path.join(folder, "m.keras")
            shape = (224, 224, 3) if model.inputs[0].shape[1:3] == (None, None) else None
            model.save(path)
            began = time.perf_counter()
            mine = memfit.plan(model, batch, card=CARD, input_shape=shape).to_dict()
            took = time.perf_counter() - began
            self.assertEqual(without_times(mine), without_times(told(path, batch, shape)), name)
        print("%-22s %9.1f MiB  %.2f s  largest temporary file %d kB" % (name, mine["peak_bytes"] / 2**20, took, written.largest // 1000), flush=True)
        self.assertGreater(written.largest, 0)
        self.assertLess(written.largest, 2_000_000)

    def test_applications(self):
        for name in applications():
            with self.subTest(name):
                keras.backend.clear_session()
                model = getattr(keras.applications, name)(weights=None)
                model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
                self.same(name, model)
                del model

    def test_odd_models(self):
        count = 0
        for name, model in odd_models():
            with self.subTest(name):
                model.compile(keras.optimizers.Adam(1e-3), "mse")
                self.same(name, model)
                count += 1
        self.assertEqual(count, 20)

    def test_not_compiled(self):
        self.same("not compiled", keras.Sequential([keras.Input((4,)), L.Dense(2)]))


class Subclassed(unittest.TestCase):
    class Net(keras.Model):
        def __init__(self, **more):
            super().__init__(**more)
            self.a, self.b = L.Dense(8, activation="relu"), L.Dense(2)

        def call(self, x):
            return self.b(self.a(x))

    def test_followed(self):
        net = self.Net()
        net.compile("adam", "mse")
        with self.assertRaisesRegex(memfit.InputError, "not built"):
            memfit.plan(net, card=CARD)
        net(np.zeros((2, 10)))
        same = keras.Sequential([keras.Input((10,)), L.Dense(8, activation="relu"), L.Dense(2)])
        same.compile("adam", "mse")
        self.assertEqual(memfit.plan(net, card=CARD).peak_bytes, memfit.plan(same, card=CARD).peak_bytes)
        self.assertEqual(memfit.plan(self.Net(), card=CARD, input_shape=(10,)).model.parameters, same.count_params())

    def test_cannot_be_followed(self):
        class Odd(self.Net):
            def call(self, x):
                return self.b(self.a(np.asarray(x)))

        with self.assertRaisesRegex(memfit.UnsupportedError, "Odd"):
            memfit.plan(Odd(), card=CARD, input_shape=(10,))

    def test_own_layer_is_refused_by_name(self):
        class Mine(L.Layer):
            def call(self, x):
                return x * 2

        with self.assertRaisesRegex(memfit.UnsupportedError, "Mine"):
            memfit.plan(keras.Sequential([keras.Input((4,)), Mine(name="mine"), L.Dense(1)]), card=CARD)


if __name__ == "__main__":
    unittest.main()
