"""Explains a framework's out-of-memory error where the user works: the cause, the owners and the line to change.

The program gets the text that the user would see: the last part of what was printed, the traceback, and a line of
figures that only the living process knows (PyTorch's allocator, its settings). memfit never prints this text again and
sends it nowhere.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import threading
import traceback
from types import TracebackType
from typing import Any, Callable, Iterator, List, Optional, TextIO, Tuple, Type, cast

from . import _program
from ._answer import Answer
from .errors import Error

_MEMORY = re.compile(
    r"out of memory|OutOfMemory|RESOURCE_EXHAUSTED|ResourceExhausted|OOM when allocating|"
    r"CUBLAS_STATUS_ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED|CUDNN_STATUS_(ALLOC_FAILED|INTERNAL_ERROR|NOT_INITIALIZED)|"
    r"CUSOLVER_STATUS_(ALLOC_FAILED|INTERNAL_ERROR)|CUFFT_ALLOC_FAILED|failed to allocate|Unable to allocate|DefaultCPUAllocator|"
    r"INTERNAL ASSERT FAILED at .*CUDACachingAllocator|can't allocate memory|Cannot allocate memory|std::bad_alloc|bad allocation",
    re.I,
)
_VARIABLES = re.compile(r"^(PYTORCH_.*ALLOC.*|XLA_PYTHON_CLIENT_.*|TF_.*GPU_ALLOC.*|TF_FORCE_GPU_ALLOW_GROWTH|CUDA_VISIBLE_DEVICES)$")
KEPT_CHARACTERS = 256 * 1024


def is_out_of_memory(error: Optional[BaseException]) -> bool:
    """Does this error say that memory was short, in any framework's words? Errors it was raised from count too."""
    seen: List[BaseException] = []
    while error is not None and not any(error is e for e in seen):
        seen.append(error)
        if isinstance(error, MemoryError) or _MEMORY.search("%s: %s" % (type(error).__name__, str(error)[:20000])):
            return True
        error = error.__cause__ or error.__context__
    return False


class _Tail:
    """A stream that passes everything on and remembers the end of it."""

    def __init__(self, stream: TextIO, kept: List[str]) -> None:
        self._stream = stream
        self._kept = kept
        self._since = 0  # characters, since what is kept was cut

    def write(self, text: str) -> int:
        self._kept.append(text[-KEPT_CHARACTERS:])
        self._since += len(text)
        if self._since > KEPT_CHARACTERS or len(self._kept) > 4096:
            self._kept[:] = ["".join(self._kept)[-KEPT_CHARACTERS:]]
            self._since = 0
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def living_facts(error: Optional[BaseException] = None) -> str:
    """What only the process knows, in the words of a log. Empty when no framework is loaded."""
    lines = ["%s=%s" % (k, v) for k, v in sorted(os.environ.items()) if _VARIABLES.match(k)]
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            lines.append(
                "allocated %d MiB, reserved %d MiB" % (torch.cuda.memory_allocated() >> 20, torch.cuda.memory_reserved() >> 20)
            )
    except Exception:  # figures are an extra: with another allocator PyTorch has none
        pass
    try:
        if "memfit._limit" in sys.modules:  # this process may be held to a part of the card
            lines.append(sys.modules["memfit._limit"].refusals())
    except Error:
        pass
    try:
        lines += _jax_pool(str(error))
    except Exception:
        pass
    return "\n".join(lines)


_ASKED = re.compile(r"(?:trying to allocate|Out of memory allocating) ([0-9.]+ ?(?:[KMGT]i?B)?)")


def _jax_pool(told: str) -> List[str]:
    """Finds out why XLA's pool refused a request that it has room for. XLA prints the reason past Python, so we ask
    here.

    If the card has no room because others hold it, the driver has refused. Otherwise the pool is fragmented: by now the
    failed step has given its own memory back, so we make the request once more, alone; only a second refusal counts.
    """
    from ._measure import jax_has_begun, size_bytes

    jax: Any = sys.modules.get("jax")
    asked = _ASKED.search(told)
    if jax is None or asked is None or not jax_has_begun():
        return []
    device = jax.local_devices()[0]
    stats = device.memory_stats() if device.platform != "cpu" else None
    limit, in_use = (int((stats or {}).get(key, 0)) for key in ("bytes_limit", "bytes_in_use"))
    request = size_bytes(asked.group(1))
    if not limit or in_use + request > limit - limit // 64:
        return []
    pool = int((stats or {}).get("pool_bytes", 0))
    refused = _driver_refused(request, pool) if request > pool - in_use else []
    if refused:
        return refused
    try:
        jax.block_until_ready(jax.numpy.zeros((request,), dtype="uint8"))
    except Exception as e:
        return ["Limit: %d" % limit, "InUse: %d" % in_use] if is_out_of_memory(e) else []
    return []


def _driver_refused(request: int, pool: int) -> List[str]:
    """What XLA prints when the driver refuses its pool, and who holds the memory: other processes, or PyTorch in this
    one."""
    from ._diagnose import ps

    try:
        told = ps().to_dict()
    except Error:  # no driver that tells
        return []
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    card = next((g for g in told["gpus"] if first == str(g["index"]) or g["uuid"].startswith(first)), None)
    if card is None:
        return []
    free = int(card["free_bytes"])
    held = {p["pid"]: int(p["bytes"] or 0) for p in told["processes"] if p["gpu"] == card["index"]}
    here = max(held.pop(os.getpid(), 0) - pool, _torch_reserved())
    others = sum(held.values())
    if request <= free or request > free + here + others or max(here, others) < 512 << 20:
        return []
    lines = ["Failed to allocate device memory of %d bytes: CUDA_ERROR_OUT_OF_MEMORY: out of memory" % request]
    if here > others and _torch_reserved():
        lines.append("torch holds %d MiB in this process" % (_torch_reserved() >> 20))
    return lines


def _torch_reserved() -> int:
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            return sum(int(torch.cuda.memory_reserved(i)) for i in range(torch.cuda.device_count()))
    except Exception:  # with another allocator PyTorch has no figures
        pass
    return 0


def explain_error(error: BaseException, printed: str = "") -> Optional[Answer]:
    """The program's explanation of a live exception; None if the program finds no failure in it."""
    told = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    text = "\n".join(part for part in (living_facts(error), printed[-KEPT_CHARACTERS:], told) if part) + "\n"

    def shown() -> str:
        status, out, err = _program.run(["explain", "-"], text)
        if status:
            raise _program.error_of(status, out, err)
        return out

    try:
        return Answer(_program.ask(["explain", "-"], text), shown)
    except Error:
        return None


class Explained:
    """What `explain()` returns; it has `answer` once a failure has passed."""

    def __init__(self) -> None:
        self.answer: Optional[Answer] = None
        self.released_bytes: Optional[int] = None


@contextlib.contextmanager
def explain(*, release: bool = False, show: Optional[Callable[[str], None]] = None) -> Iterator[Explained]:
    """`with memfit.explain(): model.fit(...)`: explains an out-of-memory error and passes it on.

    `release=True` also releases what the traceback's frames hold (the tensors of the failed step); a debugger then
    finds no variables in them. `show` gets the text instead of standard error.
    """
    said = Explained()
    kept: List[str] = []
    out, err = sys.stdout, sys.stderr
    tails = _Tail(out, kept), _Tail(err, kept)
    sys.stdout, sys.stderr = cast(Tuple[TextIO, TextIO], tails)
    try:
        yield said
    except BaseException as e:
        _give_back(tails, out, err)
        if is_out_of_memory(e):
            _tell(e, "".join(kept), said, release, show)
        raise
    finally:
        _give_back(tails, out, err)


def _give_back(tails: Any, out: TextIO, err: TextIO) -> None:
    if sys.stdout is tails[0]:
        sys.stdout = out
    if sys.stderr is tails[1]:
        sys.stderr = err


def _tell(
    e: BaseException, printed: str, said: Explained, release: bool, show: Optional[Callable[[str], None]] = None
) -> None:
    said.answer = explain_error(e, printed)
    if said.answer is not None:
        (show or _show)("\nmemfit: why this ran out of memory\n" + str(said.answer) + "\n")
    if release:
        said.released_bytes = release_frames(e)
        (show or _show)(
            "memfit: the frames of the failed call let go of what they held: %.2f GiB came back (%%debug finds no variables in them)\n"
            % (said.released_bytes / 2**30)
        )


def _show(text: str) -> None:
    print(text, file=sys.stderr)


def in_use_bytes() -> int:
    """The process's own resident memory, plus what PyTorch holds on its cards."""
    return resident_bytes() + _torch_reserved()


def resident_bytes() -> int:
    """Anonymous and shared resident memory of this process, as the system counts it."""
    with open("/proc/self/statm", "rb") as f:
        _, resident, files = (int(n) for n in f.read().split()[:3])
    page = os.sysconf("SC_PAGE_SIZE")
    return (resident - files) * page


def release_frames(error: BaseException) -> int:
    """Empties the frames that an exception keeps alive and gives cached memory back. Returns the bytes released."""
    before = in_use_bytes()
    seen: List[BaseException] = []
    follow: List[Optional[BaseException]] = [error]
    while follow:
        e = follow.pop()
        if e is None or any(e is s for s in seen):
            continue
        seen.append(e)
        _empty(e.__traceback__)
        follow += [e.__cause__, e.__context__]
    gc.collect()
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    except Exception:
        pass
    return max(0, before - in_use_bytes())


def _empty(tb: Optional[TracebackType]) -> None:
    """Clears the variables of every frame that has ended. Before Python 3.13 a look at f_locals left a copy there;
    another look updates the copy, which is then empty."""
    while tb is not None:
        try:
            tb.tb_frame.clear()
            tb.tb_frame.f_locals
        except RuntimeError:  # still running
            pass
        tb = tb.tb_next


_installed: List[Any] = []


def install(*, release: bool = False) -> None:
    """Explains every out-of-memory error that ends the program, a thread or a notebook's cell from now on. May be
    called twice."""
    if _installed:
        return
    shell = _shell()
    if shell is not None:
        from ._notebook import watch_cells

        _installed.append(watch_cells(shell, release))
        return
    before, before_thread = sys.excepthook, threading.excepthook

    def hook(kind: Type[BaseException], error: BaseException, tb: Optional[TracebackType]) -> None:
        before(kind, error, tb)
        if is_out_of_memory(error):
            _tell(error, "", Explained(), release)

    def thread_hook(args: Any) -> None:
        before_thread(args)
        if args.exc_value is not None and is_out_of_memory(args.exc_value):
            _tell(args.exc_value, "", Explained(), release)

    sys.excepthook, threading.excepthook = hook, thread_hook
    _installed.append((hook, thread_hook))


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None
