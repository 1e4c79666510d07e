"""Memory of this process as it is now: what PyTorch, TensorFlow or JAX hold on a card, else the process's resident
memory."""

from __future__ import annotations

import re
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Union

from ._explain import resident_bytes
from .errors import UsageError

_UNITS: Dict[str, int] = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _UNITS[_letter] = _UNITS[_letter + "ib"] = 1024**_power
    _UNITS[_letter + "b"] = 1000**_power


def size_bytes(size: Union[str, int, float], whole: Optional[int] = None) -> int:
    """`"6GiB"`, `"80%"` of `whole`, or bytes as a number, as the program reads sizes. Refuses `"80"` alone."""
    if isinstance(size, (int, float)) and not isinstance(size, bool):
        if size != int(size) or size < 65536:
            raise UsageError("memory %s: a number is bytes" % size, 'give a unit: "6GiB", "512MiB", "80%"')
        return int(size)
    found = re.match(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z%]*)\s*$", str(size).lower())
    if not found or (found.group(2) != "%" and found.group(2) not in _UNITS):
        raise UsageError("memory %r is no size" % (size,), 'a size has a unit: "6GiB", "512MiB", "80%"')
    number, unit = float(found.group(1)), found.group(2)
    if unit == "%":
        if whole is None:
            raise UsageError("memory %r: there is no card to take a part of" % (size,), 'give bytes: "6GiB"')
        if not 0 < number <= 100:
            raise UsageError("memory %r: more than 0 %% and at most 100 %%" % (size,))
        return int(whole * number / 100)
    if not unit and number < 65536:
        raise UsageError("memory %r: a number is bytes" % (size,), 'give a unit: "6GiB", "512MiB", "80%"')
    return int(number * _UNITS[unit])


def tensorflow_has_begun() -> bool:
    """Does TensorFlow use its devices already? No public function tells; asking for its devices would start to use
    them."""
    module: Any = sys.modules.get("tensorflow.python.eager.context")
    context: Any = getattr(module, "_context", None)
    return bool(getattr(context, "_initialized", False))


def jax_has_begun() -> bool:
    """Does JAX use its devices already? Asking for them would start to use them and take three quarters of a card."""
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    return bool(getattr(bridge, "_backends", None))


class Place(NamedTuple):
    """A place whose memory is watched: its name, what is in use now, and how much there is (None: not known)."""

    name: str
    in_use: Callable[[], int]
    total_bytes: Optional[int]


def _torch_place(torch: Any) -> Optional[Place]:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return None
    try:
        torch.cuda.memory_allocated()
    except RuntimeError:  # a pluggable allocator that keeps its own books
        from . import torch as ours

        if not ours.in_use():
            return None
        return Place("memfit's pool", lambda: ours.statistics()["in_use_bytes"], int(torch.cuda.mem_get_info()[1]))
    return Place("PyTorch on the card", _torch_allocated(torch), int(torch.cuda.mem_get_info()[1]))


def _torch_allocated(torch: Any) -> Callable[[], int]:
    """memory_allocated() makes a table of a hundred figures to return one; reading the figures themselves is faster."""
    nested: Any = getattr(torch.cuda.memory, "memory_stats_as_nested_dict", None)
    try:
        if int(nested()["allocated_bytes"]["all"]["current"]) == int(torch.cuda.memory_allocated()):
            return lambda: int(nested()["allocated_bytes"]["all"]["current"])
    except (TypeError, KeyError):
        pass
    return lambda: int(torch.cuda.memory_allocated())


def _tensorflow_place(tf: Any) -> Optional[Place]:
    cards = tf.config.list_logical_devices("GPU") if tensorflow_has_begun() else []
    if not cards:
        return None
    name = cards[0].name.split("/device:")[-1]
    return Place("TensorFlow on the card", lambda: int(tf.config.experimental.get_memory_info(name)["current"]), None)


def _jax_place(jax: Any) -> Optional[Place]:
    if not jax_has_begun():
        return None
    device = jax.local_devices()[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    if not stats:
        return None
    return Place("JAX on the card", lambda: int(device.memory_stats()["bytes_in_use"]), stats.get("bytes_limit"))


_PLACES: Dict[str, Callable[[Any], Optional[Place]]] = {
    "torch": _torch_place,
    "tensorflow": _tensorflow_place,
    "jax": _jax_place,
}


def place() -> Place:
    """The card that a loaded framework already uses, else the host. Makes no framework start to use a card."""
    for name, find in _PLACES.items():
        module = sys.modules.get(name)
        if module is not None:
            try:
                found = find(module)
            except Exception:  # a framework that cannot be asked is not in use
                found = None
            if found is not None:
                return found
    return Place("this process", resident_bytes, host_bytes())


def host_bytes() -> int:
    """What this process may take: what is available plus what it has, or its container's limit if that is less."""
    available = 0
    with open("/proc/meminfo", encoding="ascii") as f:
        for line in f:
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    limits: List[int] = [available + resident_bytes()]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as f:
                limits.append(int(f.read()))
        except (OSError, ValueError):
            pass
    return min(limits)


def mib(size: float) -> str:
    """A size as people read it."""
    for unit, step in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= step:
            return "%.2f %s" % (size / step, unit)
    return "%d B" % size


__all__ = ["Place", "host_bytes", "jax_has_begun", "mib", "place", "size_bytes", "tensorflow_has_begun"]
