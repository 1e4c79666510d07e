"""memfit.limit: limits this process on a card, at the driver's functions where possible, else by each framework's own
switch; the answer says what such a switch does not cover."""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import sys
import tempfile
from types import TracebackType
from typing import Any, List, NamedTuple, Optional, Type, Union

from . import _diagnose, _program
from ._explain import is_out_of_memory
from ._measure import jax_has_begun, mib, size_bytes, tensorflow_has_begun
from .errors import Error, LateError, UnsupportedError, UsageError

_DRIVER = "the driver's functions (libmemfit-govern.so): this process and those it starts see a card of %s, and get no more"
_UNSEEN = "what the driver takes by itself beyond 576 MiB a process (kernels, CUDA graphs) is seen when the next memory is asked for: it can pass the limit until then"
_OUTSIDE = "the context, cuBLAS's and cuDNN's handles and workspaces and loaded kernels come on top (about 0.3 to 0.9 GiB)"


class Limited(NamedTuple):
    """What a call of limit() did."""

    bytes: int
    switches: List[str]
    not_covered: List[str]

    def __str__(self) -> str:
        lines = ["limit of %s" % mib(self.bytes)]
        lines += ["  set: " + s for s in self.switches]
        lines += ["  not covered: " + n for n in self.not_covered]
        return "\n".join(lines)


def limit(memory: Union[str, int], *, device: int = 0, total: Union[str, int, None] = None) -> Limited:
    """Limits this process, and those it starts, to `memory` on a card. Call it before the first use of the card.

    If nothing has used the driver yet, memfit limits the driver's functions that take memory: every framework and
    library sees a card of that size, and a second call changes the limit. Otherwise, and with `total` (the card's size,
    where memfit cannot ask for it), memfit tells PyTorch, TensorFlow and JAX, by their own functions or by the
    variables that they read at their start.
    """
    whole = size_bytes(total) if total is not None else _card_bytes(device)
    wanted = size_bytes(memory, whole)
    if whole is not None and wanted > whole:
        raise UsageError("a limit of %s is above the card's %s: it would be none" % (mib(wanted), mib(whole)))
    attached = _attach(wanted) if total is None and whole is not None else "the card's size was given, not asked for"
    if attached is None:
        return Limited(wanted, [_DRIVER % mib(wanted)], [_UNSEEN])
    _refuse_when_late()
    switches: List[str] = []
    missing: List[str] = [_OUTSIDE + "; the driver's functions are not limited: " + attached]
    _limit_torch(wanted, whole, device, switches, missing)
    _limit_tensorflow(wanted, device, switches, missing)
    _limit_jax(wanted, whole, switches, missing)
    return Limited(wanted, switches, missing)


_attached_by: Optional[int] = None  # the process that did


def _attach(wanted: int) -> Optional[str]:
    """Puts libmemfit-govern.so in front of the driver. Returns None, or the reason why it could not."""
    global _attached_by
    try:
        path = os.path.join(os.path.dirname(_program.program()), "libmemfit-govern.so")
        library = ctypes.CDLL(path)
        attach = library.memfit_govern_attach
    except (OSError, AttributeError, Error):
        return "libmemfit-govern.so is not beside the program"
    attach.argtypes = [ctypes.c_uint64]
    if _attached_by == os.getpid():
        attach(wanted)
        return None
    before = {name: os.environ.get(name) for name in ("MEMFIT_GOVERN", "MEMFIT_GOVERN_FACTS", "MEMFIT_GOVERN_LOOK", "LD_PRELOAD")}
    folder = tempfile.mkdtemp(prefix="memfit-limit-", dir=os.environ.get("XDG_RUNTIME_DIR") or None)
    os.environ["MEMFIT_GOVERN"] = os.path.join(folder, "share")
    os.environ["MEMFIT_GOVERN_FACTS"] = os.path.join(folder, "facts")
    os.environ["MEMFIT_GOVERN_LOOK"] = "1"  # nobody watches: each process looks itself what the driver takes
    code = attach(wanted)
    if code == 0:
        _attached_by = os.getpid()
        os.environ["LD_PRELOAD"] = ":".join(p for p in (path, before["LD_PRELOAD"]) if p)  # for processes that are started later
        _program.kept_back += ["MEMFIT_GOVERN", "MEMFIT_GOVERN_FACTS"]
        atexit.register(_end, folder, _attached_by)
        _tell_at_the_end()
        return None
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    shutil.rmtree(folder, ignore_errors=True)
    return {1: "the driver is in use already", 2: "no place for the limit's files", 4: "memfit run has done so"}.get(code, "status %d" % code)


_failed = False


def _tell_at_the_end() -> None:
    """When an error ends the program, prints the story of the last refusal after the traceback, like memfit run."""
    before = sys.excepthook

    def hook(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        global _failed
        _failed = _failed or is_out_of_memory(error) or (not issubclass(kind, KeyboardInterrupt) and _has_refused())
        before(kind, error, trace)

    sys.excepthook = hook


def _facts() -> str:
    path = os.environ.get("MEMFIT_GOVERN_FACTS", "")
    return path if _attached_by is not None and os.path.exists(path) else ""


def _has_refused() -> bool:
    facts = _facts()
    try:
        return bool(facts) and bool(_program.ask(["run", "--json", "--story", facts])["denied"])
    except Error:
        return False


def refusals() -> str:
    """The last request that this process's limit refused, and who held what then; if it refused none, who holds what
    now."""
    facts = _facts()
    if not facts:
        return ""
    status, out, err = _program.run(["run", "--story", facts])
    if status:
        raise _program.error_of(status, out, err)
    return err


def _end(folder: str, process: int) -> None:
    if os.getpid() != process:
        return
    if _failed:
        try:
            sys.stderr.write(refusals())
        except (Error, OSError, ValueError):  # the program's own error stands above: a story is an extra
            pass
    shutil.rmtree(folder, ignore_errors=True)


def _card_bytes(device: int) -> Optional[int]:
    try:
        gpus = _diagnose.doctor().to_dict().get("gpus", [])
    except Error:
        return None
    return int(gpus[device]["total_bytes"]) if device < len(gpus) else None


def _refuse_when_late() -> None:
    """Checks all frameworks before the first is limited, so that nothing is half done."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and torch.cuda.memory_reserved():
        raise LateError("PyTorch already holds %s of the card" % mib(torch.cuda.memory_reserved()), "call memfit.limit before the first tensor on it")
    tf: Any = sys.modules.get("tensorflow")
    if tf is not None and tensorflow_has_begun() and tf.config.list_physical_devices("GPU"):
        raise LateError("TensorFlow has begun to use its devices", "call memfit.limit right after import tensorflow")
    if jax_has_begun():
        raise LateError("JAX has begun to use its devices", "call memfit.limit before the first array")
    if tf is not None and not hasattr(getattr(tf, "config", None), "LogicalDeviceConfiguration"):
        raise UnsupportedError(
            "TensorFlow %s is not known to memfit: it has no tf.config.LogicalDeviceConfiguration" % getattr(tf, "__version__", "of an unknown version"),
            "memfit run --memory limits any version",
        )


def _limit_torch(wanted: int, whole: Optional[int], device: int, switches: List[str], missing: List[str]) -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        part = wanted / int(torch.cuda.get_device_properties(device).total_memory)
        torch.cuda.set_per_process_memory_fraction(min(1.0, part), device)
        switches.append("torch.cuda.set_per_process_memory_fraction(%.4f, %d)" % (min(1.0, part), device))
    elif torch is None and whole:
        _set_variable("PYTORCH_CUDA_ALLOC_CONF", "per_process_memory_fraction:%.4f" % (wanted / whole), switches, joined=True)
        missing.append("PyTorch before 2.10 does not read per_process_memory_fraction: import torch first, then call memfit.limit")
    elif torch is None:
        missing.append("PyTorch, if it is imported later: the card's size is not known here, so no fraction can be given (total=...)")


def _limit_tensorflow(wanted: int, device: int, switches: List[str], missing: List[str]) -> None:
    tf: Any = sys.modules.get("tensorflow")
    if tf is None:
        missing.append("TensorFlow, if it is imported later: it has no variable for a limit; import it first, then call memfit.limit")
        return
    cards = tf.config.list_physical_devices("GPU")
    if device >= len(cards):
        return
    megabytes = wanted >> 20
    try:
        tf.config.set_logical_device_configuration(cards[device], [tf.config.LogicalDeviceConfiguration(memory_limit=megabytes)])
    except RuntimeError as e:
        raise LateError("TensorFlow: %s" % e, "call memfit.limit right after import tensorflow") from e
    switches.append("tf.config.LogicalDeviceConfiguration(memory_limit=%d)" % megabytes)


def _limit_jax(wanted: int, whole: Optional[int], switches: List[str], missing: List[str]) -> None:
    if whole:
        _set_variable("XLA_PYTHON_CLIENT_MEM_FRACTION", "%.4f" % (wanted / whole), switches)
    else:
        missing.append("JAX: the card's size is not known here, so no fraction can be given (total=...)")


def _set_variable(name: str, value: str, switches: List[str], joined: bool = False) -> None:
    old = os.environ.get(name)
    os.environ[name] = "%s,%s" % (old, value) if joined and old else value
    switches.append("%s=%s" % (name, os.environ[name]))
