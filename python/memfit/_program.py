"""The program behind the package: where it is, how it is asked, and its answer as an object or an exception."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from .errors import BY_STATUS, Error, ProgramNotFoundError, RunError, UsageError

# Variables that the program does not get: it tells of the card as it is, also where this process was limited.
kept_back: List[str] = []
HERE = os.path.dirname(os.path.abspath(__file__))


def _package_folder(name: str) -> Optional[str]:
    spec = importlib.util.find_spec(name)
    places = list(spec.submodule_search_locations or []) if spec else []
    return places[0] if places else None


def program() -> str:
    """The path of the program: MEMFIT_PROGRAM, else memfit-engine's, else this package's own, else what PATH has."""
    named = os.environ.get("MEMFIT_PROGRAM")
    return _find(named) if named else _find(None)


@functools.lru_cache(maxsize=None)
def _find(named: Optional[str]) -> str:
    if named:
        if os.access(named, os.X_OK):
            return named
        raise ProgramNotFoundError("MEMFIT_PROGRAM names %s, which is no program" % named)
    engine = _package_folder("memfit_engine")
    for folder in (os.path.join(engine, "_bin") if engine else None, os.path.join(HERE, "_bin")):
        path = os.path.join(folder, "memfit") if folder else ""
        if path and os.access(path, os.X_OK):
            return path
    # The command that pip installs runs this package: it is no program of its own.
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        found = shutil.which("memfit", path=folder) if folder else None
        if found and not _is_script(found):
            return found
    raise ProgramNotFoundError(
        "the program memfit is not in this package and not on PATH",
        "install a wheel (pip install memfit), or build it with make and set MEMFIT_PROGRAM to build/memfit",
    )


def _is_script(path: str) -> bool:
    try:
        with open(path, "rb") as f:
            return f.read(2) == b"#!"
    except OSError:
        return True


def library() -> Optional[str]:
    """The path of libmemfit.so: MEMFIT_LIBRARY, else this package's own, else the one beside the program."""
    named = os.environ.get("MEMFIT_LIBRARY")
    if named:
        return named
    places = [os.path.join(HERE, "_bin")]
    try:
        places.append(os.path.dirname(program()))
    except ProgramNotFoundError:
        pass
    for folder in places:
        path = os.path.join(folder, "libmemfit.so")
        if os.path.exists(path):
            return path
    return None


def error_of(status: int, out: str, err: str) -> Error:
    """The exception for a failed run of the program."""
    kind = BY_STATUS.get(status, RunError if status < 0 else Error)
    try:
        told = json.loads(out)["error"]
        return kind(told["message"], _here_hint(told.get("hint", "")), told.get("code", ""))
    except (ValueError, KeyError, TypeError):
        pass
    if status < 0:
        return kind("memfit was ended by %s and said nothing" % _signal(-status), err.strip() or _KILLED.get(-status, ""))
    lines = [line for line in err.strip().splitlines() if line.strip()]
    if lines:
        first = lines[0][len("memfit: "):] if lines[0].startswith("memfit: ") else lines[0]
        return kind(first, _here_hint("\n".join(line.strip() for line in lines[1:])))
    return kind("memfit ended with status %d and said nothing" % status)


def environment(without: Sequence[str] = ()) -> Dict[str, str]:
    """The program's environment, without colours, which notebooks ask every program for (FORCE_COLOR): we read its
    text."""
    left_out = ("FORCE_COLOR", "CLICOLOR_FORCE", "CLICOLOR", *without)
    return {**{name: value for name, value in os.environ.items() if name not in left_out}, "NO_COLOR": "1"}


_CALLED = {"train": "fit", "explain": "explain_log"}


def _here_hint(hint: str) -> str:
    """The program's hint in the words of Python."""
    return re.sub(r"^memfit (\w+) --help lists the options$", lambda m: "help(memfit.%s) lists the arguments" % _CALLED.get(m.group(1), m.group(1)), hint)


_KILLED: Dict[int, str] = {signal.SIGKILL: "the system does so when memory is short: see dmesg, or the limit of the container"}


def _signal(number: int) -> str:
    try:
        return "signal %d (%s)" % (number, signal.Signals(number).name)
    except ValueError:
        return "signal %d" % number


def run(
    arguments: Sequence[str], stdin: Optional[str] = None, pass_fds: Sequence[int] = (), folder: Optional[str] = None
) -> Tuple[int, str, str]:
    """Runs the program in `folder`; returns its status and what it printed. Never raises for what the program says."""
    path = program()
    try:
        done = subprocess.run(
            [path, *arguments],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            env=environment(kept_back),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            pass_fds=tuple(pass_fds),
            cwd=folder,
            check=False,
        )
    except OSError as e:
        raise ProgramNotFoundError("%s cannot be run: %s" % (path, e.strerror or e)) from e
    return done.returncode, done.stdout, done.stderr


def ask(
    arguments: Sequence[str], stdin: Optional[str] = None, allowed: Sequence[int] = (0,), pass_fds: Sequence[int] = ()
) -> Dict[str, Any]:
    """Returns the program's JSON object. Raises for a status that is not allowed, or an object with `error`."""
    status, out, err = run([*arguments, "--json"], stdin, pass_fds)
    try:
        answer = json.loads(out) if out.strip() else None
    except ValueError:
        answer = None
    if status not in allowed or not isinstance(answer, dict) or "error" in answer:
        raise error_of(status, out, err)
    return answer


def package_version() -> str:
    """The version of what is installed; in a source tree, the program's own."""
    import importlib.metadata

    try:
        return importlib.metadata.version("memfit")
    except importlib.metadata.PackageNotFoundError:
        pass
    status, out, err = run(["--version"])
    if status:
        raise error_of(status, out, err)
    return out.split()[-1]


def here() -> Optional[str]:
    """The folder that relative paths start from; None if it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def path_word(path: Union[str, "os.PathLike[str]"]) -> str:
    """A path as the program's argument, so that one that begins with a dash is no option."""
    name = os.fspath(path)
    return os.path.join(".", name) if name.startswith("-") else name


FLAGS = frozenset(("allow_changed_numerics", "curve"))  # options without a value


def option_list(options: Dict[str, object]) -> List[str]:
    """`{"batch_size": 8, "curve": True, "dim": {"n": 3}}` as `--batch-size 8 --curve --dim n=3`; leaves None out."""
    words: List[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if isinstance(value, (str, list, tuple)) and not value:
            raise UsageError("%s is empty" % ("card" if name == "for" else name), "leave it out, or give it a value")
        if value is True and name not in FLAGS:
            raise UsageError("%s True: it takes a value" % name)
        if value is True:
            words.append(flag)
        elif isinstance(value, dict):
            for key, item in value.items():
                words += [flag, "%s=%s" % (key, _word(item))]
        else:
            words += [flag, _word(value)]
    return words


def _word(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(_word(v) for v in value)
    return str(value)
