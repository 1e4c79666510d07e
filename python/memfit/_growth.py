"""What grows: containers of this process that got more elements between two looks, named as the user would name them.

Lists, dicts, deques and sets hold tensors; a leak is one of these that gets longer with every step. Two looks at all
containers that the garbage collector knows show which one; the way back to a variable, an attribute or a module gives
its name. Other threads go on meanwhile, so we copy what we walk through first.
"""

from __future__ import annotations

import collections
import gc
import sys
from types import FrameType, ModuleType
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

KINDS = (list, dict, collections.deque, set)
MOST_LOOKED_AT = 64


class Grown(NamedTuple):
    """A container that grew: its name, by how many elements, and their bytes (without the graphs that they keep)."""

    name: str
    elements: int
    bytes: int
    keeps_graph: bool

    def __str__(self) -> str:
        text = "%s: %d more elements" % (self.name, self.elements)
        if self.bytes:
            text += ", %.1f MiB" % (self.bytes / 2**20)
        if self.keeps_graph:
            text += "; each keeps its graph (append loss.item(), not loss)"
        return text


def look() -> Dict[int, int]:
    """The length of every container, by its identity."""
    return {id(o): len(o) for o in gc.get_objects() if type(o) in KINDS}


def grown(before: Dict[int, int], most: int = 3) -> List[Grown]:
    """Containers with more tensors or arrays in them than at an earlier look, the largest first."""
    found: List[Tuple[int, int, bool, Any]] = []
    for o in gc.get_objects():
        if type(o) not in KINDS:
            continue
        more = len(o) - before.get(id(o), len(o))
        if more <= 0 or o is before:
            continue
        size, graph, weighed = _weight(o, more)
        if weighed:
            found.append((size, more, graph, o))
    found.sort(key=lambda f: (f[2], f[0]), reverse=True)
    return [Grown(name_of(o) or "a %s" % type(o).__name__, more, size, graph) for size, more, graph, o in found[:most]]


def _weight(container: Any, more: int) -> Tuple[int, bool, bool]:
    """Bytes of the newest elements, whether one keeps a graph, whether any is an array at all."""
    values = list(container.values()) if isinstance(container, dict) else list(container)
    newest = values[-min(more, MOST_LOOKED_AT):]
    sizes: List[int] = []
    graph = False
    for value in newest:
        size = array_bytes(value)
        if size is not None:
            sizes.append(size)
            graph = graph or getattr(value, "grad_fn", None) is not None
        elif isinstance(value, (tuple, list, dict)) and len(value) <= 16:
            inner = [array_bytes(v) for v in (value.values() if isinstance(value, dict) else value)]
            sizes += [s for s in inner if s is not None]
    if not sizes:
        return 0, False, False
    return sum(sizes) * more // max(1, len(newest)), graph, True


def array_bytes(value: object) -> Optional[int]:
    """The bytes of a tensor or array of any framework; None for anything else."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return None
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size
    try:
        return int(value.element_size() * value.nelement())  # type: ignore[attr-defined]
    except Exception:
        return 0


def name_of(container: Any, depth: int = 0) -> Optional[str]:
    """The variable, attribute or module entry that holds a container."""
    for frame in _frames():
        for name, value in list(frame.f_locals.items()):
            if value is container and not name.startswith("__"):
                return "%s in %s" % (name, frame.f_code.co_name) if frame.f_code.co_name != "<module>" else name
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            for name, value in list(vars(module).items()):
                if value is container:
                    return "%s.%s" % (module.__name__, name)
    if depth >= 3:
        return None
    for holder in gc.get_referrers(container):
        if isinstance(holder, dict):
            key = next((k for k, v in list(holder.items()) if v is container), None)
            for owner in gc.get_referrers(holder) if isinstance(key, str) else ():
                if isinstance(owner, type) and vars(owner).get(str(key)) is container:
                    return "%s of %s" % (key, owner.__name__)
                if getattr(owner, "__dict__", None) is holder:
                    return "%s of %s" % (key, type(owner).__name__)
            outer = name_of(holder, depth + 1) if key is not None else None
            if outer:
                return "%s[%r]" % (outer, key)
        elif not isinstance(holder, (list, tuple, FrameType)) and hasattr(holder, "__dict__"):
            key = next((k for k, v in list(vars(holder).items()) if v is container), None)
            if key:
                return "%s of %s" % (key, type(holder).__name__)
    return None


def _frames() -> List[FrameType]:
    frames: List[FrameType] = []
    for top in sys._current_frames().values():
        frame: Optional[FrameType] = top
        while frame is not None:
            if not frame.f_code.co_filename.startswith(__file__.rsplit("/", 1)[0]):
                frames.append(frame)
            frame = frame.f_back
    return frames
