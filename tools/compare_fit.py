#!/usr/bin/env python3
"""What fit(), evaluate() and predict() do around the step, against Keras:

    python tools/compare_fit.py build/memfit [CASE ...]
    python tools/compare_fit.py --fixtures tests/fixtures/fit       # the same cases, with Keras's numbers, for tests/e2e/test_train_fit.sh

Each case trains one small model twice from the same file, on the same data in the same order: with Keras's fit() and its
callbacks, and with `memfit train --no-shuffle` and the options that stand for them. Compared are every number of every epoch
(loss, metrics, validation, learning rate; memfit's --log-csv against the history), how many epochs there were, the weights at
the end, and what evaluate and predict make of them. Printed per case: the largest relative difference of a logged number,
the distance of the weights |memfit - Keras| / |Keras - start|, and of the predictions. Exit status: the number of cases that
differ by more than 1e-4 (numbers of an epoch) or 1e-3 (weights).

Run with a Python that has Keras and TensorFlow.
"""
import csv
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
import keras  # noqa: E402
import numpy as np  # noqa: E402

N, WIDE, CLASSES = 107, 6, 5  # 107: the last batch is a partial one
rng = np.random.default_rng(3)
X = rng.normal(size=(N, WIDE)).astype("float32")
LABELS = (np.abs(X[:, 0] * 2 + X[:, 1]) * 1.3).astype("int32") % CLASSES
WEIGHTS = rng.uniform(0.2, 3, N).astype("float32")
TARGET = (X[:, :2].sum(1, keepdims=True) + 0.3 * rng.normal(size=(N, 1))).astype("float32")
BINARY = (X[:, 0] + X[:, 1] > 0).astype("float32")


def classifier(rate=0.05, **compile_options):
    keras.utils.set_random_seed(5)
    m = keras.Sequential([keras.Input((WIDE,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(CLASSES, activation="softmax")])
    options = dict(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    options.update(compile_options)
    m.compile(keras.optimizers.SGD(rate, momentum=0.9), jit_compile=False, **options)
    return m


def regression(rate=0.02):
    keras.utils.set_random_seed(6)
    m = keras.Sequential([keras.Input((WIDE,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    m.compile(keras.optimizers.SGD(rate), "mse", metrics=["mae", "mse"], jit_compile=False)
    return m


def detector():
    keras.utils.set_random_seed(7)
    m = keras.Sequential([keras.Input((WIDE,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1, activation="sigmoid")])
    m.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", jit_compile=False,
              metrics=["accuracy", keras.metrics.Precision(name="precision"), keras.metrics.Recall(name="recall")])
    return m


def normalized():
    keras.utils.set_random_seed(8)
    m = keras.Sequential([keras.Input((WIDE,)), keras.layers.Dense(16), keras.layers.BatchNormalization(), keras.layers.Activation("relu"),
                          keras.layers.Dense(CLASSES, activation="softmax", kernel_regularizer=keras.regularizers.L2(1e-3))])
    m.compile(keras.optimizers.SGD(0.05), "sparse_categorical_crossentropy",
              metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")], jit_compile=False)
    return m


def two_headed():
    keras.utils.set_random_seed(10)
    x = keras.Input((WIDE,))
    h = keras.layers.Dense(8, activation="tanh")(x)
    m = keras.Model(x, [keras.layers.Dense(CLASSES, activation="softmax", name="kind", kernel_regularizer=keras.regularizers.L2(1e-2))(h),
                        keras.layers.Dense(1, name="place")(h)])
    m.compile(keras.optimizers.SGD(0.05), ["sparse_categorical_crossentropy", "mse"], loss_weights=[0.3, 2.0], metrics=[["accuracy"], ["mae"]],
              jit_compile=False)
    return m


def scheduled():
    m = classifier()
    rate = keras.optimizers.schedules.CosineDecay(0.1, 30, warmup_target=0.2, warmup_steps=5)
    m.compile(keras.optimizers.SGD(rate), "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    return m


def accumulating(averaged, every=None):
    """Three steps an update: four steps an epoch, so that groups begin and end within epochs and across them."""
    keras.utils.set_random_seed(9)
    l2 = keras.regularizers.L2(0.02)
    m = keras.Sequential([keras.Input((WIDE,)), keras.layers.Dense(16, activation="tanh", kernel_regularizer=l2),
                          keras.layers.Dense(CLASSES, activation="softmax", kernel_regularizer=l2)])
    more = dict(use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=every) if averaged else {}
    m.compile(keras.optimizers.Adam(0.05, gradient_accumulation_steps=3, **more), "sparse_categorical_crossentropy", metrics=["accuracy"],
              jit_compile=False)
    return m


C = keras.callbacks
HARD = {0: 3.0, 2: 0.25}
# name: model, data, options of fit, options of memfit train, epochs
CASES = {
    "epochs, partial batch": (classifier, dict(y=LABELS), {}, [], 4),
    "validation split": (classifier, dict(y=LABELS), dict(validation_split=0.23), ["--validation-split", "0.23"], 3),
    "validation data, other batch": (normalized, dict(y=LABELS), dict(held_out=True, validation_batch_size=24),
                                     ["--validation-data", "HELD", "--validation-batch-size", "24"], 3),
    "class weights": (classifier, dict(y=LABELS), dict(class_weight=HARD), ["--class-weight", "CLASSES"], 3),
    "class weights, validation": (classifier, dict(y=LABELS), dict(class_weight=HARD, validation_split=0.2),
                                  ["--class-weight", "CLASSES", "--validation-split", "0.2"], 3),
    "class weights, one-hot labels": (lambda: classifier(loss="categorical_crossentropy"), dict(y=np.eye(CLASSES, dtype="float32")[LABELS]),
                                      dict(class_weight=HARD), ["--class-weight", "CLASSES"], 3),
    "sample weights": (classifier, dict(y=LABELS, sample_weight=WEIGHTS), {}, [], 3),
    "sample weights, validation split": (regression, dict(y=TARGET, sample_weight=WEIGHTS), dict(validation_split=0.2),
                                         ["--validation-split", "0.2"], 3),
    "weighted metrics": (lambda: classifier(metrics=["accuracy"], weighted_metrics=["sparse_categorical_accuracy"]),
                         dict(y=LABELS, sample_weight=WEIGHTS), {}, [], 3),
    "metrics of one name": (lambda: classifier(metrics=["accuracy"], weighted_metrics=["accuracy"]), dict(y=LABELS, sample_weight=WEIGHTS), {}, [], 3),
    "regression, mae and mse": (regression, dict(y=TARGET), dict(validation_split=0.2), ["--validation-split", "0.2"], 3),
    "precision and recall": (detector, dict(y=BINARY), dict(validation_split=0.2), ["--validation-split", "0.2"], 4),
    "normalization, top-k, L2": (normalized, dict(y=LABELS), dict(validation_split=0.2), ["--validation-split", "0.2"], 3),
    "losses of two outputs": (two_headed, dict(kind=LABELS, place=TARGET), dict(validation_split=0.2), ["--validation-split", "0.2"], 3),
    "losses of two outputs, sample weights": (two_headed, dict(kind=LABELS, place=TARGET, sample_weight=WEIGHTS), {}, [], 3),
    "gradient accumulation, L2": (lambda: accumulating(False), dict(y=LABELS), {}, [], 5),
    "gradient accumulation, L2, averages": (lambda: accumulating(True), dict(y=LABELS), {}, [], 5),
    "gradient accumulation, averages that overwrite": (lambda: accumulating(True, 2), dict(y=LABELS), {}, [], 5),
    "schedule": (scheduled, dict(y=LABELS), {}, [], 5),
    "early stopping": (lambda: regression(0.3), dict(y=TARGET), dict(validation_split=0.3, callbacks=lambda: [C.EarlyStopping(patience=2)]),
                       ["--validation-split", "0.3", "--early-stopping", "2"], 30),
    "early stopping, best weights": (lambda: regression(0.3), dict(y=TARGET), dict(validation_split=0.3, callbacks=lambda: [
        C.EarlyStopping(patience=3, restore_best_weights=True)]), ["--validation-split", "0.3", "--early-stopping", "3", "--keep-best"], 30),
    "best weights, to the end": (lambda: regression(0.3), dict(y=TARGET), dict(validation_split=0.3, callbacks=lambda: [
        C.ModelCheckpoint("best.keras", save_best_only=True)]), ["--validation-split", "0.3", "--keep-best"], 8),
    "reduce on plateau": (lambda: regression(0.3), dict(y=TARGET), dict(validation_split=0.3, callbacks=lambda: [C.ReduceLROnPlateau(patience=2)]),
                          ["--validation-split", "0.3", "--reduce-on-plateau", "2"], 12),
    "a plateau that falls slowly": (lambda: regression(0.001), dict(y=TARGET), dict(callbacks=lambda: [
        C.ReduceLROnPlateau(monitor="loss", patience=3)]), ["--reduce-on-plateau", "3"], 150),
}


def close(a, b):
    return abs(a - b) / max(abs(b), 1e-3)


def targets(data, count=N):
    """One array, or one for each output in turn."""
    all = [v[:count] for k, v in data.items() if k != "sample_weight"]
    return all if len(all) > 1 else all[0]


def sample_weights(data):
    """Keras wants them for each output."""
    w = data.get("sample_weight")
    return w if w is None or "y" in data else [w] * (len(data) - 1)


def norm(weights):
    return float(np.sqrt(sum((np.asarray(w, "f8") ** 2).sum() for w in weights)))


def keras_fit(model, data, options, epochs, folder):
    options = dict(options)
    callbacks = options.pop("callbacks", list)()
    for c in callbacks:
        if isinstance(c, C.ModelCheckpoint):
            c.filepath = os.path.join(folder, "best.keras")
    if options.pop("held_out", False):
        options["validation_data"] = (X[:40] * 1.1, targets(data, 40))
    rates = C.LambdaCallback(on_epoch_end=lambda e, logs: logs.update(rate=float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))))
    history = model.fit(X, targets(data), sample_weight=sample_weights(data), batch_size=32, epochs=epochs, shuffle=False, verbose=0,
                        callbacks=[rates] + callbacks, **options).history
    best = os.path.join(folder, "best.keras")
    return history, keras.models.load_model(best) if os.path.exists(best) else model


def memfit(*command):
    r = subprocess.run(command, capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(f"exit status {r.returncode}: {r.stderr.strip()}")
    return r.stdout


def compare(program, name):
    with tempfile.TemporaryDirectory() as folder:
        def path(x):
            return os.path.join(folder, x)
        model, data, options, more, epochs = prepare(name, folder)
        start = model.get_weights()
        more = [{"HELD": path("held.npz"), "CLASSES": path("classes.json")}.get(m, m) for m in more]
        history, model = keras_fit(model, data, options, epochs, folder)
        memfit(program, "train", path("model.keras"), "--data", path("data.npz"), "--batch-size", "32", "--epochs", str(epochs), "--no-shuffle",
               "--quiet", "--log-csv", path("log.csv"), "--out", path("out.keras"), *more)
        with open(path("log.csv"), newline="") as f:
            rows = list(csv.DictReader(f))
        wrong, worst, at = [], 0.0, ""
        if len(rows) != len(history["loss"]):
            wrong.append(f"{len(rows)} epochs, Keras {len(history['loss'])}")
        for key, values in history.items():
            column = {"rate": "learning_rate"}.get(key, key)
            if key == "rate" and (column not in rows[0] or "schedule" in name):
                continue  # a schedule's rate is logged by memfit as it is for the next step
            if column not in rows[0]:
                if not key.startswith("learning_rate"):
                    wrong.append(f"{key} is not logged")
                continue
            for e, (row, value) in enumerate(zip(rows, values)):
                d = close(float(row[column]), value)
                if d > worst:
                    worst, at = d, f"{key} of epoch {e}: {float(row[column]):.6g}, Keras {value:.6g}"
        if worst > 1e-4:
            wrong.append(at)
        mine = keras.models.load_model(path("out.keras"))
        moved = norm([a - b for a, b in zip(model.get_weights(), start)])
        far = norm([a - b for a, b in zip(mine.get_weights(), model.get_weights())]) / moved
        if far > 1e-3:
            wrong.append("other weights")
        # What evaluate and predict make of the same weights.
        e = json.loads(memfit(program, "evaluate", path("out.keras"), "--data", path("all.npz"), "--batch-size", "50", "--json"))
        k = mine.evaluate(X, targets(data), batch_size=50, verbose=0, return_dict=True)
        if close(e["loss"], k["loss"]) > 1e-4:
            wrong.append(f"evaluate: {e['loss']:.6g}, Keras {k['loss']:.6g}")
        for key, value in k.items():
            if key in e["metrics"] and close(e["metrics"][key], value) > 1e-4:
                wrong.append(f"evaluate: {key} {e['metrics'][key]:.6g}, Keras {value:.6g}")
        memfit(program, "predict", path("out.keras"), "--data", path("all.npz"), "--batch-size", "50", "--out", path("p.npy"), "--quiet")
        theirs = mine.predict(X, verbose=0)
        theirs = theirs[0] if isinstance(theirs, list) else theirs
        p = norm([np.load(path("p.npy")) - theirs]) / norm([theirs])
        if p > 1e-5:
            wrong.append("other predictions")
        print(f"| {name} | {len(rows)} | {worst:.1e} | {far:.1e} | {p:.1e} | {'; '.join(wrong) or 'the same'} |", flush=True)
        return bool(wrong)


def prepare(name, folder):
    """Writes a case's files into the folder; its model, data, options of memfit and Keras's options."""
    make, data, options, more, epochs = CASES[name]
    model = make()
    model.save(os.path.join(folder, "model.keras"))
    np.savez(os.path.join(folder, "data.npz"), x=X, **data)
    for file, x, count in (("held.npz", X[:40] * 1.1, 40), ("all.npz", X, N)):
        np.savez(os.path.join(folder, file), x=x, **{k: v[:count] for k, v in data.items() if k != "sample_weight"})
    with open(os.path.join(folder, "classes.json"), "w") as f:
        json.dump({str(k): v for k, v in HARD.items()}, f)
    return model, data, options, more, epochs


def weights_digest(model):
    """Names files by what is in them, so that cases share theirs: archives hold the time they were made at."""
    said = json.dumps(model.get_compile_config(), sort_keys=True, default=str)
    h = hashlib.sha256(re.sub(r' at 0x[0-9a-f]+|"(name|shared_object_id)": ("[^"]*"|[0-9]+)', "", said).encode())
    for w in model.get_weights():
        h.update(np.asarray(w).tobytes())
    return h.hexdigest()[:8]


def fixtures(out):
    os.makedirs(out, exist_ok=True)
    cases = []
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            model, data, options, more, epochs = prepare(name, folder)

            def keep(file, key):
                kept = f"{os.path.splitext(file)[0]}_{key}{os.path.splitext(file)[1]}"
                if not os.path.exists(os.path.join(out, kept)):
                    with open(os.path.join(folder, file), "rb") as f, open(os.path.join(out, kept), "wb") as g:
                        g.write(f.read())
                return kept
            key = hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in data.values())).hexdigest()[:8]
            case = {"name": name, "model": keep("model.keras", weights_digest(model)), "data": keep("data.npz", key), "epochs": epochs,
                    "options": ["HELD:" + keep("held.npz", key) if m == "HELD" else m for m in more], "classes": {str(k): v for k, v in HARD.items()}}
            history, model = keras_fit(model, data, options, epochs, folder)
            case["history"] = {k: [float(f"{v:.8g}") for v in values] for k, values in history.items() if not k.startswith(("rate", "learning"))}
            case["after"] = float(model.evaluate(X, targets(data), sample_weight=sample_weights(data), batch_size=32, verbose=0, return_dict=True)["loss"])
            cases.append(case)
    with open(os.path.join(out, "cases.json"), "w") as f:
        json.dump(cases, f, indent=1)
        f.write("\n")


def main():
    if sys.argv[1:2] == ["--fixtures"]:
        return fixtures(sys.argv[2])
    program, names = sys.argv[1], sys.argv[2:] or list(CASES)
    print("| case | epochs | numbers of an epoch | weights | predictions | |\n|---|---|---|---|---|---|", flush=True)
    return sum(compare(program, n) for n in names)


sys.exit(main())
