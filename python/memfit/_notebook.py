"""`%load_ext memfit`: explains the failure of a cell below it; `%%memfit` shows what a cell took.

After a cell has failed, IPython keeps its traceback, the traceback keeps the frames, and the frames keep the tensors:
the next cell fails too. With `%memfit release on` memfit empties the frames and prints how many bytes came back. %debug
then finds nothing for this failure, so it is not the default.
"""

from __future__ import annotations

import shlex
import sys
import time
from typing import Any, Callable, Dict

from ._answer import Answer
from ._explain import explain_error, in_use_bytes, is_out_of_memory, release_frames


def _display(value: object) -> None:
    ipython = sys.modules.get("IPython")
    if ipython is not None:
        ipython.display.display(value)
    else:
        print(value)


def watch_cells(shell: Any, release: bool) -> Callable[[Any], None]:
    """After each cell: if it ran out of memory, prints why below its traceback."""
    settings: Dict[str, bool] = {"release": release}

    def after(result: Any) -> None:
        error = getattr(result, "error_in_exec", None)
        if error is None or not is_out_of_memory(error):
            return
        answer = explain_error(error)
        if answer is not None:
            print("memfit: why this cell ran out of memory")
            _display(answer)
        if settings["release"]:
            back = release_frames(error)
            _forget(shell)
            print("memfit: %.2f GiB came back from the frames of the failed cell (%%debug finds no variables there)" % (back / 2**30))

    shell.events.register("post_run_cell", after)
    shell.user_ns_hidden["_memfit_settings"] = settings
    return after


def _forget(shell: Any) -> None:
    """IPython's own places for the last failure."""
    for name in ("last_traceback", "last_value", "last_type", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    painter = getattr(shell, "InteractiveTB", None)
    if painter is not None and hasattr(painter, "tb"):
        painter.tb = None


def load_ipython_extension(shell: Any) -> None:
    """%load_ext memfit."""
    from ._explain import _installed

    if not _installed:
        _installed.append(watch_cells(shell, False))
    settings = shell.user_ns_hidden.get("_memfit_settings", {})

    def line_magic(line: str) -> Any:
        """%memfit release on|off;  %memfit doctor;  %memfit ps;  %memfit plan FILE ..."""
        words = shlex.split(line)
        if words[:1] == ["release"]:
            if words[1:] not in (["on"], ["off"]):
                return "frames of failed cells are %s (%%memfit release on|off)" % ("emptied" if settings.get("release") else "kept")
            settings["release"] = words[1:] == ["on"]
            kept = getattr(sys, "last_value", None)
            if settings["release"] and kept is not None:
                print("memfit: %.2f GiB came back from the frames of the last failure" % (release_frames(kept) / 2**30))
                del kept
                _forget(shell)
            return "frames of failed cells are emptied" if settings["release"] else "frames of failed cells are kept"
        from . import _program

        status, out, err = _program.run(words or ["--help"])
        print(out + err, end="")
        return None

    def cell_magic(line: str, cell: str) -> None:
        """%%memfit: runs the cell and prints what it took and what it kept."""
        before, began = in_use_bytes(), time.perf_counter()
        highest_reset = _reset_highest()
        shell.run_cell(cell)
        kept = in_use_bytes() - before
        text = "memfit: %.2f s, %+.1f MiB kept by the cell" % (time.perf_counter() - began, kept / 2**20)
        if highest_reset:
            text += ", %.1f MiB at its highest" % max(0.0, (_highest() - before) / 2**20)
        print(text)

    shell.register_magic_function(line_magic, "line", "memfit")
    shell.register_magic_function(cell_magic, "cell", "memfit")


def _reset_highest() -> bool:
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as f:
            f.write("5")
        return True
    except OSError:
        return False


def _highest() -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as f:
        for line in f:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


__all__ = ["Answer", "load_ipython_extension", "watch_cells"]
