"""Models that no code was written with, drawn by a seed and saved by real Keras, for tools/check_limits.py --draw:

    draw_models(folder, seed, count)      writes what is missing; returns a list of (file, batch size)
    draw_models.py FOLDER COMMIT COUNT MEMFIT     for a card (gpu-check limits): without weights, the seed is the commit's hash, so that nobody chose;
                                                  beside each model a file .json with its batch (the drawn one, doubled until no plan of
                                                  it takes less than 128 MiB) and how many times the least a run is given

Each family has its turn, so that a few models already have all of them: dilated (1-D to 3-D), transposed, recurrent, attention, frozen
parts, depthwise, chains of up to a thousand layers, several inputs and outputs, masks, 16-bit policies. Everything else (widths, depths,
kernels, strides, options, optimizer, loss, metrics, batch) is drawn. They are small, so that hundreds of runs end within the hour.
"""
import json
import os
import subprocess
import sys
import zipfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")


class Drawing:
    def __init__(self, rng):
        import keras
        self.keras, self.L, self.rng = keras, keras.layers, rng

    def pick(self, *items):
        return items[int(self.rng.integers(len(items)))]

    def between(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def chance(self, p):
        return bool(self.rng.random() < p)

    def input(self, shape, dtype="float32"):
        return self.keras.Input(shape, dtype=dtype)

    def activation(self):
        return self.pick("relu", "tanh", "gelu", "silu", "elu", "selu", "softplus", None)

    def norm(self, x):
        L = self.L
        return self.pick(lambda: L.BatchNormalization(momentum=0.9)(x), lambda: L.LayerNormalization()(x), lambda: L.GroupNormalization(groups=1)(x), lambda: x)()

    def head(self, x):
        """Any tensor to a vector a sample."""
        L = self.L
        if len(x.shape) == 3:
            x = self.pick(L.GlobalAveragePooling1D(), L.GlobalMaxPooling1D(), L.Flatten())(x)
        elif len(x.shape) == 4:
            x = self.pick(L.GlobalAveragePooling2D(), L.GlobalMaxPooling2D())(x)
        elif len(x.shape) == 5:
            x = L.GlobalAveragePooling3D()(x)
        return L.Dense(self.between(2, 12), dtype="float32")(x)

    # ---- families: each returns inputs and outputs ----

    def dilated_series(self):
        L, x0 = self.L, self.input((self.between(32, 300), self.between(1, 9)))
        x = x0
        for i in range(self.between(2, 6)):
            y = L.Conv1D(self.between(5, 40), self.between(2, 5), padding=self.pick("causal", "same"), dilation_rate=2 ** i, activation=self.activation())(x)
            y = self.norm(y)
            x = L.Add()([L.Conv1D(y.shape[-1], 1)(x), y]) if self.chance(0.6) else y
        return [x0], [self.head(x)]

    def dilated_image(self):
        L, side = self.L, self.between(12, 40)
        x0 = self.input((side, side + self.between(-3, 3), self.between(1, 5)))
        x = L.Conv2D(self.between(6, 24), 3, strides=self.pick(1, 2), padding="same", activation="relu")(x0)
        parts = [L.Conv2D(self.between(4, 20), self.pick(1, 2, 3), dilation_rate=(d, d + self.pick(0, 1)), padding="same", use_bias=self.chance(0.5), activation=self.activation())(x)
                 for d in (1, 2, self.between(3, 6))]
        x = self.norm(L.Concatenate()(parts))
        return [x0], [L.Conv2D(self.between(1, 5), 1, dtype="float32")(x) if self.chance(0.5) else self.head(x)]

    def volume(self):
        L, x0 = self.L, self.input((self.between(6, 10), self.between(8, 14), self.between(8, 14), self.between(1, 3)))
        x = L.Conv3D(self.between(4, 12), self.pick(2, 3), dilation_rate=self.pick(1, 2), padding="same", activation=self.activation())(x0)
        x = self.pick(L.MaxPooling3D, L.AveragePooling3D)(2, padding="same")(x)
        x = L.Conv3D(self.between(4, 12), (1, 3, 2), strides=self.pick(1, 2), padding="same", activation="relu")(self.norm(x))
        if self.chance(0.4):
            x = L.Conv3DTranspose(self.between(2, 8), self.pick(2, 3), strides=self.pick(1, 2), padding="same")(x)
        return [x0], [self.head(x)]

    def transposed(self):
        L, x0 = self.L, self.input((self.between(4, 40),))
        side = self.between(3, 7)
        x = L.Reshape((side, side, 6))(L.Dense(side * side * 6, activation=self.activation())(x0))
        for _ in range(self.between(1, 3)):
            x = L.Conv2DTranspose(self.between(4, 24), self.between(2, 5), strides=self.pick(1, 2, 2, 3), padding=self.pick("same", "valid"), use_bias=self.chance(0.5))(x)
            x = self.norm(x)
            x = L.LeakyReLU(0.2)(x)
            if x.shape[1] > 60:
                break
        return [x0], [L.Conv2D(self.between(1, 3), 3, padding="same", dtype="float32")(x)]

    def recurrent(self, masked=False):
        L, steps = self.L, self.between(8, 50)
        if masked:
            x0 = self.input((steps,), "int32")
            x = L.Embedding(self.between(50, 2000), self.between(8, 48), mask_zero=True)(x0)
        else:
            x0 = x = self.input((steps, self.between(1, 20)))
        count = self.between(1, 3)
        for i in range(count):
            units, sequences = self.between(5, 48), i < count - 1 or self.chance(0.3)
            layer = self.pick(lambda: L.LSTM(units, return_sequences=sequences, go_backwards=self.chance(0.2)), lambda: L.GRU(units, return_sequences=sequences, reset_after=False),
                              lambda: L.GRU(units, return_sequences=sequences), lambda: L.SimpleRNN(units, return_sequences=sequences, activation=self.pick("tanh", "relu")))()
            x = L.Bidirectional(layer, merge_mode=self.pick("concat", "sum", "ave"))(x) if self.chance(0.4) and not layer.go_backwards else layer(x)
        if len(x.shape) == 3 and masked:
            x = L.GlobalAveragePooling1D()(x)
        return [x0], [self.head(x)]

    def sentences(self):
        return self.recurrent(masked=True)

    def attention(self):
        L, steps, width = self.L, self.between(8, 60), 8 * self.between(2, 8)
        vocabulary = self.between(40, 3000)
        x0 = self.input((steps,), "int32")
        x = L.Embedding(vocabulary, width, mask_zero=self.chance(0.3))(x0)
        for _ in range(self.between(1, 4)):
            y = L.LayerNormalization()(x)
            y = L.MultiHeadAttention(self.between(1, 4), self.between(4, 16), dropout=self.pick(0, 0.1))(y, y, use_causal_mask=self.chance(0.5))
            x = L.Add()([x, y])
            y = L.Dense(width, activation=None)(L.Dense(width * self.between(1, 4), activation=self.activation())(self.pick(L.LayerNormalization, L.RMSNormalization)()(x)))
            x = L.Add()([x, L.Dropout(0.1)(y) if self.chance(0.5) else y])
        if self.chance(0.4):
            return [x0], [L.Dense(vocabulary, dtype="float32", name="words")(x)]
        return [x0], [self.head(L.GlobalAveragePooling1D()(x))]

    def frozen(self):
        L, side = self.L, self.between(20, 48)
        inner = x = self.input((side, side, 3))
        for _ in range(self.between(2, 5)):
            x = L.Conv2D(self.between(8, 32), 3, strides=self.pick(1, 2), padding="same", use_bias=self.chance(0.5))(x)
            x = L.ReLU()(self.norm(x))
        base = self.keras.Model(inner, x, name="base")
        base.trainable = False
        if self.chance(0.3):
            base.layers[-2].trainable = base.layers[-3].trainable = True
        x0 = self.input((side, side, 3))
        x = L.GlobalAveragePooling2D()(base(x0, training=self.pick(None, False)))
        if self.chance(0.6):
            x = L.BatchNormalization()(x)
        return [x0], [L.Dense(self.between(2, 30), dtype="float32")(L.Dropout(0.3)(x))]

    def deep(self):
        L, width = self.L, self.between(2, 24)
        x0 = x = self.input((width,))
        for i in range(self.pick(90, 240, 500, 1000)):
            y = L.Dense(width, activation="tanh" if i % 3 else None)(x)
            x = L.Add()([x, y]) if i % 7 == 3 else y
        return [x0], [self.head(x)]

    def deep_convolutions(self):
        L, side = self.L, self.between(8, 16)
        x0 = self.input((side, side, 3))
        x = L.Conv2D(8, 3, padding="same")(x0)
        for _ in range(self.between(10, 50)):
            y = L.ReLU()(L.BatchNormalization()(x))
            x = L.Add()([x, L.Conv2D(8, 3, padding="same")(y)])
        return [x0], [self.head(x)]

    def several(self):
        L = self.L
        image, ids, numbers = self.input((24, 24, 2)), self.input((self.between(5, 20),), "int32"), self.input((self.between(2, 30),))
        a = L.GlobalAveragePooling2D()(L.Conv2D(self.between(4, 24), 3, activation=self.activation())(image))
        b = self.pick(L.GRU, L.LSTM)(self.between(4, 30))(L.Embedding(200, 16)(ids))
        c = L.Dense(self.between(4, 60), activation="relu")(numbers)
        shared = L.Dense(self.between(8, 64), activation=self.activation())(L.Concatenate()([a, b, c]))
        outs = [self.head(shared), self.head(L.Dropout(0.2)(shared))]
        return [image, ids, numbers], outs[:self.between(1, 2)]

    def depthwise(self):
        L, side = self.L, self.between(16, 40)
        x0 = x = self.input((side, side, 3))
        for _ in range(self.between(1, 4)):
            x = L.Conv2D(self.between(8, 40), 1, use_bias=False)(x)
            x = L.ReLU(6.0)(L.BatchNormalization()(x))
            x = self.pick(L.DepthwiseConv2D(self.pick(3, 5), strides=self.pick(1, 2), padding="same", use_bias=False),
                          L.SeparableConv2D(self.between(6, 30), 3, padding="same", strides=self.pick(1, 2)),
                          L.DepthwiseConv2D(3, padding="same", dilation_rate=2))(x)
            s = L.Dense(x.shape[-1], activation="sigmoid")(L.GlobalAveragePooling2D(keepdims=True)(x))
            x = L.Multiply()([x, s]) if self.chance(0.5) else x
        return [x0], [self.head(x)]

    def ladder(self):
        L, side = self.L, 8 * self.between(2, 6)
        x0 = x = self.input((side, side, self.between(1, 3)))
        width, skips = self.between(4, 12), []
        for i in range(2):
            x = L.Conv2D(width << i, 3, padding="same", activation="relu")(x)
            skips.append(x)
            x = self.pick(L.MaxPooling2D, L.AveragePooling2D)(2)(x)
        x = L.Conv2D(width * 4, 3, padding="same", dilation_rate=self.pick(1, 2), activation=self.activation())(x)
        for skip in reversed(skips):
            x = L.Conv2DTranspose(skip.shape[-1], 2, strides=2)(x) if self.chance(0.5) else L.UpSampling2D(2, interpolation=self.pick("nearest", "bilinear"))(x)
            x = L.Conv2D(skip.shape[-1], 3, padding="same", activation="relu")(L.Concatenate()([x, skip]))
        return [x0], [L.Conv2D(self.between(1, 4), 1, dtype="float32")(x)]

    def wide(self):
        L, x0 = self.L, self.input((self.between(100, 1500),))
        x = x0
        for _ in range(self.between(1, 4)):
            x = self.pick(L.Dropout(0.3), L.GaussianNoise(0.1), L.Identity())(L.Dense(self.between(50, 900), activation=self.activation(), kernel_regularizer=self.pick(None, "l2"))(x))
        return [x0], [self.head(x)]


FAMILIES = ("dilated_series", "dilated_image", "recurrent", "attention", "frozen", "transposed", "deep", "several", "depthwise", "volume", "sentences", "ladder", "wide",
            "deep_convolutions")


def compile_drawn(d, model):
    import keras
    optimizer = d.pick("sgd", "adam", "adamw", "rmsprop", "adagrad", "nadam", "lion", keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True), keras.optimizers.Adam(global_clipnorm=1.0), keras.optimizers.Adam(clipvalue=0.5))
    losses, metrics = [], []
    for out in model.outputs:
        if out.name == "words" or "words" in str(model.output_names) or (len(out.shape) == 2 and out.shape[-1] > 2 and d.chance(0.5)):
            losses.append(keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            metrics.append(["accuracy"] if d.chance(0.5) else [])
        else:
            losses.append(d.pick("mse", "mae", "huber"))
            metrics.append(["mae"] if d.chance(0.3) else [])
    model.compile(optimizer=optimizer, loss=losses if len(losses) > 1 else losses[0], metrics=metrics if len(metrics) > 1 else metrics[0])


def draw_one(seed, index):
    import keras
    import numpy as np
    sys.setrecursionlimit(100000)  # Keras walks long chains by calling itself
    keras.backend.clear_session()
    family = FAMILIES[index % len(FAMILIES)]
    d = Drawing(np.random.default_rng([seed, index]))
    keras.utils.set_random_seed(seed + index)
    keras.config.set_dtype_policy(d.pick("float32", "float32", "float32", "mixed_bfloat16", "mixed_float16"))
    try:
        inputs, outputs = getattr(d, family)()
        model = keras.Model(inputs if len(inputs) > 1 else inputs[0], outputs if len(outputs) > 1 else outputs[0], name=f"drawn_{index}")
        compile_drawn(d, model)
    finally:
        keras.config.set_dtype_policy("float32")
    return family, model, d.pick(1, 2, 3, 7, 8, 16, 16, 33, 64)


def draw_models(folder, seed, count):
    os.makedirs(folder, exist_ok=True)
    notes = os.path.join(folder, f"drawn-{seed}.json")
    known = {}
    if os.path.exists(notes):
        with open(notes) as f:
            known = json.load(f)
    models = []
    for i in range(count):
        name = known.get(str(i), {}).get("file")
        if not name or not os.path.exists(os.path.join(folder, name)):
            family, model, batch = draw_one(seed, i)
            name = f"{i:03d}_{family}.keras"
            model.save(os.path.join(folder, name))
            known[str(i)] = {"file": name, "batch": batch}
            with open(notes, "w") as f:
                json.dump(known, f)
        models.append((os.path.join(folder, name), known[str(i)]["batch"]))
    return models


def least_bytes(memfit, path, batch):
    p = subprocess.run([memfit, "plan", path, "--batch-size", str(batch), "--json", "--quiet"], capture_output=True, text=True)
    return json.loads(p.stdout)["lower_bound_bytes"] if p.returncode == 0 else None


def drop_weights(path):
    with zipfile.ZipFile(path) as z:
        kept = {n: z.read(n) for n in z.namelist() if not n.endswith(".h5")}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in kept.items():
            z.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)


def draw_for_card(folder, commit, count, memfit):
    import numpy as np
    seed = int(commit[:7], 16)
    for i, (path, batch) in enumerate(draw_models(folder, seed, count)):
        drop_weights(path)
        while batch < 1024 and (least_bytes(memfit, path, batch) or 1 << 40) < 128 << 20:
            batch *= 2
        factor = (1.3, 1.5, 2.0, 3.0)[int(np.random.default_rng([seed, i, 1]).integers(4))]
        with open(path[:-len(".keras")] + ".json", "w") as f:
            json.dump({"commit": commit, "batch": batch, "factor": factor}, f)
        print(os.path.basename(path), batch, factor, flush=True)


if __name__ == "__main__":
    draw_for_card(sys.argv[1], sys.argv[2], int(sys.argv[3]), os.path.abspath(sys.argv[4]))
