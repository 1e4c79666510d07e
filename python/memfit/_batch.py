"""memfit.find_batch_size: predicts the largest batch, then confirms it with one real step; never by failing and
halving."""

from __future__ import annotations

import math
import sys
from typing import Any, Callable, NamedTuple, Optional, Tuple, Union

from . import _program
from ._measure import mib, place
from ._plan import Source, plan
from .errors import DoesNotFitError, UsageError


class BatchSize(NamedTuple):
    """`batch_size` fits; `predicted_bytes` and `measured_bytes` belong to that batch, `limit_bytes` is its limit."""

    batch_size: int
    predicted_bytes: int
    measured_bytes: Optional[int]
    limit_bytes: int
    tried: int

    def __str__(self) -> str:
        measured = "measured %s" % mib(self.measured_bytes) if self.measured_bytes is not None else "not measured"
        return "batch %d: predicted %s, %s, of %s" % (self.batch_size, mib(self.predicted_bytes), measured, mib(self.limit_bytes))

    def __int__(self) -> int:
        return self.batch_size


def find_batch_size(
    model: Any,
    *,
    memory: Union[str, int, None] = None,
    card: Optional[str] = None,
    runtime: Optional[str] = None,
    margin: float = 0.05,
    step: Optional[Callable[[int], object]] = None,
    **options: Any,
) -> BatchSize:
    """The largest batch of `model` that fits, validation and the last batch included, with `margin` of the limit left
    free.

    Without `step` it predicts for `card`, or for this machine, where one step of the engine confirms the answer.
    `step(n)` is your own step of n samples: memfit runs it once or twice and measures its memory where it runs (card or
    process).
    """
    if not 0 <= margin < 1:
        raise UsageError("margin %s: from 0 to less than 1" % margin)
    first = plan(model, 1, card=card, memory=memory, runtime=runtime, **options)
    limit_bytes = int(first.memory_bytes * (1 - margin))
    batch = _predicted(model, card, limit_bytes, runtime, options)
    if batch < 1:
        raise DoesNotFitError("not one sample fits %s: it takes %s" % (mib(limit_bytes), mib(first.as_asked.peak_bytes)))
    if step is None and card is None and runtime in (None, "memfit"):
        return _confirmed_by_engine(model, batch, limit_bytes, options)
    told = plan(model, batch, card=card, memory=str(limit_bytes), runtime=runtime, **options)
    predicted = _peak(told, runtime)
    if step is None:
        return BatchSize(batch, predicted, None, limit_bytes, 0)
    return _confirmed_by_step(step, batch, predicted, limit_bytes)


def _peak(told: Any, runtime: Optional[str]) -> int:
    return int(told.as_asked.peak_bytes if runtime in (None, "memfit") else told.in_framework.peak_bytes)


def _predicted(model: Any, card: Optional[str], limit_bytes: int, runtime: Optional[str], options: Any) -> int:
    told = plan(model, 1, card=card, memory=str(limit_bytes), runtime=runtime, **options)
    if runtime not in (None, "memfit"):
        return int(told.in_framework.max_batch)
    return int(told.to_dict().get("max_batch_as_asked", told.max_batch))


def _confirmed_by_engine(model: Any, batch: int, limit_bytes: int, options: Any) -> BatchSize:
    """Runs one step of `memfit train` on synthetic samples under the limit, as asked: no micro-batches, no
    recomputation.

    Before it begins, the engine admits the training by its measured fixed cost, which may be a little above the plan's.
    A batch that it refuses never ran; memfit then tries one that is a twentieth smaller.
    """
    try:
        return _engine_step(model, batch, limit_bytes, options, 1)
    except DoesNotFitError:
        return _engine_step(model, max(1, batch * 19 // 20), limit_bytes, options, 2)


def _engine_step(model: Any, batch: int, limit_bytes: int, options: Any, tried: int) -> BatchSize:
    with Source(model).file() as path:
        done = _program.ask(
            ["train", path, "--data", "synthetic:%d" % batch, "--batch-size", str(batch), "--steps", "1", "--quiet"]
            + ["--memory", str(limit_bytes), "--recompute", "off", "--gradient-accumulation", "off"]
            + _program.option_list(dict(options))
        )
    return BatchSize(batch, int(done["planned_peak_bytes"]), int(done["measured_peak_bytes"]), limit_bytes, tried)


def _confirmed_by_step(step: Callable[[int], object], batch: int, predicted: int, limit_bytes: int) -> BatchSize:
    """Runs a small step first. From it and the prediction's slope it sets the batch so that the large step stays below
    the limit."""
    small = max(1, batch // 8)
    base, small_bytes = _measured(step, small)
    per_sample = max(1.0, (small_bytes - base) / small)
    batch = min(batch, max(small, int((limit_bytes - base) / per_sample)))
    if batch == small:
        return BatchSize(small, predicted, small_bytes, limit_bytes, 1)
    _, large_bytes = _measured(step, batch)
    tried = 2
    if large_bytes > limit_bytes:  # not a straight line: the two points give the third, which lies between them
        slope = (large_bytes - small_bytes) / (batch - small)
        batch = max(small, small + math.floor((limit_bytes - small_bytes) / slope)) if slope > 0 else small
        _, large_bytes = _measured(step, batch)
        tried = 3
    if large_bytes > limit_bytes:
        raise DoesNotFitError("a step of %d samples took %s, more than %s" % (batch, mib(large_bytes), mib(limit_bytes)))
    return BatchSize(batch, predicted, large_bytes, limit_bytes, tried)


def _measured(step: Callable[[int], object], n: int) -> Tuple[int, int]:
    """Bytes in use before a step and at its peak, on the card if a framework uses one, else of the process."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        base = int(torch.cuda.memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        step(n)
        torch.cuda.synchronize()
        return base, int(torch.cuda.max_memory_allocated())
    from ._notebook import _highest, _reset_highest

    here = place()
    base = here.in_use()
    reset = _reset_highest()
    step(n)
    return base, max(here.in_use(), _highest() if reset else 0)


__all__ = ["BatchSize", "find_batch_size"]
