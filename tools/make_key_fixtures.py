#!/usr/bin/env python3
"""Writes tests/fixtures/config_keys.json: what get_config() of real Keras says for every class memfit has a rule for, with
the values of a default instance: {"layers": {class: {key: value}}, "losses": ..., "optimizers": ..., "metrics": ...}.

The test test_config_keys.c holds src/model/lower/lower_keys.c against it: every key is obeyed, harmless, or refused when it is
not at its default. Usage: make_key_fixtures.py [FILE]
"""
import inspect
import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import keras  # noqa: E402
from keras import layers, losses, metrics, optimizers  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))

# Arguments without a default, by class or by name.
WANTED = {"pool_size": 2, "units": 3, "filters": 4, "kernel_size": 3, "input_dim": 10, "output_dim": 4, "rate": 0.1, "stddev": 0.1,
          "target_shape": (2,), "dims": (2, 1), "n": 2, "activation": "relu", "axes": 1, "equation": "ab,bc->ac",
          "output_shape": (4,), "num_heads": 2, "key_dim": 3, "height": 8, "width": 8, "factor": 0.1, "scale": 2.0,
          "value_range": (0, 255), "height_factor": 0.1, "width_factor": 0.1}
SPECIAL = {
    "Bidirectional": lambda: layers.Bidirectional(layers.LSTM(3)),
    "TimeDistributed": lambda: layers.TimeDistributed(layers.Dense(3)),
    "RNN": lambda: layers.RNN(layers.LSTMCell(3)),
    "RandomShear": lambda: layers.RandomShear(0.1, 0.1),
    "RandomElasticTransform": lambda: layers.RandomElasticTransform(),
    "RandomPosterization": lambda: layers.RandomPosterization(4),
    "RandomGrayscale": lambda: layers.RandomGrayscale(),
    "RandomInvert": lambda: layers.RandomInvert(),
    "InputLayer": lambda: layers.InputLayer(shape=(4,)),
    "AugMix": lambda: layers.AugMix(),
    "RandAugment": lambda: layers.RandAugment(),
}


def make(module, name):
    if name in SPECIAL and module is layers:
        return SPECIAL[name]()
    cls = getattr(module, name)
    arguments = {}
    for p in inspect.signature(cls.__init__).parameters.values():
        if p.name in ("self", "kwargs", "args") or p.default is not inspect.Parameter.empty:
            continue
        arguments[p.name] = WANTED[p.name]
    return cls(**arguments)


def plain(value):
    """What is left of a value after JSON; objects by their class name."""
    if isinstance(value, dict) and "class_name" in value:
        return {"class_name": value["class_name"]}
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        serialized = keras.saving.serialize_keras_object(value)
        return plain(serialized) if serialized is not value else str(value)


def section(module, names):
    found = {}
    for name in names:
        if not hasattr(module, name):
            continue
        config = make(module, name).get_config()
        found[name] = {key: None if key == "seed" else plain(value) for key, value in sorted(config.items())}
    return found


def layer_names():
    """The classes of the table in lower_table.c that have a rule."""
    with open(os.path.join(HERE, "..", "src", "model", "lower_table.c")) as f:
        rows = [line.split(",") for line in f if line.startswith('    {"')]
    return [row[0].split('"')[1] for row in rows if row[1].strip() != "NULL"]


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "..", "tests", "fixtures", "config_keys.json")
    everything = {
        "keras": keras.__version__,
        "layers": section(layers, layer_names()),
        "losses": section(losses, ["MeanSquaredError", "MeanAbsoluteError", "MeanAbsolutePercentageError",
                                   "MeanSquaredLogarithmicError", "Huber", "LogCosh", "Poisson", "KLDivergence", "Hinge",
                                   "SquaredHinge", "CategoricalHinge", "BinaryCrossentropy", "CategoricalCrossentropy",
                                   "SparseCategoricalCrossentropy", "BinaryFocalCrossentropy",
                                   "CategoricalFocalCrossentropy", "CosineSimilarity"]),
        "optimizers": section(optimizers, ["SGD", "RMSprop", "Adam", "AdamW", "Nadam", "Adamax", "Adagrad", "Adadelta",
                                           "Adafactor", "Lion", "Ftrl", "Lamb"]),
        "metrics": section(metrics, ["BinaryAccuracy", "CategoricalAccuracy", "SparseCategoricalAccuracy",
                                     "TopKCategoricalAccuracy", "SparseTopKCategoricalAccuracy", "Precision", "Recall",
                                     "MeanAbsoluteError", "MeanSquaredError", "RootMeanSquaredError", "AUC"]),
    }
    with open(path, "w") as f:
        json.dump(everything, f, indent=0, sort_keys=True)
        f.write("\n")
    for part in ("layers", "losses", "optimizers", "metrics"):
        print(part, len(everything[part]), "classes,", sum(len(v) for v in everything[part].values()), "keys")


if __name__ == "__main__":
    main()
