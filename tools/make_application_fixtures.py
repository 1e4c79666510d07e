#!/usr/bin/env python3
"""Writes tests/fixtures/applications/NAME.gz for every keras.applications model, from a real Keras.

Each file has two lines of JSON: what Keras says about the model (parameters, trainable parameters, output shape of every
layer), and the model as model.to_json() writes it. Models whose input size is open (MobileNetV3) are written open; what
is said about them is said of a build at 224 x 224, named in "input_shape". Usage: make_application_fixtures.py [NAME ...]
"""
import gzip
import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import keras  # noqa: E402

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "fixtures", "applications")


def shapes(value):
    """The first shape of a layer's output, with None for the batch."""
    while isinstance(value, (list, tuple)) and value and isinstance(value[0], (list, tuple)):
        value = value[0]
    return list(value)


def layers(model, prefix=""):
    """Every layer, nested models included, as [path, class, shape, parameters]."""
    for layer in model.layers:
        path = prefix + layer.name
        nested = isinstance(layer, keras.Model)
        try:
            shape = shapes(tuple(layer.output.shape))
        except Exception:
            shape = None
        yield [path, type(layer).__name__, shape, 0 if nested else layer.count_params()]
        if nested:
            yield from layers(layer, path + "/")


def write(name, model, built, folder=FOLDER):
    trainable = sum(int(v.numpy().size) for v in model.trainable_variables)
    expected = {"name": name, "keras": keras.__version__, "parameters": model.count_params(), "trainable": trainable,
                "layers": list(layers(built))}
    if built is not model:
        expected["input_shape"] = list(built.input_shape[1:])
    text = json.dumps(expected, separators=(",", ":")) + "\n" + json.dumps(json.loads(model.to_json()),
                                                                         separators=(",", ":")) + "\n"
    path = os.path.join(folder, name + ".gz")
    with open(path, "wb") as f:
        f.write(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{name}: {model.count_params():,} parameters, {len(text):,} bytes, {os.path.getsize(path):,} compressed",
          flush=True)


def main():
    names = sys.argv[1:] or sorted(n for n in dir(keras.applications)
                                   if n[0].isupper() and callable(getattr(keras.applications, n)))
    os.makedirs(FOLDER, exist_ok=True)
    for name in names:
        keras.backend.clear_session()
        make = getattr(keras.applications, name)
        model = built = make(weights=None)
        if None in model.input_shape[1:]:
            keras.backend.clear_session()
            built = make(weights=None, input_shape=(224, 224, 3))
        write(name, model, built)


if __name__ == "__main__":
    main()
