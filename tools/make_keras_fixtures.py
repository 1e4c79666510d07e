#!/usr/bin/env python3
"""Writes the Keras files the tests read, with real Keras. Needs: keras, tensorflow (or another back end), h5py.

  make_keras_fixtures.py models FOLDER         small .keras and .h5 files and expected.json  (tests/fixtures/keras)
  make_keras_fixtures.py data FOLDER           small HDF5 data files and expected.json        (tests/fixtures/hdf5)
  make_keras_fixtures.py saved FOLDER          the same as .keras files with random weights (large; not committed)
  make_keras_fixtures.py describe FILE...      what Keras says of a file, as JSON, to compare by hand
"""
import io
import json
import os
import sys
import zipfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import numpy as np
import keras
from keras import layers


def shape_of(layer):
    try:
        shape = layer.output.shape
    except Exception:
        return None
    return [[d for d in s] for s in shape] if shape and isinstance(shape[0], tuple) else list(shape)


def describe(model):
    """Layer by layer: name, class, output shape, parameters; and the totals."""
    trainable = int(sum(np.prod(w.shape) for w in model.trainable_weights))
    return {
        "name": model.name,
        "class": type(model).__name__,
        "parameters": int(model.count_params()),
        "trainable": trainable,
        "optimizer_variables": len(model.optimizer.variables) if getattr(model, "optimizer", None) else 0,
        "layers": [[l.name, type(l).__name__, shape_of(l), int(l.count_params())] for l in model.layers],
        "weights": [[w.path, list(w.shape), float(np.sum(np.asarray(w, dtype="float64")))] for w in model.weights],
    }


# ---- small models -----------------------------------------------------------------------------------------------

def dense_adam():
    m = keras.Sequential([keras.Input((4,)), layers.Dense(5, activation="relu"), layers.Dense(3, activation="softmax")])
    m.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return m, (8, 4), ("classes", 3)


def dense_uncompiled():
    return keras.Sequential([keras.Input((4,)), layers.Dense(2)]), None, None


def dense_unbuilt():
    return keras.Sequential([layers.Dense(2), layers.Dense(1)]), None, None


def conv_rmsprop():
    m = keras.Sequential([
        keras.Input((8, 8, 3)), layers.Conv2D(4, 3, padding="same", activation="relu"), layers.BatchNormalization(),
        layers.MaxPooling2D(), layers.Conv2D(6, 3, strides=2), layers.ReLU(), layers.Dropout(0.3), layers.Flatten(),
        layers.Dense(3, activation="softmax", kernel_regularizer="l2")])
    m.compile(keras.optimizers.RMSprop(1e-3, momentum=0.5), "categorical_crossentropy", metrics=["accuracy"])
    return m, (4, 8, 8, 3), ("onehot", 3)


def sgd_momentum():
    m = keras.Sequential([keras.Input((4,)), layers.Dense(6, activation="tanh"), layers.Dense(1)])
    m.compile(keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), "mse", metrics=["mae"])
    return m, (8, 4), ("real", 1)


def functional_shared():
    a, b = keras.Input((6,), name="left"), keras.Input((6,), name="right")
    shared = layers.Dense(4, activation="relu", name="shared")
    x, y = shared(a), shared(b)
    z = layers.Concatenate()([x, y])
    z = z * 2.0 + layers.Dense(8)(z)
    first = layers.Dense(1, name="first")(z)
    second = layers.Dense(2, name="second")(layers.Add()([x, y]))
    m = keras.Model([a, b], [first, second], name="twins")
    m.compile("adam", loss=["mse", "mae"])
    return m, None, None


def nested():
    body = keras.Sequential([keras.Input((6, 6, 2)), layers.Conv2D(3, 3), layers.BatchNormalization(), layers.ReLU()], name="body")
    head_in = keras.Input((4, 4, 3))
    head = keras.Model(head_in, layers.Dense(2)(layers.GlobalAveragePooling2D()(head_in)), name="head")
    x = keras.Input((6, 6, 2))
    m = keras.Model(x, head(body(x)), name="outer")
    body.layers[0].trainable = False
    m.compile(keras.optimizers.Adam(1e-3), "mse")
    return m, (4, 6, 6, 2), ("real", 2)


def nested_output():
    """The model's output is a nested Functional's: its node counts from 1 in output_layers."""
    i = keras.Input((3,))
    inner = keras.Model(i, layers.Dense(2)(i), name="inner")
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    return keras.Model([a, b], [inner(a), inner(b)], name="calls"), None, None


def recurrent():
    m = keras.Sequential([
        keras.Input((7,), dtype="int32"), layers.Embedding(20, 4, mask_zero=True),
        layers.Bidirectional(layers.LSTM(3, return_sequences=True)), layers.GRU(4, return_sequences=True),
        layers.TimeDistributed(layers.Dense(3)), layers.SimpleRNN(2), layers.Dense(1, activation="sigmoid")])
    m.compile(keras.optimizers.AdamW(1e-3), "binary_crossentropy", metrics=["accuracy"])
    return m, ("ids", 8, 7, 20), ("bit", 1)


def attention():
    x = keras.Input((5, 8))
    y = layers.MultiHeadAttention(2, 4)(x, x)
    y = layers.LayerNormalization()(layers.Add()([x, y]))
    y = y + layers.Dense(8)(layers.Dense(16, activation="gelu")(y))
    y = layers.GlobalAveragePooling1D()(y[:, 1:, :])
    m = keras.Model(x, layers.Dense(2)(y), name="encoder")
    m.compile("adam", "mse")
    return m, (4, 5, 8), ("real", 2)


def kinds():
    """One of many layer classes with weights, for paths and orders."""
    x = keras.Input((8, 8, 4))
    y = layers.DepthwiseConv2D(3, padding="same")(x)
    y = layers.SeparableConv2D(6, 3, padding="same")(y)
    y = layers.Conv2DTranspose(4, 2, strides=2)(y)
    y = layers.GroupNormalization(2)(y)
    y = layers.PReLU(shared_axes=[1, 2])(y)
    y = layers.LeakyReLU()(y)
    y = layers.UpSampling2D()(layers.AveragePooling2D(4)(y))
    y = layers.Reshape((64, 4))(y)
    y = layers.Conv1D(3, 3, padding="causal")(y)
    y = layers.EinsumDense("abc,cd->abd", output_shape=(None, 5), bias_axes="d")(y)
    y = layers.Normalization(mean=0.5, variance=2.0)(y)
    m = keras.Model(x, layers.Flatten()(y))
    m.compile(keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 100, 0.9), clipnorm=1.0), "mse")
    return m, None, None


def mixed():
    keras.config.set_dtype_policy("mixed_float16")
    m = keras.Sequential([keras.Input((4,)), layers.Dense(4), layers.Dense(1, dtype="float32")])
    m.compile("adam", "mse")
    keras.config.set_dtype_policy("float32")
    return m, (8, 4), ("real", 1)


def bfloat():
    return keras.Sequential([keras.Input((4,)), layers.Dense(3, dtype="bfloat16"), layers.Dense(2, dtype="float16")]), None, None


def lambda_layer():
    m = keras.Sequential([keras.Input((4,)), layers.Dense(4), layers.Lambda(lambda t: t * 2), layers.Dense(1)])
    return m, None, None


@keras.saving.register_keras_serializable("mine")
class Doubling(layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.factor


def custom_layer():
    return keras.Sequential([keras.Input((4,)), layers.Dense(4), Doubling(), layers.Dense(1)]), None, None


MODELS = [dense_adam, dense_uncompiled, dense_unbuilt, conv_rmsprop, sgd_momentum, functional_shared, nested, nested_output,
          recurrent, attention, kinds, mixed, bfloat, lambda_layer, custom_layer]
ALSO_H5 = {"dense_adam", "conv_rmsprop", "sgd_momentum", "nested", "recurrent", "attention", "functional_shared"}


def sample(shape, target):
    rng = np.random.default_rng(1)
    if shape[0] == "ids":
        x = rng.integers(0, shape[3], shape[1:3])
        n = shape[1]
    else:
        x = rng.standard_normal(shape).astype("float32")
        n = shape[0]
    kind, width = target
    y = {"classes": lambda: rng.integers(0, width, (n,)), "bit": lambda: rng.integers(0, 2, (n, 1)),
         "onehot": lambda: np.eye(width)[rng.integers(0, width, n)].astype("float32"),
         "real": lambda: rng.standard_normal((n, width)).astype("float32")}[kind]()
    return x, y


def repack(source, target, rename=None, method=zipfile.ZIP_STORED):
    """Copies a .keras with its weights' groups renamed as older releases named them, or packed."""
    import h5py
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", method) as new:
        for name in old.namelist():
            data = old.read(name)
            if rename and name == "model.weights.h5":
                out = io.BytesIO()
                with h5py.File(io.BytesIO(data), "r") as a, h5py.File(out, "w") as b:
                    def copy(path, node):
                        if isinstance(node, h5py.Dataset):
                            group, leaf = rename(path).rsplit("/", 1)
                            b.require_group(group).create_dataset(leaf, data=node[()])
                    a.visititems(copy)
                data = out.getvalue()
            new.writestr(name, data)


def make_variants(folder, expected):
    """What other releases and other programs make of the same model."""
    at = lambda name: os.path.join(folder, name)
    repack(at("conv_rmsprop.keras"), at("windows_2_15.keras"), lambda p: p.replace("layers/", "layers\\", 1))
    def old(path):  # 2.12 to 2.14: another root, and numbers that skip
        parts = path.split("/")
        if parts[0] == "layers":
            parts[0] = "_layer_checkpoint_dependencies"
            base, _, number = parts[1].rpartition("_")
            if number.isdigit():
                parts[1] = f"{base}_{2 * int(number)}"
        return "/".join(parts)
    repack(at("conv_rmsprop.keras"), at("skipping_2_13.keras"), old)
    repack(at("attention.keras"), at("underscores.keras"), lambda p: p.replace("query_dense", "_query_dense").replace("value_dense", "_value_dense"))
    repack(at("dense_adam.keras"), at("deflated.keras"), method=zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(at("dense_uncompiled.keras")) as z:
        z.extractall(at("unpacked"))
    for variant, source in (("windows_2_15", "conv_rmsprop"), ("skipping_2_13", "conv_rmsprop"), ("underscores", "attention"), ("deflated", "dense_adam")):
        expected[variant + ".keras"] = expected[source + ".keras"]
    expected["unpacked"] = expected["dense_uncompiled.keras"]


def make_shared_levels(folder):
    """A layer used inside a nested model and beside it: Keras stores it once and cannot load the file again."""
    shared = keras.layers.Dense(4, name="shared")
    i, o = keras.Input((4,)), keras.Input((4,))
    inner = keras.Model(i, keras.layers.Dense(4, name="own")(shared(i)), name="inner")
    model = keras.Model(o, keras.layers.Dense(1, name="top")(shared(inner(o))), name="outer")
    model.compile("sgd", "mse")
    model.save(os.path.join(folder, "shared_levels.keras"))
    x = np.random.default_rng(5).random((16, 4), dtype="f4")
    np.savez(os.path.join(folder, "shared_levels.npz"), x=x, y=model.predict(x, verbose=0))


def make_models(folder):
    os.makedirs(folder, exist_ok=True)
    expected = {}
    for make in MODELS:
        keras.utils.clear_session()
        keras.utils.set_random_seed(7)
        model, shape, target = make()
        name = make.__name__
        if shape:
            x, y = sample(shape, target)
            model.fit(x, y, epochs=2, batch_size=4, verbose=0)
        model.save(os.path.join(folder, name + ".keras"))
        if model.built:
            expected[name + ".keras"] = describe(model)
        if name in ALSO_H5:
            model.save(os.path.join(folder, name + ".h5"))
            expected[name + ".h5"] = describe(model)
    make_variants(folder, expected)
    make_shared_levels(folder)
    with open(os.path.join(folder, "dense_adam.json"), "w") as f:
        keras.utils.clear_session()
        keras.utils.set_random_seed(7)
        f.write(dense_adam()[0].to_json())
    with open(os.path.join(folder, "expected.json"), "w") as f:
        json.dump(expected, f, separators=(",", ":"))


# ---- data files -------------------------------------------------------------------------------------------------

def make_data(folder):
    import h5py
    os.makedirs(folder, exist_ok=True)
    rng = np.random.default_rng(3)
    a = (np.arange(50 * 6 * 5) % 251).reshape(50, 6, 5)
    kinds = {"uint8": a.astype("uint8"), "float32": a.astype("float32") / 7, "float64": a / 7.0, "int64": a.astype("int64") - 100,
             "float16": (a / 8).astype("float16"), "int16": a.astype("int16"), "bool": a % 3 == 0}
    for name, options in {"plain": {}, "gzip": {"compression": "gzip", "chunks": (7, 4, 5)},
                          "shuffle": {"compression": "gzip", "shuffle": True, "chunks": (16, 6, 5)},
                          "lzf": {"compression": "lzf", "chunks": (9, 6, 2)},
                          "chunked": {"chunks": (8, 5, 3), "fletcher32": True}}.items():
        with h5py.File(os.path.join(folder, name + ".h5"), "w") as f:
            for kind, values in kinds.items():
                f.create_dataset(kind, data=values, **options)
            f.create_dataset("scalar", data=np.float32(1.5))
            f.create_dataset("empty", shape=(0, 3), dtype="f4")
            f.attrs["names"] = ["one", "two", "three"]
            f.attrs.create("fixed", np.array([b"ab", b"cde"]))
            f.create_group("deep/er").attrs["text"] = "found"
    with h5py.File(os.path.join(folder, "many.h5"), "w") as f:
        for i in range(400):
            f.create_dataset(f"group/{i}", data=np.int32(i))
    with h5py.File(os.path.join(folder, "partial.h5"), "w") as f:
        d = f.create_dataset("x", shape=(100, 4), dtype="f4", chunks=(10, 4), compression="gzip", fillvalue=3.0, maxshape=(None, 4))
        d[50:60] = rng.standard_normal((10, 4))
    with h5py.File(os.path.join(folder, "latest.h5"), "w", libver="latest") as f:
        f.create_dataset("x", data=kinds["float32"])
        f.create_dataset("deep/y", data=kinds["uint8"])
    with h5py.File(os.path.join(folder, "latest_chunked.h5"), "w", libver="latest") as f:
        f.create_dataset("x", data=kinds["float32"], chunks=(8, 6, 5))
    with h5py.File(os.path.join(folder, "unwritten.h5"), "w") as f:  # 2.8 GB by its own account, 2 kB on the disk
        f.create_dataset("x", (1000, 700000), "f4")
        f.create_dataset("y", (1000,), "i4")
    with h5py.File(os.path.join(folder, "one_chunk.h5"), "w") as f:  # 12 MiB in a single chunk, as people write it
        x = (np.arange(49152 * 64) % 17 / 16).astype("f4").reshape(49152, 8, 8, 1)
        f.create_dataset("x", data=x, chunks=x.shape, compression="gzip", shuffle=True)
        f.create_dataset("y", data=(np.arange(49152) % 10).astype("u1"), chunks=(49152,), compression="gzip")
    with h5py.File(os.path.join(folder, "links.h5"), "w") as f:
        f["soft"] = h5py.SoftLink("/nowhere")
    with h5py.File(os.path.join(folder, "external.h5"), "w") as f:
        f.create_dataset("x", shape=(4,), dtype="f4", external=[("elsewhere.bin", 0, 16)])
    with h5py.File(os.path.join(folder, "big_endian.h5"), "w") as f:
        f.create_dataset("x", data=a.astype(">f4")[:2])
    with h5py.File(os.path.join(folder, "compound.h5"), "w") as f:
        f.create_dataset("x", data=np.zeros(3, dtype=[("a", "f4"), ("b", "i4")]))
    with h5py.File(os.path.join(folder, "beside.h5"), "w") as f:  # what nobody asks for must not be in the way
        f.create_dataset("about", data=np.zeros(3, dtype=[("a", "f4"), ("b", "i4")]))
        f.create_dataset("deep", data=np.zeros((1,) * 10))
        f.create_dataset("x", data=a[:2])


# ---- applications -----------------------------------------------------------------------------------------------

def applications():
    found = []
    for name in sorted(dir(keras.applications)):
        value = getattr(keras.applications, name)
        if callable(value) and name[0].isupper():
            found.append((name, value))
    return found


def make_saved(folder):
    os.makedirs(folder, exist_ok=True)
    for name, make in applications():
        keras.utils.clear_session()
        make(weights=None).save(os.path.join(folder, name + ".keras"))


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    what, rest = sys.argv[1], sys.argv[2:]
    if what == "models":
        make_models(rest[0])
    elif what == "data":
        make_data(rest[0])
    elif what == "saved":
        make_saved(rest[0])
    elif what == "describe":
        for path in rest:
            print(json.dumps(describe(keras.models.load_model(path, compile=True))))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
