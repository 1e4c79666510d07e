"""What `memfit doctor`, `ps`, `explain` and `report` answer."""

from __future__ import annotations

import os
from typing import List, Optional, Union

from . import _program
from ._answer import Answer
from .errors import UsageError

Path = Union[str, "os.PathLike[str]"]


def _answer(arguments: List[str], stdin: Optional[str] = None) -> Answer:
    folder = _program.here()

    def text() -> str:
        status, out, err = _program.run(arguments, stdin, folder=folder)
        if status:
            raise _program.error_of(status, out, err)
        return out

    return Answer(_program.ask(arguments, stdin), text)


def doctor(save: Optional[Path] = None, compare: Optional[Path] = None) -> Answer:
    """Is this machine set up right? `verdict`, `checks`, `gpus`, `processes`."""
    options = {"save": _program.path_word(save) if save else None, "compare": _program.path_word(compare) if compare else None}
    return _answer(["doctor", *_program.option_list(dict(options))])


def ps() -> Answer:
    """Who uses the cards. Raises RunError without an NVIDIA driver."""
    return _answer(["ps"])


def _is_text(log: str) -> bool:
    """A text, not a path: several lines, or one line that no file is called and that has no file's ending."""
    if "\n" in log:
        return True
    ending = os.path.splitext(log)[1]
    words = len(log) > 120 or (" " in log and (not ending or " " in ending))
    return words and not os.path.exists(log)


def explain_log(log: Union[Path, bytes], model: Optional[Path] = None, batch_size: Optional[int] = None) -> Answer:
    """Why did it run out of memory? `log` is what was printed (a text, or its bytes), or the path of a log, snapshot or trace."""
    options = _program.option_list({"model": _program.path_word(model) if model else None, "batch_size": batch_size})
    if isinstance(log, (bytes, bytearray)):  # of a program's pipe
        log = log.decode("utf-8", "replace") + "\n"
    if isinstance(log, str) and not log.strip():
        raise UsageError("the log is empty", "give what the program printed, or the path of a file with it")
    if isinstance(log, str) and _is_text(log):
        return _answer(["explain", "-", *options], log)
    return _answer(["explain", _program.path_word(log), *options])


def report(trace: Path, other: Optional[Path] = None, html: Optional[Path] = None) -> Answer:
    """Memory over time of a recorded run: what was held at the peak, what grows."""
    arguments = ["report", _program.path_word(trace), *([_program.path_word(other)] if other else [])]
    return _answer([*arguments, *_program.option_list({"html": _program.path_word(html) if html else None})])
