"""What can go wrong, one class for each exit status of the program. The message is the program's own."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Tuple, Type


class Error(Exception):
    """The program's message; `hint` says what to do, `code` is the program's name for it."""

    def __init__(self, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(message + ("\n  " + hint if hint else ""))
        self.message = message
        self.hint = hint
        self.code = code

    def __reduce__(self) -> Tuple[Any, ...]:
        """For pickling: a pool of workers passes exceptions between processes."""
        return type(self), (self.message, self.hint, self.code)


class RunError(Error):
    """Something failed while it ran: no driver, a full disk (exit status 1)."""


class UsageError(Error, ValueError):
    """A wrong argument (exit status 2)."""


class DoesNotFitError(Error, MemoryError):
    """Does not fit the limit (exit status 3). `plan` never raises it: there it is the answer."""


class UnsupportedError(Error, NotImplementedError):
    """The model uses something that is not supported, or the feature is not built yet (exit status 4)."""


class InputError(Error, ValueError):
    """A file is missing or damaged, or a model cannot be read (exit status 5)."""


class ProgramNotFoundError(Error, FileNotFoundError):
    """The program `memfit` is missing, or does not answer."""


class LateError(Error, RuntimeError):
    """Called too late: it must come before the framework's first use of the card."""


class VersionWarning(UserWarning):
    """The loaded framework has another version than the one that memfit models: its figures may be further off."""


BY_STATUS: Dict[int, Type[Error]] = {
    1: RunError,
    2: UsageError,
    3: DoesNotFitError,
    4: UnsupportedError,
    5: InputError,
}
