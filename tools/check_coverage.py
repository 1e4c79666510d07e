#!/usr/bin/env python3
"""Which layers, activations, losses, optimizers and metrics the numerics fixtures (tests/fixtures/ops) hold against Keras,
and which of those memfit promises they lack: python3 tools/check_coverage.py. Exit status: how many are lacking.

Not in the lists because Keras 3.15 itself is no yardstick there: sparsemax (outputs do not sum to 1), glu (fails in a
model), RandomCrop (does not crop outside training)."""
import io
import json
import os
import sys
import zipfile

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "fixtures", "ops")
LAYERS = """InputLayer Dense Conv1D Conv2D Conv3D DepthwiseConv1D DepthwiseConv2D SeparableConv1D SeparableConv2D
Conv1DTranspose Conv2DTranspose Conv3DTranspose MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D AveragePooling2D
AveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GlobalAveragePooling1D GlobalAveragePooling2D
GlobalAveragePooling3D BatchNormalization LayerNormalization GroupNormalization UnitNormalization Normalization Rescaling
RMSNormalization Activation ReLU LeakyReLU PReLU ELU Softmax Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D
AlphaDropout GaussianNoise GaussianDropout Flatten Reshape Permute RepeatVector ZeroPadding1D ZeroPadding2D ZeroPadding3D
Cropping1D Cropping2D Cropping3D UpSampling1D UpSampling2D UpSampling3D Concatenate Add Subtract Multiply Average Maximum
Minimum Dot Embedding SimpleRNN LSTM GRU Bidirectional TimeDistributed MultiHeadAttention Attention
AdditiveAttention EinsumDense Resizing CenterCrop RandomFlip RandomRotation RandomZoom RandomTranslation RandomContrast
RandomBrightness LayerScale CustomScaleLayer StochasticDepth Sequential Functional Identity Masking""".split()
ACTIVATIONS = """relu relu6 leaky_relu elu selu celu gelu silu softplus softsign sigmoid hard_sigmoid hard_silu tanh hard_tanh
tanh_shrink soft_shrink hard_shrink squareplus sparse_plus sparse_sigmoid exponential linear mish
log_sigmoid log_softmax softmax""".split()
LOSSES = """MeanSquaredError MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredLogarithmicError Huber LogCosh Poisson
KLDivergence Hinge SquaredHinge CategoricalHinge BinaryCrossentropy CategoricalCrossentropy SparseCategoricalCrossentropy
BinaryFocalCrossentropy CategoricalFocalCrossentropy CosineSimilarity""".split()
OPTIMIZERS = "SGD RMSprop Adam AdamW Nadam Adamax Adagrad Adadelta Adafactor Lion Ftrl Lamb".split()
METRICS = """accuracy BinaryAccuracy CategoricalAccuracy SparseCategoricalAccuracy TopKCategoricalAccuracy
SparseTopKCategoricalAccuracy Precision Recall MeanAbsoluteError MeanSquaredError RootMeanSquaredError AUC""".split()
SHORT = {"mse": "MeanSquaredError", "mae": "MeanAbsoluteError", "categorical_accuracy": "CategoricalAccuracy",
         "mape": "MeanAbsolutePercentageError",
         "msle": "MeanSquaredLogarithmicError", "kl_divergence": "KLDivergence", "binary_accuracy": "BinaryAccuracy", "sparse_categorical_accuracy": "SparseCategoricalAccuracy"}


def names(value, found):
    """Every class name and every activation below a value."""
    if isinstance(value, dict):
        if "class_name" in value:
            c = value["class_name"]
            found.add(value.get("config") if c == "function" and isinstance(value.get("config"), str) else c.split(">")[-1])
        for key, v in value.items():
            if key.endswith("activation") and isinstance(v, str):
                found.add(v)
            names(v, found)
    elif isinstance(value, list):
        for v in value:
            names(v, found)
    elif isinstance(value, str):
        found.add(SHORT.get(value, value))


def snake(name):
    return "".join(("_" if i and c.isupper() and not name[i - 1].isupper() else "") + c.lower() for i, c in enumerate(name))


def main():
    model, loss, optimizer, metric = set(), set(), set(), set()
    for archive in sorted(name for name in os.listdir(HERE) if name.endswith(".zip")):
        with zipfile.ZipFile(os.path.join(HERE, archive)) as z:
            for member in z.namelist():
                if not member.endswith("model.keras"):
                    continue
                config = json.loads(zipfile.ZipFile(io.BytesIO(z.read(member))).read("config.json"))
                names(config["config"], model)
                model.add(config["class_name"])
                c = config.get("compile_config") or {}
                names(c.get("loss"), loss)
                names(c.get("optimizer"), optimizer)
                names(c.get("metrics"), metric)
    lacking = 0
    for what, wanted, found in (("layers", LAYERS, model), ("activations", ACTIVATIONS, model), ("losses", LOSSES, loss),
                                ("optimizers", OPTIMIZERS, optimizer), ("metrics", METRICS, metric)):
        plain = {snake(f) for f in found if isinstance(f, str)}
        missing = [w for w in wanted if snake(w) not in plain]
        lacking += len(missing)
        print(f"{what}: {len(wanted) - len(missing)} of {len(wanted)}" + (f"; lacking: {' '.join(missing)}" if missing else ""))
    return lacking


sys.exit(main())
