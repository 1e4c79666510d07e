"""memfit.fit: trains a live Keras model inside a limit with memfit's engine, then puts the weights back into the model.

The arrays go to the program in a temporary file without a name. It is a file because pages of a mapped file are the
system's cache and do not count against the limit; shared memory does. The model goes over as a .keras file in a
temporary folder and comes back the same way. The numbers are those of `memfit train`: it is `memfit train`.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import signal
import subprocess
import sys
import tempfile
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple, Union

from . import _program
from ._keras import is_model
from .errors import InputError, UnsupportedError, UsageError

# What Keras's fit takes and this one does not, and why.
REFUSED = {
    "callbacks": "callbacks run Python between steps, and the engine's steps are not Python's; memfit.Watch is not needed: the limit holds",
    "steps_per_epoch": "an epoch is the data; `steps` ends the training after so many steps",
    "validation_steps": "validation is the validation data",
    "validation_freq": "validation is after each epoch",
    "initial_epoch": "a training goes on by calling fit again: the model has its optimizer's state",
}


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    *,
    batch_size: Optional[int] = None,
    epochs: int = 1,
    verbose: Union[str, int] = "auto",
    validation_split: float = 0.0,
    validation_data: Any = None,
    validation_batch_size: Optional[int] = None,
    shuffle: bool = True,
    class_weight: Optional[Mapping[int, float]] = None,
    sample_weight: Any = None,
    memory: Union[str, int, None] = None,
    device: Optional[str] = None,
    steps: Optional[int] = None,
    seed: int = 0,
    threads: Optional[int] = None,
    precision: Optional[str] = None,
    gradient_accumulation: Union[str, int, None] = None,
    recompute: Optional[str] = None,
    chunked_loss: Union[str, int, None] = None,
    allow_changed_numerics: bool = False,
    log_csv: Optional[str] = None,
    tensorboard: Optional[str] = None,
    trace: Optional[str] = None,
    **others: Any,
) -> Any:
    """Keras's `model.fit` with a limit. Returns Keras's History; `history.memfit` has the engine's figures (planned and
    measured peak).

    x and y are arrays, lists or dicts of them by input and output; or x is a tf.data.Dataset, a DataLoader or any
    iterable of (x, y) batches, which memfit reads once and keeps. If anything fails, the model is as it was.
    """
    for name in others:
        if name in REFUSED:
            raise UsageError("fit does not take %s" % name, REFUSED[name])
        raise TypeError("fit() has no argument %r" % name)
    _check(model)
    if log_csv and os.path.exists(log_csv):
        raise UsageError("%s is there already: it is left as it is" % log_csv, "give log_csv another name")
    if y is None and not hasattr(x, "dtype") and not isinstance(x, (dict, list, tuple, str, os.PathLike)):
        x, y, sample_weight = _collected(x, sample_weight)
    with tempfile.TemporaryDirectory(prefix="memfit-") as folder, contextlib.ExitStack() as stack:
        before, after, log = (os.path.join(folder, n) for n in ("model.keras", "trained.keras", "log.csv"))
        files: List[int] = []
        data = stack.enter_context(_handed_over(model, x, y, sample_weight, files))
        validation = None
        if validation_data is not None:
            v = _parts(validation_data)
            validation = stack.enter_context(_handed_over(model, v[0], v[1], v[2], files))
        _saved(model, before)
        options = _program.option_list(
            {
                "data": data,
                "batch_size": batch_size,
                "epochs": epochs,
                "validation_data": validation,
                "validation_split": validation_split or None,
                "validation_batch_size": validation_batch_size,
                "class_weight": _weights_file(folder, class_weight),
                "memory": memory,
                "device": device,
                "steps": steps,
                "seed": seed,
                "threads": threads,
                "precision": precision,
                "gradient_accumulation": gradient_accumulation,
                "recompute": recompute,
                "chunked_loss": chunked_loss,
                "allow_changed_numerics": allow_changed_numerics,
                "tensorboard": tensorboard,
                "trace": trace,
                "no_shuffle": not shuffle,
                "log_csv": log,
                "out": after,
            }
        )
        figures = _run(["train", before, *options], files, verbose not in (0, "0"))
        if hasattr(model.optimizer, "build") and not getattr(model.optimizer, "built", True):
            model.optimizer.build(model.trainable_variables)  # or there is nothing for its state to go to
        model.load_weights(after)
        history = _history(model, log, figures, epochs)
        if log_csv:
            _kept(log, log_csv)
    return history


def _check(model: Any) -> None:
    if not is_model(model) or not hasattr(model, "save"):
        raise InputError("%s is no Keras model" % type(model).__name__)
    if not getattr(model, "built", True):
        raise UsageError("the model is not built: it has no weights yet", "give it an Input, or call it once on a batch")
    if not getattr(model, "compiled", getattr(model, "optimizer", None) is not None):
        raise UsageError("the model is not compiled", "model.compile(optimizer=..., loss=...) first")


def _saved(model: Any, path: str) -> None:
    try:
        model.save(path)
    except Exception as e:  # whatever a layer's get_config raises
        raise UnsupportedError("the model cannot be saved: %s: %s" % (type(e).__name__, str(e).strip().split("\n")[0])) from e


def _parts(data: Any) -> Tuple[Any, Any, Any]:
    """Validation data as Keras takes it: (x, y), (x, y, sample_weight), a loader, or a file."""
    if isinstance(data, (str, os.PathLike)):
        return data, None, None
    if isinstance(data, (tuple, list)):
        return data[0], data[1], data[2] if len(data) > 2 else None
    return _collected(data, None)


def _weights_file(folder: str, class_weight: Optional[Mapping[int, float]]) -> Optional[str]:
    if not class_weight:
        return None
    import json

    path = os.path.join(folder, "class_weight.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({str(k): float(v) for k, v in class_weight.items()}, f)
    return path


def _collected(batches: Any, sample_weight: Any) -> Tuple[Any, Any, Any]:
    """All batches of a loader as arrays in host memory; the engine makes its own batches from them."""
    import numpy as np

    if batches is None or not hasattr(batches, "__iter__"):
        raise UsageError("x must be arrays or an iterable of (x, y) batches, not %s" % type(batches).__name__)
    columns: List[List[Any]] = []
    for batch in batches:
        parts = batch if isinstance(batch, (tuple, list)) else (batch,)
        if not columns:
            columns = [[] for _ in parts]
        for column, part in zip(columns, parts):
            column.append({k: _array(v) for k, v in part.items()} if isinstance(part, dict) else _array(part))
    if len(columns) < 2:
        raise UsageError("the data has no targets: its batches must be (x, y)")

    def joined(column: List[Any]) -> Any:
        if isinstance(column[0], dict):
            return {k: np.concatenate([c[k] for c in column]) for k in column[0]}
        return np.concatenate(column)

    return joined(columns[0]), joined(columns[1]), joined(columns[2]) if len(columns) > 2 else sample_weight


def _array(value: Any) -> Any:
    import numpy as np

    if hasattr(value, "detach"):  # PyTorch
        value = value.detach().cpu()
    return np.asarray(value)


@contextlib.contextmanager
def _handed_over(model: Any, x: Any, y: Any, sample_weight: Any, files: List[int]) -> Iterator[str]:
    """The arrays in a file without a name, as numpy.savez writes them; yields the path by which the program opens
    it."""
    if isinstance(x, (str, os.PathLike)):
        if y is not None or sample_weight is not None:
            raise UsageError("x is a file: it holds y and sample_weight too")
        yield _program.path_word(x)
        return
    import numpy as np

    arrays = dict(_named(x, "x", getattr(model, "input_names", None) or [t.name for t in getattr(model, "inputs", [])]))
    if y is not None:
        arrays.update(_named(y, "y", list(getattr(model, "output_names", []))))
    if sample_weight is not None:
        arrays["sample_weight"] = _array(sample_weight)
    rows = {name: len(a) for name, a in arrays.items()}
    if len(set(rows.values())) != 1:
        raise UsageError("the arrays have different numbers of samples: %s" % ", ".join("%s %d" % r for r in rows.items()))
    with tempfile.TemporaryFile(prefix="memfit-") as f:
        np.savez(f, **arrays)
        f.flush()
        files.append(f.fileno())
        yield "/proc/self/fd/%d" % f.fileno()


def _named(value: Any, single: str, names: List[str]) -> Iterator[Tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield str(name), _array(item)
    elif isinstance(value, (list, tuple)) and value and hasattr(value[0], "shape"):
        if len(value) != len(names):
            raise UsageError("%s has %d arrays, the model has %d: %s" % (single, len(value), len(names), ", ".join(names)))
        for name, item in zip(names, value):
            yield (single if len(names) == 1 else name), _array(item)
    else:
        yield single, _array(value)


def _run(arguments: List[str], files: List[int], shown: bool) -> Dict[str, Any]:
    """Runs the training and prints its progress as it comes."""
    import json

    told: List[str] = []
    with tempfile.TemporaryFile(prefix="memfit-") as answers:  # not a pipe: while the other one is read, a long answer would fill it
        child = subprocess.Popen(
            [_program.program(), *arguments, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=answers,
            stderr=subprocess.PIPE,
            env=_program.environment(),
            encoding="utf-8",
            errors="replace",
            pass_fds=tuple(files),
        )
        try:
            for line in child.stderr or ():
                told.append(line)
                if shown and not line.startswith(("memfit:", "  ")):  # the program's words about a failure are the exception's
                    print(line, end="")
                    sys.stdout.flush()
            status = child.wait()
        except BaseException:  # Control-C in a notebook reaches this process alone
            _ended(child)
            raise
        finally:
            if child.stderr is not None:
                child.stderr.close()
        answers.seek(0)
        out = answers.read().decode("utf-8", "replace")
    try:
        answer = json.loads(out)
    except ValueError:
        answer = {}
    if status or "error" in answer:
        given = re.compile(r"/proc/self/fd/\d+")
        raise _program.error_of(status, given.sub("the arrays given", out), given.sub("the arrays given", "".join(told)))
    return dict(answer)


def _ended(child: "subprocess.Popen[str]") -> None:
    """Asks the training to stop; ends it if it does not, or if the user asks again."""
    try:
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=10)
    except BaseException:
        child.kill()
        child.wait()


def _history(model: Any, log: str, figures: Dict[str, Any], epochs: int) -> Any:
    """Keras's History, if Keras is there; one value an epoch under each of Keras's keys."""
    values: Dict[str, List[float]] = {}
    numbers: List[int] = []
    with open(log, encoding="utf-8", newline="") as f:
        for row in csv.DictReader(f):
            numbers.append(int(row.pop("epoch")))
            for name, text in row.items():
                values.setdefault(name, []).append(float(text))
    history = _history_class()()
    history.history = values
    history.epoch = numbers
    history.params = {"epochs": epochs, "steps": figures["steps"] // max(1, figures["epochs"])}
    if hasattr(history, "set_model"):
        history.set_model(model)
    history.memfit = figures
    return history


def _history_class() -> Any:
    keras: Any = sys.modules.get("keras")
    if keras is not None:
        return keras.callbacks.History
    return type("History", (), {})


def _kept(log: str, path: str) -> None:
    with open(log, encoding="utf-8") as source, open(path, "x", encoding="utf-8") as target:
        target.write(source.read())
