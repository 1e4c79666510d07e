"""PyTorch on memfit's pool: `memfit.torch.use()` before the first tensor on the card.

    mode="pluggable"   every allocation goes to the pool: the best ratio of held to live memory. memory_allocated() and its
                       like answer from the pool's books; what PyTorch forbids any pluggable allocator stays forbidden
                       (docs/pytorch.md has the table).
    mode="mempool"     PyTorch's own allocator stays on top and takes its segments from the pool: its statistics,
                       cudnn.benchmark and graph capture work as ever; its cache is its own, so memfit promises no
                       ratio.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

from . import _program
from ._measure import mib
from ._versions import number
from .errors import LateError, ProgramNotFoundError, RunError, UnsupportedError, UsageError

_FIELDS = (
    "in_use_bytes",
    "peak_in_use_bytes",
    "reserved_bytes",
    "peak_reserved_bytes",
    "fixed_bytes",
    "remaps",
    "remapped_pages",
    "created_pages",
    "stream_waits",
    "allocations",
    "failures",
)
_SETTERS = (
    ("set_record_stream_fn", "record_stream"),
    ("set_begin_allocate_to_pool", "begin_pool"),
    ("set_end_allocate_to_pool_fn", "end_pool"),
    ("set_release_pool", "release_pool"),
    ("set_reset_fn", "empty_cache"),
)
_state: Dict[str, Any] = {}


def in_use() -> Optional[str]:
    """The mode that use() was called with, or None."""
    return _state.get("mode")


def use(
    mode: str = "pluggable",
    *,
    memory: Union[str, int, None] = None,
    policy: Optional[str] = None,
    trace: Optional[str] = None,
    owners: bool = True,
) -> None:
    """Takes PyTorch's memory from memfit's pool from now on. `memory` limits the whole process, as nvidia-smi shows it.

    With `owners` explanations name the module that asked (hooks on every module: some microseconds a call).
    """
    if mode not in ("pluggable", "mempool"):
        raise UsageError("mode %r: pluggable or mempool" % mode)
    if _state:
        if _state["mode"] == mode:
            return
        raise LateError("PyTorch already runs on memfit's pool in mode %s" % _state["mode"], "a process has one mode")
    torch = _torch()
    path = _program.library()
    if path is None:
        raise ProgramNotFoundError("libmemfit.so is not in this package", "install a wheel, or set MEMFIT_LIBRARY")
    if torch.cuda.is_initialized():
        raise LateError(
            "PyTorch has used the card already: its allocator can no longer be changed",
            "call memfit.torch.use() right after import torch",
        )
    if not torch.cuda.is_available():
        raise RunError("PyTorch sees no CUDA card here", "memfit.doctor() says what this machine has")
    library, allocator, calls = _prepared(torch, path, mode)
    for name, value in (("MEMFIT_MEMORY", memory), ("MEMFIT_POLICY", policy), ("MEMFIT_TRACE", trace)):
        if value is not None:
            os.environ[name] = str(value)
    for setter, address in calls:
        setter(address)
    _state.update(mode=mode, library=library, allocator=allocator, torch=torch)
    if mode == "pluggable":
        torch.cuda.memory.change_current_allocator(allocator)
        _answer_statistics(torch)
    else:
        _route_everything(torch, allocator)
    if owners and mode == "pluggable" and hasattr(library, "memfit_torch_owner"):
        _name_owners(torch, library)


def _torch() -> Any:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        try:
            import torch as found
        except ImportError as e:
            raise RunError("PyTorch is not installed") from e
        torch = found
    if number(torch.__version__) < (2, 1) or not hasattr(torch.cuda.memory, "CUDAPluggableAllocator"):
        raise UnsupportedError("PyTorch %s has no pluggable allocators" % torch.__version__, "2.1 or newer is needed")
    return torch


def _prepared(torch: Any, path: str, mode: str) -> Tuple[Any, Any, List[Tuple[Callable[..., None], Any]]]:
    """The library, PyTorch's allocator on it, and the functions to set. Refuses a PyTorch or a library without one of
    the functions before it changes anything."""
    if mode == "mempool" and not (hasattr(torch._C, "_cuda_beginAllocateToPool") and hasattr(torch.cuda, "MemPool")):
        raise UnsupportedError("PyTorch %s cannot route all threads to a pool" % torch.__version__, 'use mode="pluggable"')
    try:
        library = ctypes.CDLL(path)
        functions = {name: ctypes.cast(getattr(library, "memfit_torch_" + name), ctypes.c_void_p).value for _, name in _SETTERS}
    except (OSError, AttributeError) as e:
        raise RunError("%s cannot be used: %s" % (path, e), "install memfit anew, or set MEMFIT_LIBRARY to the libmemfit.so of this version") from e
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "memfit_torch_alloc", "memfit_torch_free")
    calls: List[Tuple[Callable[..., None], Any]] = []
    for setter, name in _SETTERS:
        if mode == "mempool" and name in ("begin_pool", "end_pool", "release_pool"):
            continue  # PyTorch's own allocator keeps graphs apart
        tell = getattr(allocator.allocator(), setter, None)
        if tell is None:
            raise UnsupportedError(
                "PyTorch %s is not known to memfit: its pluggable allocator has no %s" % (torch.__version__, setter),
                "nothing was changed; memfit.torch.use() was run with PyTorch 2.11",
            )
        calls.append((tell, functions[name]))
    return library, allocator, calls


def _route_everything(torch: Any, allocator: Any) -> None:
    """Routes all threads' requests, the backward pass's too; torch.cuda.use_mem_pool routes those of one thread."""
    pool = torch.cuda.MemPool(allocator.allocator())
    torch.cuda.init()
    for device in range(torch.cuda.device_count()):
        torch._C._cuda_beginAllocateToPool(device, pool.id)
    _state["pool"] = pool  # must outlive every tensor


def statistics(device: int = 0) -> Dict[str, int]:
    """The pool's books of one card: bytes in use and reserved with their peaks, fixed cost, counts."""
    if not _state:
        raise UsageError("PyTorch does not run on memfit's pool", "memfit.torch.use() first")
    values = (ctypes.c_uint64 * len(_FIELDS))()
    stats = _state["library"].memfit_torch_stats
    stats.restype = ctypes.c_size_t
    stats.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]
    stats(device, values, len(_FIELDS))
    return dict(zip(_FIELDS, values))


def trim(device: int = 0) -> None:
    """Gives idle pages back to the card."""
    if _state:
        _state["library"].memfit_torch_trim(ctypes.c_int(device))


class _OwnerInfo(ctypes.Structure):
    """memfit_owner_info of memfit/pool.h."""

    _fields_ = [
        ("owner", ctypes.c_uint32),
        ("kind", ctypes.c_int),
        ("name", ctypes.c_char * 64),
        ("bytes", ctypes.c_uint64),
        ("peak_bytes", ctypes.c_uint64),
        ("blocks", ctypes.c_uint64),
        ("allocations", ctypes.c_uint64),
        ("grown_marks", ctypes.c_uint32),
        ("reserved0", ctypes.c_uint32),
        ("reserved", ctypes.c_uint64 * 4),
    ]


def owners(device: int = 0, most: int = 64) -> List[Tuple[str, int]]:
    """Who holds the card's memory now, most bytes first: modules by their path, `backward of` them, "pytorch" for the
    rest."""
    if not _state:
        raise UsageError("PyTorch does not run on memfit's pool", "memfit.torch.use() first")
    table = (_OwnerInfo * most)()
    ask = _state["library"].memfit_torch_owners
    ask.restype = ctypes.c_size_t
    ask.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    count = min(most, int(ask(device, ctypes.byref(table), ctypes.sizeof(_OwnerInfo), most)))
    return [(table[i].name.decode("utf-8", "replace"), int(table[i].bytes)) for i in range(count) if table[i].bytes]


def _answer_statistics(torch: Any) -> None:
    """memory_allocated() and its like answer from the pool's books instead of raising."""
    def number(device: Any) -> int:
        return int(torch.cuda._utils._get_device_index(device, optional=True))

    def stats(device: Any = None) -> Dict[str, int]:
        s = statistics(number(device))
        return {
            "allocated_bytes.all.current": s["in_use_bytes"],
            "allocated_bytes.all.peak": s["peak_in_use_bytes"],
            "reserved_bytes.all.current": s["reserved_bytes"],
            "reserved_bytes.all.peak": s["peak_reserved_bytes"],
            "num_alloc_retries": s["remaps"],
            "num_ooms": s["failures"],
            "allocation.all.allocated": s["allocations"],
        }

    def summary(device: Any = None, abbreviated: bool = False) -> str:
        s = statistics(number(device))
        return "memfit's pool on card %d\n%s" % (
            number(device),
            "\n".join("  %-20s %s" % (k, mib(v) if k.endswith("bytes") else v) for k, v in s.items()),
        )

    answers: Dict[str, Callable[..., Any]] = {
        "memory_allocated": lambda device=None: statistics(number(device))["in_use_bytes"],
        "max_memory_allocated": lambda device=None: statistics(number(device))["peak_in_use_bytes"],
        "memory_reserved": lambda device=None: statistics(number(device))["reserved_bytes"],
        "max_memory_reserved": lambda device=None: statistics(number(device))["peak_reserved_bytes"],
        "reset_peak_memory_stats": lambda device=None: _state["library"].memfit_torch_reset_peaks(ctypes.c_int(number(device))),
        "memory_stats": stats,
        "memory_summary": summary,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
        setattr(torch.cuda.memory, name, answer)


def _name_owners(torch: Any, library: Any) -> None:
    """Lets every module name what is allocated while it runs, forward and backward."""
    name_it = library.memfit_torch_owner
    name_it.argtypes = [ctypes.c_char_p]
    name_it.restype = None
    names: Dict[int, bytes] = {}
    alive: Dict[int, Any] = {}  # an address may be another module's once this one is gone
    running: List[bytes] = []
    hooks = torch.nn.modules.module

    def gone(key: int, _: Any) -> None:
        names.pop(key, None)
        alive.pop(key, None)

    def learn(root: Any) -> None:
        for path, module in root.named_modules():
            alive[id(module)] = weakref.ref(module, functools.partial(gone, id(module)))
            names[id(module)] = ("%s (%s)" % (path or type(module).__name__, type(module).__name__)).encode()

    def enter(module: Any, inputs: Any) -> None:
        if id(module) not in names:
            learn(module)
        running.append(names[id(module)])
        name_it(running[-1])

    def leave(module: Any, inputs: Any, output: Any) -> None:
        if running:
            running.pop()
        name_it(running[-1] if running else None)

    def enter_backward(module: Any, grads: Any) -> None:
        name_it(b"backward of " + names.get(id(module), type(module).__name__.encode()))

    hooks.register_module_forward_pre_hook(enter)
    hooks.register_module_forward_hook(leave, always_call=True)
    hooks.register_module_full_backward_pre_hook(enter_backward)
    hooks.register_module_full_backward_hook(lambda module, inputs, outputs: name_it(None))
