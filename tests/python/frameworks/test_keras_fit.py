"""memfit.fit against `memfit train` of the same files, bit for bit, and the model's predictions afterwards against the engine's; Watch in a real
Keras training. MEMFIT_DEVICE=cuda trains on a card."""

import csv
import json
import os
import subprocess
import tempfile
import unittest

import keras
import memfit
import numpy as np

L = keras.layers
SOURCE = os.environ["MEMFIT_SOURCE"]
DEVICE = os.environ.get("MEMFIT_DEVICE", "cpu")
LIMIT, LIMIT_BYTES = ("64MiB", 64 << 20) if DEVICE == "cpu" else ("4GiB", 4 << 30)
rng = np.random.default_rng(0)


def models():
    """Six models with data: name, model, x, y."""
    with np.load(os.path.join(SOURCE, "examples/data/digits.npz")) as d:
        images, labels = d["x"][:512], d["y"][:512]
    table = rng.normal(size=(300, 10)).astype("float32")
    words = rng.integers(0, 50, size=(256, 12)).astype("int32")
    yield "cnn", compiled([keras.Input((8, 8, 1)), L.Conv2D(8, 3, activation="relu"), L.BatchNormalization(), L.Flatten(), L.Dense(10, activation="softmax")],
                          "sparse_categorical_crossentropy", ["accuracy"]), images, labels
    yield "dense", compiled([keras.Input((10,)), L.Dense(16, activation="relu"), L.Dropout(0.2), L.Dense(1)], "mse", ["mae"]), table, table[:, :1] * 2
    yield "lstm", compiled([keras.Input((12,)), L.Embedding(50, 8), L.LSTM(8), L.Dense(1, activation="sigmoid")], "binary_crossentropy", ["accuracy"]), words, (words[:, 0] > 25).astype("float32")
    yield "sgd", compiled([keras.Input((10,)), L.Dense(4), L.Dense(1)], "mae", [], keras.optimizers.SGD(0.01, momentum=0.9)), table, table[:, 1]
    a, b = keras.Input((10,), name="left"), keras.Input((10,), name="right")
    two = keras.Model([a, b], L.Dense(1)(L.concatenate([L.Dense(4)(a), L.Dense(4)(b)])))
    two.compile("adam", "mse")
    yield "two inputs", two, {"left": table, "right": table[::-1].copy()}, table[:, 2]
    c = keras.Input((10,))
    outs = keras.Model(c, [L.Dense(1, name="p")(c), L.Dense(3, name="q", activation="softmax")(c)])
    outs.compile("rmsprop", {"p": "mse", "q": "sparse_categorical_crossentropy"})
    yield "two outputs", outs, table, {"p": table[:, :1], "q": (table[:, 0] > 0).astype("int32")}


def compiled(layers, loss, metrics, optimizer="adam"):
    model = keras.Sequential(layers)
    model.compile(optimizer, loss, metrics=metrics)
    return model


def arrays(x, y):
    named = dict(x) if isinstance(x, dict) else {"x": x}
    named.update(y if isinstance(y, dict) else {"y": y})
    return named


class Fit(unittest.TestCase):
    def test_as_train(self):
        keras.utils.set_random_seed(3)
        for name, model, x, y in models():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                at = lambda n: os.path.join(folder, n)  # noqa: E731
                model.save(at("m.keras"))
                np.savez(at("d.npz"), **arrays(x, y))
                out = subprocess.run(
                    [memfit.program(), "train", at("m.keras"), "--data", at("d.npz"), "--epochs", "2", "--memory", LIMIT, "--device", DEVICE, "--validation-split", "0.2",
                     "--log-csv", at("l.csv"), "--out", at("t.keras"), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", check=False)
                self.assertEqual(out.returncode, 0, out.stderr)
                history = memfit.fit(model, x, y, epochs=2, memory=LIMIT, device=DEVICE, validation_split=0.2, verbose=0)
                self.assertEqual(history.memfit["loss"], json.loads(out.stdout)["loss"])
                with open(at("l.csv"), encoding="utf-8") as f:
                    rows = list(csv.DictReader(f))
                for key, values in history.history.items():
                    self.assertEqual(values, [float(r[key]) for r in rows], key)
                trained = keras.models.load_model(at("t.keras"))
                for mine, theirs in zip(model.weights, trained.weights):
                    self.assertTrue(np.array_equal(mine, theirs), mine.path)
                for mine, theirs in zip(model.optimizer.variables, trained.optimizer.variables):
                    self.assertTrue(np.array_equal(mine, theirs), mine.path)
                self.assertIsInstance(history, keras.callbacks.History)
                again = keras.models.clone_model(model)
                again.compile(keras.optimizers.Adam(), model.loss, metrics=None)
                theirs = again.fit(x, y, epochs=1, verbose=0, validation_split=0.2).history
                self.assertLessEqual(set(theirs) - {k for k in theirs if "accuracy" in k}, set(history.history))
                self.assertLessEqual(history.memfit["measured_peak_bytes"], LIMIT_BYTES)
                apart = self.predictions_apart(model, x, at)
                self.assertLess(apart, 1e-5 if DEVICE == "cpu" else 1e-3)
                print("%-12s loss %.9g, predictions %.1e apart, keys %s" % (name, history.memfit["loss"], apart, sorted(history.history)))

    def predictions_apart(self, model, x, at):
        """The largest difference between the live model's predictions and those of the engine for the file it trained."""
        done = subprocess.run(
            [memfit.program(), "predict", at("t.keras"), "--data", at("d.npz"), "--memory", LIMIT, "--device", DEVICE, "--out", at("p.npy")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        mine = model.predict(x, verbose=0)
        files = sorted(n for n in os.listdir(at("")) if n.startswith("p") and n.endswith((".npy", ".npz")))
        theirs = [np.load(at(n)) for n in files]
        mine = mine if isinstance(mine, list) else [mine]
        self.assertEqual(len(mine), len(theirs), files)
        return max(float(np.max(np.abs(np.asarray(a) - b))) for a, b in zip(mine, theirs))

    def test_loaders(self):
        model = compiled([keras.Input((10,)), L.Dense(1)], "mse", [])
        x = rng.normal(size=(64, 10)).astype("float32")
        model.save_weights_before = [np.array(v) for v in model.variables]
        batches = [(x[i : i + 16], x[i : i + 16, :1]) for i in range(0, 64, 16)]
        one = memfit.fit(model, batches.__iter__(), memory="64MiB", verbose=0).memfit["loss"]
        for v, w in zip(model.variables, model.save_weights_before):
            v.assign(w)
        for v in model.optimizer.variables:
            v.assign(np.zeros_like(v) if v.path.split("/")[-1] != "learning_rate" else v)
        two = memfit.fit(model, x, x[:, :1], memory="64MiB", verbose=0).memfit["loss"]
        self.assertEqual(one, two)

    def test_nothing_half_done(self):
        model = compiled([keras.Input((10,)), L.Dense(1)], "mse", [])
        before = [np.array(v) for v in model.variables]
        x = rng.normal(size=(64, 10)).astype("float32")
        for kind, words, call in (
            (memfit.UsageError, "callbacks", lambda: memfit.fit(model, x, x[:, 0], callbacks=[])),
            (memfit.UsageError, "steps_per_epoch", lambda: memfit.fit(model, x, x[:, 0], steps_per_epoch=3)),
            (TypeError, "batchsize", lambda: memfit.fit(model, x, x[:, 0], batchsize=3)),
            (memfit.UsageError, "different numbers of samples", lambda: memfit.fit(model, x, x[:5, 0])),
            (memfit.DoesNotFitError, "limit is 1.00 MiB", lambda: memfit.fit(model, x, x[:, 0], memory="1MiB")),
            (memfit.InputError, "the arrays given", lambda: memfit.fit(model, x[:, :3], x[:, 0], memory="64MiB")),
            (memfit.UsageError, "not compiled", lambda: memfit.fit(keras.Sequential([keras.Input((10,)), L.Dense(1)]), x, x[:, 0])),
            (memfit.InputError, "no Keras model", lambda: memfit.fit("m.keras", x, x)),
        ):
            with self.assertRaisesRegex(kind, words):
                call()
        for v, w in zip(model.variables, before):
            self.assertTrue(np.array_equal(v, w))


class WatchKeras(unittest.TestCase):
    def test_callback(self):
        class Hoards(keras.callbacks.Callback):
            kept = []

            def on_train_batch_end(self, batch, logs=None):
                self.kept.append(np.ones((1 << 20,), "float32"))

        said = []
        watch = memfit.Watch(limit="64GiB", say=said.append, bar=False)
        model = compiled([keras.Input((256,)), L.Dense(256), L.Dense(1)], "mse", [])
        x = rng.normal(size=(6400, 256)).astype("float32")
        model.fit(x, x[:, :1], batch_size=16, epochs=2, verbose=0, callbacks=[Hoards(), watch])
        self.assertEqual((watch.steps, watch.epochs), (800, 2))
        print(said)
        self.assertTrue(any("kept" in s for s in said), said)
        self.assertIsInstance(watch, keras.callbacks.Callback)

    def test_beside_the_steps(self):
        """With no other callback Keras calls it from threads of its own (TensorFlow, JAX): every step counts, and the data's leak is named. Keras is not kept
        from going on."""
        leaks = []

        class Data(keras.utils.PyDataset):
            def __len__(self):
                return 400

            def __getitem__(self, index):
                leaks.append(np.ones((1 << 20,), "float32"))
                return np.ones((16, 256), "float32"), np.ones((16, 1), "float32")

        said = []
        watch = memfit.Watch(limit="64GiB", say=said.append, bar=False)
        model = compiled([keras.Input((256,)), L.Dense(256), L.Dense(1)], "mse", [])
        model.fit(Data(), epochs=1, verbose=0, callbacks=[watch])
        self.assertEqual((watch.steps, watch.epochs), (400, 1))
        self.assertTrue(any("leaks" in s for s in said), said)
        lists = keras.callbacks.CallbackList([watch])
        self.assertEqual(lists._async_train, keras.src.backend.IS_THREAD_SAFE)


if __name__ == "__main__":
    unittest.main()
