"""memfit.Watch: watches memory beside a training, warns before it is short, and names what grows.

    model.fit(..., callbacks=[memfit.Watch()])                 Keras; Lightning's Trainer and Hugging Face's take it the same way
    with memfit.Watch() as watch:                              any loop
        for batch in loader:
            step(batch); watch.step()

Watch looks at memory after each of the first 64 steps, then at most every 5 ms and seldom enough that looking takes at
most a 400th of the time. It looks for what grows among all containers of the process, which takes a tenth of a second
where a framework is loaded. So it does that only when memory rises steadily, and after the first two looks within a
400th of the time again, unless memory is full soon.

Keras on TensorFlow and JAX calls it from its own threads, beside the next step (`async_safe`): a callback that does not
allow this makes every step wait for the one before.
"""

from __future__ import annotations

import functools
import statistics
import sys
import threading
import time
from typing import Any, Callable, List, Optional, TextIO, Tuple, Union

from . import _growth
from ._events import Scalars
from ._measure import Place, mib, place, size_bytes
from .errors import UsageError

WINDOWS = 8
PAUSE_SECONDS = 0.005
MOST_SLOWDOWN = 400  # looking takes at most one part in so many of the time
FIRST_STEPS = 64  # each of these is looked at: a loop that leaks fast is over soon
WITHOUT_NAME = 64  # steps: then growth is told of also where no container that grows was found
CONTAINERS_SECONDS = 0.1  # what a look at all containers takes, until one was measured
SOON_SECONDS = 60  # memory that is full sooner than this by its trend: the containers are looked at now
LONGEST_PAUSE = 1.0  # seconds, where looking took long because others had the processor


class Watch:
    """`limit` is a size or a percentage of the card (default: what the card or the machine has). `warn` is the part at
    which to warn."""

    async_safe = True  # Keras asks for this: steps may be told of from any thread

    def __new__(cls, *args: Any, **options: Any) -> "Watch":
        return object.__new__(_with_callbacks(cls))

    def __init__(
        self,
        limit: Union[str, int, None] = None,
        *,
        warn: float = 0.9,
        trace: Optional[str] = None,
        tensorboard: Optional[str] = None,
        bar: Optional[bool] = None,
        say: Optional[Callable[[str], None]] = None,
    ) -> None:
        for base in type(self).__mro__:
            if base.__module__.split(".")[0] == "keras" and base.__name__ == "Callback":
                base.__init__(self)  # type: ignore[misc]
        if not 0 < warn <= 1:
            raise UsageError("warn %s: a part of the limit, more than 0 and at most 1" % warn)
        if limit is not None:
            size_bytes(limit, 1 << 50)  # what is no size is said now, not in the first step
        self.steps = 0
        self.epochs = 0
        self.peak_bytes = 0
        self.growing: List[_growth.Grown] = []
        self.warnings: List[str] = []
        self._limit_asked = limit
        self._warn = warn
        self._say = say or (lambda text: print(text, file=sys.stderr, flush=True))
        self._bar = sys.stderr.isatty() if bar is None else bar
        self._place: Optional[Place] = None
        self._limit: Optional[int] = None
        self._next = self._asked = self._pause = 0.0
        self._at = self._asked_at = 0  # steps: before this one no clock is read; the last at which one was
        self._looks = 0
        self._lock = threading.RLock()  # what `say` is given may ask this watch something
        self._began = time.perf_counter()
        self._lows: List[Tuple[int, int]] = []  # (step, the lowest since the one before)
        self._low: Optional[int] = None
        self._window_steps = 1
        self._look: Any = None
        self._looked_at = self._look_after = 0
        self._first: Optional[Tuple[float, int]] = None  # when and at which step memory was first looked at
        self._searched, self._searches, self._search = 0.0, 0, CONTAINERS_SECONDS
        self._told: List[str] = []
        self._trace: Optional[TextIO] = None
        self._trace_path = trace
        self._traced = 0
        self._folder = tensorboard
        self._scalars: Optional[Scalars] = None

    # -- any loop

    def __enter__(self) -> "Watch":
        self.begin()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def begin(self) -> None:
        if self._folder and self._scalars is None:
            self._scalars = Scalars(self._folder)
        if self._trace_path and self._trace is None:
            self._open_trace(self._trace_path)

    def _open_trace(self, path: str) -> None:
        """A second training goes on in the file of the first; Watch leaves a file of another kind alone."""
        try:
            self._trace = open(path, "a" if self._traced_id else "x", encoding="utf-8")
        except FileExistsError as e:
            raise UsageError("%s is there already: it is left as it is" % path, "give the trace another name") from e
        if not self._traced_id:
            self._trace.write("time_us,op,id,bytes,owner\n")

    def step(self) -> None:
        """After a step of training."""
        with self._lock:
            self.steps += 1
            if self.steps >= self._at:
                self._step()

    def _step(self) -> None:
        now = time.perf_counter()
        if self.steps > FIRST_STEPS:
            # Clocks cost too, where steps are short: they are read four times a pause, and at least every 64 steps.
            each = max(1e-6, (now - self._asked) / max(1, self.steps - self._asked_at))
            self._asked, self._asked_at = now, self.steps
            self._at = self.steps + min(64, max(1, int(self._pause / 4 / each)))
            if now < self._next:
                return
        busy = time.thread_time()
        in_use = self._sample()
        done = time.perf_counter()
        took = MOST_SLOWDOWN * (time.thread_time() - busy)
        self._pause = max(PAUSE_SECONDS, took, min(LONGEST_PAUSE, MOST_SLOWDOWN * (done - now)))
        self._next = done + self._pause
        if self._first is None:
            self._first = now, self.steps
        self._follow(in_use)

    def epoch(self) -> None:
        """After an epoch."""
        with self._lock:
            self.epochs += 1
            in_use = self._sample()
            self._follow(in_use)
            if self._bar:
                self._say("  memory %s" % self.bar())
            if self._scalars:
                self._scalars.put(self.epochs, {"memory/in_use_bytes": in_use, "memory/peak_bytes": self.peak_bytes})

    def end(self) -> None:
        if self._trace is not None:
            if self._traced:
                self._trace_event("free", self._traced_id, self._traced)
                self._traced = 0
            self._trace.close()
            self._trace = None
        if self._scalars:
            self._scalars.close()
            self._scalars = None

    def bar(self, columns: int = 20) -> str:
        """The memory bar: "████░░░░ 3.1 GiB of 8.0 GiB"."""
        in_use = self._place.in_use() if self._place else 0
        if not self._limit:
            return mib(in_use)
        full = min(columns, round(columns * in_use / self._limit))
        return ("%s%s %s of %s" % ("█" * full, "░" * (columns - full), mib(in_use), mib(self._limit))).lstrip()

    def __repr__(self) -> str:
        text = "Watch: %d steps, %d epochs" % (self.steps, self.epochs)
        return text + (", %s, peak %s" % (self.bar(0), mib(self.peak_bytes)) if self._place else "") + "".join("\n  " + w for w in self.warnings)

    # -- what is seen

    def _sample(self) -> int:
        self._looks += 1
        if self._place is None or (self._place.name == "this process" and self._looks % 16 == 0):
            self._place = place()  # a framework may have taken its card since
            self._limit = self._place.total_bytes
            if self._limit_asked is not None:
                self._limit = size_bytes(self._limit_asked, self._place.total_bytes)
        in_use = int(self._place.in_use())
        self.peak_bytes = max(self.peak_bytes, in_use)
        if self._trace is not None:
            self._trace_level(in_use)
        return in_use

    def _follow(self, in_use: int) -> None:
        if self._limit and in_use >= self._warn * self._limit:
            self._warn_once("full", "%s: %s of %s in use at step %d" % (self._name(), mib(in_use), mib(self._limit), self.steps))
        self._low = in_use if self._low is None else min(self._low, in_use)
        last = self._lows[-1][0] if self._lows else 0
        if self.steps - last < self._window_steps:
            return
        self._lows.append((self.steps, self._low))
        self._low = None
        if len(self._lows) > 2 * WINDOWS:  # windows twice as long, half as many
            self._lows = [(b[0], min(a[1], b[1])) for a, b in zip(self._lows[0::2], self._lows[1::2])]
            self._window_steps *= 2
        self._look_for_growth()

    def _look_for_growth(self) -> None:
        rate = self.growth_bytes_per_step()
        if rate <= 0:
            if len(self._lows) > WINDOWS:  # else there were too few of them to tell
                self._look = None
            return
        left = max(0.0, (self._limit - self._lows[-1][1]) / rate) if self._limit else float("inf")
        if "grows" in self._told or not self._may_look(left):
            return
        if self._look is None:
            self._look, self._looked_at = self._timed(_growth.look), self.steps
            self._look_after = 4
        elif self.steps - self._looked_at >= self._look_after:
            self.growing = self._timed(lambda: _growth.grown(self._look))
            if not self.growing and self._look_after < WITHOUT_NAME < left:
                self._look_after *= 4  # what grows may do so only now and then
                return
            text = "%s grows by %s a step since step %d" % (self._name(), mib(rate), self._lows[0][0])
            if self._limit:
                text += "; at this rate %s are full at about step %d" % (mib(self._limit), self.steps + int(left))
            for g in self.growing:
                text += "\n  grows: " + str(g)
            self._warn_once("grows", text)

    def _may_look(self, left: float) -> bool:
        """May Watch look at all containers now? `left`: steps until memory is full, by the trend. The first two looks
        are free: they name most."""
        if self._searches < 2:
            return True
        began, first = self._first or (time.perf_counter(), self.steps)
        elapsed = time.perf_counter() - began
        soon = left * elapsed / max(1, self.steps - first) < SOON_SECONDS and self._searches < 8
        return soon or MOST_SLOWDOWN * (self._searched + self._search) <= elapsed

    def _timed(self, search: Callable[[], Any]) -> Any:
        began = time.thread_time()
        found = search()
        self._search = time.thread_time() - began
        self._searched += self._search
        self._searches += 1
        return found

    def growth_bytes_per_step(self) -> float:
        """By how much the lowest points rise, if at least 7 of the last 8 do, and steadily (a start takes memory in a
        few large ones); else 0."""
        last = self._lows[-WINDOWS - 1:]
        if len(last) <= WINDOWS:
            return 0.0
        steps, rise = (end - begin for begin, end in zip(last[0], last[-1]))
        rates = [(b[1] - a[1]) / max(1, b[0] - a[0]) for a, b in zip(last, last[1:])]
        usual = statistics.median(rates) * steps
        if sum(r > 0 for r in rates) < WINDOWS - 1 or usual < 1 << 20 or 2 * usual < rise:
            return 0.0
        return rise / max(1, steps)

    def _name(self) -> str:
        return self._place.name if self._place else "memory"

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._told:
            self._told.append(kind)
            self.warnings.append(text)
            self._say("memfit: " + text)

    # -- the trace: one buffer for each level, so that replay and explain can read it

    _traced_id = 0

    def _trace_level(self, in_use: int) -> None:
        if in_use == self._traced:
            return
        if self._traced:
            self._trace_event("free", self._traced_id, self._traced)
        self._traced_id += 1
        self._traced = in_use
        if in_use:
            self._trace_event("alloc", self._traced_id, in_use)

    def _trace_event(self, what: str, number: int, size: int) -> None:
        if self._trace is not None:
            now = int((time.perf_counter() - self._began) * 1e6)
            self._trace.write("%d,%s,%d,%d,%s\n" % (now, what, number, size, self._name()))

    # -- what Keras, Lightning and Hugging Face call. Their arguments differ; none is needed.

    def on_train_begin(self, *args: Any, **more: Any) -> None:
        self.begin()

    def on_train_end(self, *args: Any, **more: Any) -> None:
        self.end()

    def on_train_batch_end(self, *args: Any, **more: Any) -> None:  # Keras, Lightning
        self.step()

    def on_step_end(self, *args: Any, **more: Any) -> None:  # Hugging Face
        self.step()

    def on_epoch_end(self, *args: Any, **more: Any) -> None:  # Keras, Hugging Face
        self.epoch()

    def on_train_epoch_end(self, *args: Any, **more: Any) -> None:  # Lightning
        self.epoch()

    def on_fit_start(self, *args: Any, **more: Any) -> None:  # Lightning
        self.begin()

    def on_fit_end(self, *args: Any, **more: Any) -> None:  # Lightning
        self.end()


_CALLBACKS = (
    ("keras", "callbacks.Callback"),
    ("lightning", "pytorch.callbacks.Callback"),
    ("pytorch_lightning", "callbacks.Callback"),
    ("transformers", "TrainerCallback"),
)


def _with_callbacks(cls: type) -> type:
    """The class with the callback classes of the loaded frameworks as bases: they check for an instance of theirs."""
    bases: List[type] = []
    for module, path in _CALLBACKS:
        found: Any = sys.modules.get(module)
        try:
            for part in path.split("."):
                found = getattr(found, part)
        except (AttributeError, ImportError):
            continue
        if isinstance(found, type) and not issubclass(cls, found):
            bases.append(found)
    return _joined(cls, tuple(bases)) if bases else cls


@functools.lru_cache(maxsize=None)
def _joined(cls: type, bases: Tuple[type, ...]) -> type:
    return type(cls.__name__, (cls, *bases), {"__module__": cls.__module__, "__doc__": cls.__doc__})
