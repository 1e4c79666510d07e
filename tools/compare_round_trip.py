#!/usr/bin/env python3
"""What memfit trains goes back to Keras, and from there on: python tools/compare_round_trip.py build/memfit [WORD ...]

For each case (a model and an optimizer, as .keras or legacy .h5): Keras trains one epoch and saves, memfit trains one
epoch and saves with --out, Keras loads that. Compared:

    predictions  Keras's from the loaded file against `memfit predict`, |a - b| / |b|           at most 1e-5
    iteration    the loaded optimizer's count against Keras's own after the same steps          equal
    state        the loaded optimizer's arrays against Keras's own after two epochs, worst      at most 1e-3
    next epoch   loss of a third epoch in Keras from the loaded file against memfit's           at most 1e-4
    in one go    memfit: two epochs at once against one, --out, another: the same bytes

WORDs choose the cases whose name contains one of them. Exit status: the number of cases that fail.
"""
import json
import os
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import h5py
import keras
import numpy as np
from keras import layers as L
from keras import optimizers as O

BATCH, STEPS, CLASSES = 8, 5, 6


def dense():
    return keras.Sequential([keras.Input((12,)), L.Dense(16, activation="relu"), L.Dense(CLASSES, activation="softmax")])


def convolutional():
    i = keras.Input((12, 12, 3))
    x = L.Conv2D(8, 3, padding="same", use_bias=False)(i)
    y = L.ReLU()(L.BatchNormalization()(x))
    x = L.Add()([x, L.Conv2D(8, 3, padding="same")(y)])
    x = L.Flatten()(L.MaxPooling2D()(x))
    return keras.Model(i, L.Dense(CLASSES, activation="softmax")(x))


def nested():
    inner = keras.Sequential([keras.Input((12, 12, 3)), L.Conv2D(6, 3), L.BatchNormalization(), L.Activation("relu")], name="body")
    i = keras.Input((12, 12, 3))
    branch = keras.Model(inner.inputs, L.GlobalAveragePooling2D()(inner.outputs[0]), name="branch")
    return keras.Model(i, L.Dense(CLASSES, activation="softmax", name="head")(branch(i)))


def recurrent():
    return keras.Sequential([keras.Input((7, 5)), L.Bidirectional(L.LSTM(6, return_sequences=True)), L.LayerNormalization(),
                             L.GRU(8), L.Dense(CLASSES, activation="softmax")])


def attention():
    i = keras.Input((6, 8))
    x = L.LayerNormalization()(L.Add()([i, L.MultiHeadAttention(2, 4)(i, i)]))
    x = L.Dense(8, activation="gelu", kernel_regularizer="l2")(x)
    return keras.Model(i, L.Dense(CLASSES, activation="softmax")(L.GlobalAveragePooling1D()(x)))


def frozen():
    m = convolutional()
    m.layers[1].trainable = m.layers[2].trainable = False
    return m


def mixed():
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    i = keras.Input((12, 12, 3))
    x = L.ReLU()(L.BatchNormalization()(L.Conv2D(8, 3, padding="same")(i)))
    x = L.Dense(CLASSES, activation="softmax", dtype="float32", kernel_regularizer="l2")(L.GlobalAveragePooling2D()(x))
    keras.mixed_precision.set_dtype_policy("float32")
    return keras.Model(i, x)


MODELS = [dense, convolutional, nested, recurrent, attention, frozen]
OPTIMIZERS = {
    "sgd": lambda: O.SGD(0.05),
    "sgd-momentum": lambda: O.SGD(0.02, momentum=0.9),
    "sgd-nesterov": lambda: O.SGD(0.02, momentum=0.9, nesterov=True),
    "adam": lambda: O.Adam(),
    "adam-amsgrad": lambda: O.Adam(amsgrad=True),
    "adamw": lambda: O.AdamW(),
    "rmsprop": lambda: O.RMSprop(),
    "rmsprop-all": lambda: O.RMSprop(momentum=0.5, centered=True),
    "rmsprop-centered": lambda: O.RMSprop(centered=True),
    "lion": lambda: O.Lion(1e-3),
    "nadam": lambda: O.Nadam(),
    "adamax": lambda: O.Adamax(),
    "adagrad": lambda: O.Adagrad(0.01),
    "adadelta": lambda: O.Adadelta(0.5),
    "adafactor": lambda: O.Adafactor(0.01),
    "ftrl": lambda: O.Ftrl(0.01),
    "lamb": lambda: O.Lamb(),
    "adam-schedule": lambda: O.Adam(O.schedules.ExponentialDecay(0.003, 4, 0.7)),
    "adam-accumulate2": lambda: O.Adam(0.003, gradient_accumulation_steps=2),
    "sgd-accumulate3": lambda: O.SGD(0.05, momentum=0.9, gradient_accumulation_steps=3),
    "adam-clipnorm": lambda: O.Adam(clipnorm=0.1),
    "adam-global": lambda: O.Adam(global_clipnorm=0.1),
    "adam-ema": lambda: O.Adam(0.003, use_ema=True, ema_momentum=0.9),
}


GIVEN = {"none-then-adam": "adam", "none-then-nadam": "nadam"}  # by --optimizer, in place of the file's
OPTIMIZERS.update({name: lambda: O.SGD(0.05) for name in GIVEN})


def cases():
    for o in ("sgd-momentum", "adam", "adamw", "rmsprop", "lion"):
        for m in MODELS:
            yield m, o, "keras"
    for o in OPTIMIZERS:
        if o not in ("sgd-momentum", "adam", "adamw", "rmsprop", "lion"):
            yield convolutional, o, "keras"
    yield mixed, "adam", "keras"
    for m in (dense, convolutional, recurrent, attention):
        yield m, "adam", "h5"
    for o in ("sgd-momentum", "rmsprop-all", "nadam"):
        yield dense, o, "h5"


def run(program, *words):
    r = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(f"memfit {words[0]}: exit {r.returncode}: {r.stderr.strip()}")
    return json.loads(r.stdout) if "--json" in words else None


def near(a, b):
    a, b = np.asarray(a, "f8"), np.asarray(b, "f8")
    n = np.linalg.norm(b)
    return float(np.linalg.norm(a - b) / n) if n else float(np.linalg.norm(a))


def fit(model, x, y):
    return model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0).history["loss"][0]


def arrays(model):
    return [np.asarray(v) for v in model.optimizer.variables]


def check(program, folder, make, name, ext):
    keras.backend.clear_session()
    keras.utils.set_random_seed(5)
    model = make()
    model.compile(OPTIMIZERS[name](), "sparse_categorical_crossentropy")
    rng = np.random.default_rng(1)
    x = rng.normal(size=(BATCH * STEPS,) + model.input_shape[1:]).astype("float32")
    y = rng.integers(0, CLASSES, len(x)).astype("int32")
    first, second, third, both = (f"{folder}/{n}.{ext}" for n in ("first", "second", "third", "both"))
    data = f"{folder}/d.npz"
    np.savez(data, x=x, y=y)
    common = ["--data", data, "--batch-size", BATCH, "--quiet"]
    train = common + ["--no-shuffle"]
    fit(model, x, y)
    model.save(first)
    if name in GIVEN:
        train += ["--optimizer", GIVEN[name]]
        model.compile(GIVEN[name], "sparse_categorical_crossentropy")
    fit(model, x, y)
    run(program, "train", first, *train, "--out", second)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        back = keras.models.load_model(second)
    wrong = [str(w.message)[:100] for w in warned if "optimizer" in str(w.message)]
    run(program, "predict", second, *common, "--out", f"{folder}/p.npy")
    predictions = near(np.load(f"{folder}/p.npy"), back.predict(x, verbose=0))
    iterations = int(back.optimizer._iterations.numpy()), int(model.optimizer._iterations.numpy())
    mine, theirs = arrays(back), arrays(model)
    if ext == "h5":
        # Keras 3.15 does not find the state of any .h5, its own included (the optimizer is built for no variables), and
        # cannot train on from it: take the file's arrays in their order, as Keras means to.
        with h5py.File(second) as f:
            g = f["optimizer_weights"]
            mine = [np.asarray(g[n]) for n in g.attrs["weight_names"]]
        optimizer = type(back.optimizer).from_config(back.optimizer.get_config())
        optimizer.build(back.trainable_variables)
        if len(mine) == len(optimizer.variables):
            for v, value in zip(optimizer.variables, mine):
                v.assign(value)
            back.compile(optimizer, "sparse_categorical_crossentropy")
        iterations = int(mine[0]), iterations[1]
    state = max([near(a, b) for a, b in zip(mine[1:], theirs[1:]) if np.linalg.norm(b) > 1e-6] + [0.0])
    loss = fit(back, x, y)
    r = run(program, "train", second, *train, "--out", third, "--json")
    run(program, "train", first, *train, "--epochs", 2, "--out", both)
    # Averages become the weights at the end of a run, so two runs are not one.
    same = "ema" in name or open(both, "rb").read() == open(third, "rb").read()
    weights = near(np.concatenate([w.ravel() for w in keras.models.load_model(third).get_weights()]),
                   np.concatenate([w.ravel() for w in back.get_weights()]))
    difference = abs(loss - r["loss"]) / abs(loss)
    loose = 300 if make is mixed else 1  # sixteen bits: nobody's sums agree
    for bad, text in ((predictions > loose * 1e-5, "predictions"), (iterations[0] != iterations[1], f"iterations {iterations}"),
                      (len(mine) != len(theirs), "number of arrays"), (state > loose * 1e-3, "state"), (difference > 1e-4, "next epoch"),
                      (not same, "not the same in one go")):
        if bad:
            wrong.append(text)
    print(f"| {make.__name__}, {name}, .{ext} | {predictions:.1e} | {iterations[0]} | {state:.1e} | {loss:.6f}, {r['loss']:.6f} "
          f"| {weights:.1e} | {'; '.join(wrong) if wrong else 'holds'} |", flush=True)
    return bool(wrong)


def main():
    program, words = sys.argv[1], sys.argv[2:]
    failed = 0
    print("| model, optimizer, file | predictions | iteration | state | next epoch's loss: Keras, memfit | weights after | |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for make, optimizer, ext in cases():
            name = f"{make.__name__} {optimizer} {ext}"
            if words and not any(w in name for w in words):
                continue
            try:
                failed += check(program, folder, make, optimizer, ext)
            except (RuntimeError, ValueError, KeyError) as e:
                print(f"| {name} | {str(e)[:300]} |", flush=True)
                failed += 1
    return failed


sys.exit(main())
