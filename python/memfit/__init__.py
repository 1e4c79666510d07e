"""Memory for training neural networks: predicted before the first step, bounded while it runs, explained when short.

    p = memfit.plan(model, batch_size=256, card="rtx-3080")
    p.fits, p.max_batch, p.suggestions

This package asks the program (`memfit plan --json` and its like) and sends nothing anywhere. It loads its parts when
you first use them: `import memfit` itself takes a few milliseconds.
"""

from __future__ import annotations

from .errors import (
    DoesNotFitError,
    Error,
    InputError,
    LateError,
    ProgramNotFoundError,
    RunError,
    UnsupportedError,
    UsageError,
    VersionWarning,
)

TYPE_CHECKING = False  # checkers know the name; importing typing would be most of what `import memfit` takes
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from . import torch
    from ._answer import Answer, Record
    from ._batch import BatchSize, find_batch_size
    from ._diagnose import doctor, explain_log, ps, report
    from ._explain import explain, install
    from ._fit import fit
    from ._limit import Limited, limit, refusals
    from ._notebook import load_ipython_extension
    from ._plan import Plan, Suggestion, plan
    from ._program import library, program
    from ._trace import TorchTrace, torch_trace
    from .watch import Watch

    __version__: str

_WHERE: Dict[str, str] = {
    "Answer": "_answer",
    "BatchSize": "_batch",
    "Limited": "_limit",
    "Plan": "_plan",
    "Record": "_answer",
    "Suggestion": "_plan",
    "TorchTrace": "_trace",
    "Watch": "watch",
    "doctor": "_diagnose",
    "explain": "_explain",
    "explain_log": "_diagnose",
    "find_batch_size": "_batch",
    "fit": "_fit",
    "install": "_explain",
    "library": "_program",
    "limit": "_limit",
    "load_ipython_extension": "_notebook",
    "plan": "_plan",
    "program": "_program",
    "ps": "_diagnose",
    "refusals": "_limit",
    "report": "_diagnose",
    "torch": "torch",
    "torch_trace": "_trace",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from ._program import package_version

        return package_version()
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError("module 'memfit' has no attribute %r" % name)
    import importlib

    module = importlib.import_module("." + where, __name__)
    value = module if name == where else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted(__all__)


__all__ = [
    "Answer",
    "BatchSize",
    "DoesNotFitError",
    "Error",
    "InputError",
    "LateError",
    "Limited",
    "Plan",
    "ProgramNotFoundError",
    "Record",
    "RunError",
    "Suggestion",
    "TorchTrace",
    "UnsupportedError",
    "UsageError",
    "VersionWarning",
    "Watch",
    "__version__",
    "doctor",
    "explain",
    "explain_log",
    "find_batch_size",
    "fit",
    "install",
    "library",
    "limit",
    "load_ipython_extension",
    "plan",
    "program",
    "ps",
    "refusals",
    "report",
    "torch",
    "torch_trace",
]
