#!/usr/bin/env python3
"""Whole trainings through the command line against Keras:

    python tools/compare_training.py build/memfit [--steps 20] [--batch 8] [--rate X] [MODEL ...]

Each model is saved once by Keras. Keras trains it with TensorFlow's oneDNN kernels, Keras trains it without them, and
`memfit train --no-shuffle` trains it: the same file, the same data, the same order, dropout off. The yardstick is how
far the two Kerases end from each other: memfit should end no further from Keras than twice that. Printed per model:

    moved    |w_end - w_start| / |w_start|, all weights together: the scale to read the distances by
    itself   |w_keras_on - w_keras_off| / |w_keras|
    memfit   |w_memfit - w_keras| / |w_keras|, with its oneDNN on / off
    loss     mean over the steps as fit() shows it: Keras on, Keras off, memfit

Run with a Python that has Keras and TensorFlow; each Keras run is a process of its own, as the switch is read at start.
Exit status: the number of models outside.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

CLASSES = 10
# name: (input size, learning rate of SGD). Rates are such that the weights move well, and yet two Kerases stay near
# enough to each other for a distance to mean something: at 0.01 normalized networks fresh from the initializer part
# ways within a few steps whoever trains them.
FAMILIES = {
    "VGG16": (32, 0.1),
    "ResNet50": (64, 1e-3),
    "MobileNetV2": (64, 1e-3),
    "DenseNet121": (64, 1e-3),
    "EfficientNetB0": (64, 1e-3),
    "InceptionV3": (75, 1e-3),
    "Xception": (71, 1e-3),
    "ConvNeXtTiny": (64, 1e-2),
    "NASNetMobile": (64, 1e-3),
}
SMALL = ("residual", "recurrent", "attention")
DEFAULT = ["VGG16", "ResNet50", "MobileNetV2", "DenseNet121", "EfficientNetB0", "InceptionV3", "ConvNeXtTiny"] + list(SMALL)


def keras_module():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import keras
    return keras


def small_model(keras, name):
    L = keras.layers
    if name == "recurrent":
        return keras.Sequential([keras.Input((12, 8)), L.LSTM(16, return_sequences=True), L.LayerNormalization(),
                                 L.Bidirectional(L.GRU(16)), L.Dense(CLASSES, activation="softmax")])
    if name == "attention":
        i = keras.Input((10, 16))
        x = L.LayerNormalization()(L.Add()([i, L.MultiHeadAttention(2, 8)(i, i)]))
        x = L.GlobalAveragePooling1D()(L.Dense(16, activation="gelu")(x))
        return keras.Model(i, L.Dense(CLASSES, activation="softmax")(x))
    i = keras.Input((32, 32, 3))
    x = L.Conv2D(16, 3, padding="same")(i)
    for _ in range(2):
        y = L.Activation("relu")(L.BatchNormalization()(x))
        x = L.Add()([x, L.Conv2D(16, 1)(L.DepthwiseConv2D(3, padding="same")(y))])
    x = L.Concatenate()([L.MaxPooling2D()(x), L.AveragePooling2D(2)(x)])
    return keras.Model(i, L.Dense(CLASSES, activation="softmax")(L.GlobalAveragePooling2D()(x)))


def make(a, name, folder):
    """Saves the model and the data."""
    import numpy as np
    keras = keras_module()
    keras.utils.set_random_seed(7)
    rate = a.rate
    if name in SMALL:
        model, rate = small_model(keras, name), rate or 0.05
    else:
        size, own_rate = FAMILIES[name]
        model = getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=CLASSES)
        rate = rate or own_rate
    for layer in model._flatten_layers():
        for key in ("rate", "drop_path_rate"):
            if "drop" in type(layer).__name__.lower() + key and hasattr(layer, key):
                setattr(layer, key, 0.0)
    momentum = 0.9 if name in SMALL else 0.0
    model.compile(keras.optimizers.SGD(rate, momentum=momentum), "sparse_categorical_crossentropy", jit_compile=False)
    model.save(os.path.join(folder, "model.keras"))
    rng = np.random.default_rng(7)
    count, shape = a.steps * a.batch, model.input_shape[1:]
    if len(shape) == 3:
        # Coarse patches: images that all look alike make normalization divide by almost nothing. Some noise: without,
        # cells of a pooling window tie, and rounding decides where the gradient goes.
        cell = (shape[0] + 3) // 4
        x = rng.uniform(0, 1, (count, 4, 4, 3)) * rng.uniform(0.2, 1, (count, 1, 1, 3))
        x = x.repeat(cell, 1).repeat(cell, 2)[:, :shape[0], :shape[1]]
        x = x + 0.1 * rng.normal(size=x.shape)
    else:
        x = rng.normal(size=(count,) + shape)
    scale = 255 if name.startswith(("EfficientNet", "ConvNeXt")) else 1  # these have a Rescaling of their own
    np.savez(os.path.join(folder, "data.npz"), x=(x * scale).astype("float32"), y=rng.integers(0, CLASSES, count).astype("int32"))


def run_keras(a, folder, out):
    import numpy as np
    keras = keras_module()
    model = keras.models.load_model(os.path.join(folder, "model.keras"))
    data = np.load(os.path.join(folder, "data.npz"))
    history = model.fit(data["x"], data["y"], batch_size=a.batch, epochs=1, shuffle=False, verbose=0)
    np.savez(out, loss=history.history["loss"][0], **{f"w{i}": w for i, w in enumerate(model.get_weights())})


def dump(path, out):
    import numpy as np
    keras = keras_module()
    model = keras.models.load_model(path)
    np.savez(out, **{f"w{i}": w for i, w in enumerate(model.get_weights())})


def distance(a, b, base=None):
    import numpy as np
    base = base or b
    keys = [k for k in b.files if k != "loss"]
    if keys != [k for k in a.files if k != "loss"]:
        sys.exit("the files hold other weights")
    error = sum(float(((a[k].astype("f8") - b[k]) ** 2).sum()) for k in keys)
    return np.sqrt(error / sum(float((base[k].astype("f8") ** 2).sum()) for k in keys))


def compare(a, name):
    import numpy as np
    with tempfile.TemporaryDirectory() as folder:
        def part(what, out="", **env):
            out = os.path.join(folder, out)
            subprocess.run([sys.executable, __file__, a.program, name, "--part", what, "--folder", folder, "--out", out,
                            "--steps", str(a.steps), "--batch", str(a.batch)] + (["--rate", str(a.rate)] if a.rate else []),
                           env=dict(os.environ, **env), check=True, stderr=subprocess.DEVNULL if not a.verbose else None)
            return np.load(out) if what != "make" else None
        part("make")
        command = [a.program, "train", f"{folder}/model.keras", "--data", f"{folder}/data.npz", "--batch-size", str(a.batch),
                   "--no-shuffle", "--epochs", "1", "--out", f"{folder}/trained.keras", "--json", "--quiet"] + a.more.split()
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            print(f"| {name} | memfit: exit {run.returncode}: {run.stderr.strip()} |", flush=True)
            return True
        loss = json.loads(run.stdout)["loss"]
        on = part("keras", "on.npz", TF_ENABLE_ONEDNN_OPTS="1")
        off = part("keras", "off.npz", TF_ENABLE_ONEDNN_OPTS="0")
        mine, start = part("dump-trained", "mine.npz"), part("dump-model", "start.npz")
        itself, d_on, d_off = distance(off, on), distance(mine, on), distance(mine, off)
        good = d_on <= 2 * itself
        print(f"| {name} | {distance(on, start, start):.1e} | {itself:.2e} | {d_on:.2e} / {d_off:.2e} | {d_on / itself:.2f} "
              f"| {float(on['loss']):.6f}, {float(off['loss']):.6f}, {loss:.6f} | {'within' if good else 'OUTSIDE'} |", flush=True)
        return not good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model", nargs="*", default=DEFAULT)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--more", default="", help="more options for memfit train, as one word")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    a = parser.parse_intermixed_args()
    if a.part == "make":
        return make(a, a.model[0], a.folder)
    if a.part == "keras":
        return run_keras(a, a.folder, a.out)
    if a.part in ("dump-trained", "dump-model"):
        return dump(os.path.join(a.folder, a.part[5:] + ".keras"), a.out)
    print(f"| model, {a.steps} steps of {a.batch} | moved | Keras from itself | memfit from Keras on / off | ratio | loss: Keras on, off, memfit | |")
    print("|---|---|---|---|---|---|---|", flush=True)
    return sum(compare(a, name) for name in a.model)


sys.exit(main())
