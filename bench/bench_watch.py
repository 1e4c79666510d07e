"""bench_watch.py keras|torch [--seconds N] [--width N] [--batch N] [--waits]: what memfit.Watch costs a training, by turns inside one training.

Keras's fit is given a list of callbacks that is two lists by turns: one with Watch and one without any. Blocks of steps come in pairs, which of the
two is first is drawn; at the end of a block its last loss is waited for, so that a block's time is its own. Told are mean and median of the pairs'
differences with 95 % intervals (bootstrap over pairs), by the clock and by processor time (where others share the machine, the second says
more), and how much of the time was spent inside of Watch. With --waits a third list has a callback that does nothing and does not allow Keras to go on
beside it: what any such callback costs. `torch` is a plain loop of PyTorch.

    KERAS_BACKEND=jax python bench/bench_watch.py keras --seconds 30
"""

import argparse
import random
import statistics
import time

import memfit


class Turns:
    """Pairs of blocks, with and without; `change` is told which comes next."""

    def __init__(self, names, seconds, block_seconds=0.05):
        self.names, self.seconds, self.block_seconds = names, seconds, block_seconds
        self.order, self.now, self.steps, self.block = [], 0, 0, 0
        self.wall = {n: [] for n in names}
        self.busy = {n: [] for n in names}
        self.done = False

    def next_block(self):
        if not self.order:
            self.order = random.sample(range(len(self.names)), len(self.names))
        self.now, self.steps = self.order.pop(), 0
        self.began = time.perf_counter(), time.process_time()

    def step(self, wait):
        """After each step; True when another block begins."""
        self.steps += 1
        if not self.block:  # the first steps say how many make a block
            self.first = getattr(self, "first", None) or time.perf_counter()
            if time.perf_counter() - self.first < 1:
                return False
            wait()
            self.end = time.perf_counter() + self.seconds
            self.block = max(5, int(self.steps * self.block_seconds / (time.perf_counter() - self.first)))
        elif self.steps < self.block:
            return False
        else:
            wait()
            self.wall[self.names[self.now]].append(time.perf_counter() - self.began[0])
            self.busy[self.names[self.now]].append(time.process_time() - self.began[1])
            self.done = not self.order and time.perf_counter() > self.end
        self.next_block()
        return True

    def tell(self, what):
        for other in self.names[1:]:
            for figure, times in (("clock", self.wall), ("processor", self.busy)):
                a, b = times[self.names[0]], times[other]
                differences = [y - x for x, y in zip(a, b)]
                whole = statistics.fmean(a)
                low, high = interval(differences)
                ratios = [y / x - 1 for x, y in zip(a, b)]
                middle = [100 * r for r in (statistics.median(ratios), *interval(ratios, statistics.median))]
                print("%s, %s against %s, %s: mean %+.3f %% (95 %%: %+.3f to %+.3f), median %+.3f %% (%+.3f to %+.3f); %d pairs of %d steps, %.3f ms a step" % (
                    what, other, self.names[0], figure, statistics.fmean(differences) / whole * 100, low / whole * 100, high / whole * 100, *middle,
                    len(differences), self.block, whole / self.block * 1e3), flush=True)


def interval(values, figure=statistics.fmean, draws=2000):
    """Of the mean or median, by drawing pairs again."""
    drawn = random.Random(1)
    found = sorted(figure(drawn.choices(values, k=len(values))) for _ in range(draws))
    return found[int(draws * 0.025)], found[int(draws * 0.975)]


class Counted(memfit.Watch):
    """A watch that adds up all the time that is spent in it."""

    took, calls, looks = 0.0, 0, 0

    def step(self):
        began = time.perf_counter()
        super().step()
        self.took += time.perf_counter() - began
        self.calls += 1

    def _sample(self):
        self.looks += 1
        return super()._sample()


def in_keras(options):
    import keras
    import numpy as np

    layers = keras.layers
    model = keras.Sequential([keras.Input((64, 64, 3)), layers.Conv2D(options.width, 3, padding="same", activation="relu"),
                              layers.Conv2D(options.width, 3, padding="same", activation="relu"),
                              layers.GlobalAveragePooling2D(), layers.Dense(10, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    rng = np.random.default_rng(0)
    x, y = rng.random((options.batch * 16, 64, 64, 3), dtype="float32"), rng.integers(0, 10, options.batch * 16)

    class Nothing(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            pass

    names = ["no callback", "Watch"] + ["a callback that waits"] * options.waits
    turns = Turns(names, options.seconds)
    watch = Counted(bar=False)

    class ByTurns(keras.callbacks.CallbackList):
        """Lists as fit makes them, of which one is called."""

        def __init__(self):
            super().__init__([], add_history=True, model=model, epochs=1, verbose=0)
            self.lists = [keras.callbacks.CallbackList(c, add_history=True, model=model, epochs=1, verbose=0) for c in ([], [watch], [Nothing()])[: len(names)]]

        def on_train_begin(self, logs=None):
            for one in self.lists:
                one.on_train_begin(logs)

        def on_train_end(self, logs=None):
            for one in self.lists:
                one.on_train_end(logs)

        def on_train_batch_begin(self, batch, logs=None):
            self.lists[turns.now].on_train_batch_begin(batch, logs)

        def on_train_batch_end(self, batch, logs=None):
            one = self.lists[turns.now]
            one.on_train_batch_end(batch, logs)

            def wait():
                one._flush_futures()
                float(logs["loss"])

            turns.step(wait)
            if turns.done:
                model.stop_training = True

        def on_epoch_begin(self, epoch, logs=None):
            pass

        def on_epoch_end(self, epoch, logs=None):
            pass

    model.fit(x, y, batch_size=options.batch, epochs=10**6, verbose=0, callbacks=ByTurns())
    turns.tell("Keras %s on %s, batch %d" % (keras.__version__, keras.backend.backend(), options.batch))
    of_watch(watch, turns.wall["Watch"])


def of_watch(watch, wall):
    print("inside of Watch: %.3f %% of the time of the steps with it, by the clock (%d calls of %.2f us in the mean, %d looks at memory)" % (
        watch.took / sum(wall) * 100, watch.calls, watch.took / max(1, watch.calls) * 1e6, watch.looks), flush=True)


def in_torch(options):
    import torch

    nn, width = torch.nn, options.width
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                          nn.Linear(width, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(options.batch, 3, 64, 64, device=device), torch.zeros(options.batch, dtype=torch.long, device=device)
    turns = Turns(["no watch", "Watch"], options.seconds)
    with Counted(bar=False) as watch:
        while not turns.done:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if turns.now:
                watch.step()
            turns.step(loss.item)
    turns.tell("PyTorch %s on %s, batch %d" % (torch.__version__, device, options.batch))
    of_watch(watch, turns.wall["Watch"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["keras", "torch"])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--waits", action="store_true")
    given = parser.parse_args()
    random.seed(given.seed)
    (in_keras if given.what == "keras" else in_torch)(given)
