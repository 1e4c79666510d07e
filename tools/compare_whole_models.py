#!/usr/bin/env python3
"""Whole models against Keras: families of keras.applications at a small input size, SGD, dropout off, some steps on the
same data from the same weights. Printed per model: the distance of Keras with TensorFlow's oneDNN kernels from Keras
without them, and memfit's distance from Keras, all norm-wise over all weights. memfit should be no further from Keras
than twice Keras's distance from itself.

    python tools/compare_whole_models.py build/tests/whole_model [--backend onednn|reference] [--steps 20]
           [--rate 0.01] [FAMILY ...]

Run with a Python that has keras and tensorflow; each Keras run is a process of its own, as the switch is read at start.
"""
import argparse
import os
import struct
import subprocess
import sys
import tempfile

BATCH = 8
FAMILIES = {
    # name: (size, more arguments); random layers are switched off below
    "VGG16": (32, {}),
    "ResNet50": (64, {}),
    "MobileNetV2": (64, {}),
    "DenseNet121": (64, {}),
    "EfficientNetB0": (64, {}),
    "Xception": (71, {}),
    "ConvNeXtTiny": (64, {}),
    "NASNetMobile": (64, {}),
}
DEFAULT = ["VGG16", "ResNet50", "MobileNetV2", "DenseNet121", "EfficientNetB0"]


def read_arrays(path):
    import numpy as np
    data, at, arrays = open(path, "rb").read(), 0, {}
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        name = data[at + 4:at + 4 + length].decode()
        at += 4 + length
        kind, rank = struct.unpack_from("<II", data, at)
        shape = struct.unpack_from(f"<{rank}I", data, at + 8)
        at += 8 + 4 * rank
        count = int(np.prod(shape)) if rank else 1
        arrays[name] = np.frombuffer(data, "<i4" if kind else "<f4", count, at).reshape(shape)
        at += 4 * count
    return arrays


def write_arrays(path, arrays):
    with open(path, "wb") as out:
        for name, value in arrays.items():
            integer = value.dtype.kind in "iu"
            value = value.astype("<i4" if integer else "<f4")
            out.write(struct.pack("<I", len(name)) + name.encode())
            out.write(struct.pack("<II", int(integer), value.ndim) + struct.pack(f"<{value.ndim}I", *value.shape))
            out.write(value.tobytes())


def keras_module():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import keras
    return keras


def make(family, folder, steps, rate):
    """Saves the model, with weights that are all different, and the data."""
    import numpy as np
    keras = keras_module()
    keras.utils.set_random_seed(7)
    size, arguments = FAMILIES[family]
    model = getattr(keras.applications, family)(weights=None, input_shape=(size, size, 3), classes=10, **arguments)
    for layer in model._flatten_layers():
        if "dropout" in type(layer).__name__.lower() or "StochasticDepth" in type(layer).__name__:
            for name in ("rate", "drop_path_rate"):
                if hasattr(layer, name):
                    setattr(layer, name, 0.0)
    rng = np.random.default_rng(7)
    for v in model.weights:  # zeros and ones get a little noise: the comparison finds variables by their values
        if str(v.dtype).startswith("float"):
            value = v.numpy()
            if value.size and np.ptp(value) == 0:
                v.assign(value + rng.uniform(0.001, 0.02, value.shape).astype("float32"))
    model.compile(keras.optimizers.SGD(rate), "sparse_categorical_crossentropy", jit_compile=False)
    model.save(os.path.join(folder, "model.keras"))
    # Coarse patches, not noise: images that all look alike make normalization divide by almost nothing, and then any
    # two programs part ways within a step.
    coarse = rng.uniform(0, 1, (steps * BATCH, 4, 4, 3)) * rng.uniform(0.2, 1, (steps * BATCH, 1, 1, 3))
    x = coarse.repeat((size + 3) // 4, 1).repeat((size + 3) // 4, 2)[:, :size, :size].astype("float32")
    write_arrays(os.path.join(folder, "data.bin"), {"x0": x, "y0": rng.integers(0, 10, (steps * BATCH, 1)).astype("int32")})


def run_keras(folder, out, steps):
    import numpy as np
    keras = keras_module()
    model = keras.models.load_model(os.path.join(folder, "model.keras"))
    data = read_arrays(os.path.join(folder, "data.bin"))
    before = [(v, v.numpy().reshape(-1)[:4]) for v in model.weights if str(v.dtype).startswith("float")]
    losses = []
    for s in range(steps):
        rows = slice(s * BATCH, (s + 1) * BATCH)
        model.reset_metrics()
        losses.append(float(model.train_on_batch(data["x0"][rows], data["y0"][rows])))
    arrays = {"loss": np.array(losses, "float32")}
    for i, (v, key) in enumerate(before):
        arrays[f"key{i}"] = key
        arrays[f"var{i}"] = v.numpy().reshape(-1)
    write_arrays(out, arrays)


def weights_of(path):
    arrays = read_arrays(path)
    return {arrays["key" + name[3:]].tobytes(): value for name, value in arrays.items() if name.startswith("var")}, \
        arrays["loss"]


def distance(a, b):
    import numpy as np
    missing = [k for k in b if k not in a]
    if missing:
        sys.exit(f"{len(missing)} of {len(b)} variables were not found")
    error = sum(float(((a[k].astype("f8") - b[k]) ** 2).sum()) for k in b)
    norm = sum(float((b[k].astype("f8") ** 2).sum()) for k in b)
    return np.sqrt(error / norm)


def moved(folder, b):
    """How far training moved the weights: the scale to read the distances by."""
    keras = keras_module()
    import numpy as np
    model = keras.models.load_model(os.path.join(folder, "model.keras"))
    start = {v.numpy().reshape(-1)[:4].tobytes(): v.numpy().reshape(-1) for v in model.weights
             if str(v.dtype).startswith("float")}
    error = sum(float(((start[k].astype("f8") - b[k]) ** 2).sum()) for k in b)
    return np.sqrt(error / sum(float((b[k].astype("f8") ** 2).sum()) for k in b))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("family", nargs="*", default=DEFAULT)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--part", choices=("make", "keras"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    a = parser.parse_intermixed_args()
    if a.part == "make":
        return make(a.family[0], a.folder, a.steps, a.rate)
    if a.part == "keras":
        return run_keras(a.folder, a.out, a.steps)
    print("| model | steps | loss first, last | moved by | Keras from itself | memfit from Keras (oneDNN on) | (off) | |")
    print("|---|---|---|---|---|---|---|---|")
    failed = 0
    for family in a.family:
        with tempfile.TemporaryDirectory() as folder:
            def part(name, **env):
                out = os.path.join(folder, "".join(env.values()) + ".bin")
                subprocess.run([sys.executable, __file__, a.program, family, "--part", name, "--folder", folder, "--out",
                                out, "--steps", str(a.steps), "--rate", str(a.rate)], env=dict(os.environ, **env), check=True,
                               stderr=subprocess.DEVNULL)
                return out
            part("make")
            on = part("keras", TF_ENABLE_ONEDNN_OPTS="1")
            off = part("keras", TF_ENABLE_ONEDNN_OPTS="0")
            mine = os.path.join(folder, "memfit.bin")
            run = subprocess.run([a.program, os.path.join(folder, "model.keras"), os.path.join(folder, "data.bin"), mine,
                                  a.backend, str(a.steps), str(a.rate)])
            if run.returncode:
                print(f"| {family} | memfit failed |")
                failed += 1
                continue
            (w_on, loss), (w_off, _), (w, mine_loss) = weights_of(on), weights_of(off), weights_of(mine)
            itself, d_on, d_off = distance(w_off, w_on), distance(w, w_on), distance(w, w_off)
            good = min(d_on, d_off) <= 2 * itself
            failed += not good
            print(f"| {family} | {a.steps} | {loss[0]:.4f}, {loss[-1]:.4f} (memfit {mine_loss[-1]:.4f}) "
                  f"| {moved(folder, w_on):.1e} | {itself:.2e} | {d_on:.2e} | {d_off:.2e} | "
                  f"{'within' if good else 'NOT within'} twice |", flush=True)
    return failed


sys.exit(main())
