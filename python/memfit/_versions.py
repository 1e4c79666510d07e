"""Which versions of the frameworks memfit knows: an answer names what it models, a process what it has loaded."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any, Mapping, Optional, Set, Tuple

from .errors import VersionWarning

MODULES = {"TensorFlow": "tensorflow", "PyTorch": "torch", "JAX": "jax", "Keras": "keras"}
_told: Set[Tuple[str, str]] = set()


def number(version: str) -> Tuple[int, ...]:
    """`"2.11.0a0+git1"` as (2, 11): memory changes with a release, not with its patches."""
    return tuple(int(n) for n in re.findall(r"\d+", version.split("+")[0])[:2])


def compare(estimate: Optional[Mapping[str, Any]]) -> None:
    """Warns once for each framework that is loaded in another version than an estimate models ("PyTorch 2.11, Keras
    3.15")."""
    for name, modelled in re.findall(r"(\w+) ([\d.]+)", str((estimate or {}).get("version", ""))):
        module: Any = sys.modules.get(MODULES.get(name, ""))
        loaded = str(getattr(module, "__version__", ""))
        if not loaded or number(loaded) == number(modelled) or (name, loaded) in _told:
            continue
        _told.add((name, loaded))
        warnings.warn(
            "%s %s is loaded; memfit knows the memory of %s %s: the figures are of that version, and may be further off than their band says"
            % (name, loaded, name, modelled),
            VersionWarning,
            stacklevel=3,
        )
