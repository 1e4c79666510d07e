"""memfit.plan: will it fit? From a live Keras model or a file, before anything runs."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _keras, _program, _versions
from ._answer import Answer, Record
from ._trace import TorchTrace
from .errors import InputError, UnsupportedError

Size = Union[str, int]
Several = Union[str, Sequence[str]]
FITS_OR_NOT = (0, 3)


class Suggestion(Record):
    """One change that was tried: `change`, `peak_bytes`, `slowdown`, `numerics`, `fits`, and `code` to paste."""

    change: str
    peak_bytes: int
    slowdown: float
    numerics: str
    fits: bool

    def __init__(self, data: Dict[str, Any], batch: int) -> None:
        super().__init__(data)
        self._batch = batch

    @property
    def code(self) -> str:
        told = self._data.get("code")
        return str(told) if told else _code_for(self.change, self._batch)


class Plan(Answer):
    """The answer of `memfit plan`. Every key of its JSON is an attribute; this class declares the common ones."""

    batch: int
    memory_bytes: int
    basis: str
    fits: bool
    peak_bytes: int
    arena_bytes: int
    fixed_bytes: int
    lower_bound_bytes: int
    peak_at: str
    max_batch: int
    pieces: int
    recomputed_ops: int
    slowdown: float
    numerics: str
    plan_seconds: float
    model: Record
    as_asked: Record
    breakdown: Record
    in_framework: Record
    layers: List[Record]

    @property
    def suggestions(self) -> List[Suggestion]:
        return [Suggestion(s, int(self._data["batch"])) for s in self._data.get("suggestions", [])]

    def page(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the page for the browser. Replaces an existing file only if it is a page too."""
        name = os.fspath(path)
        if not self._page:
            raise UnsupportedError("there is no page of a recorded step", "memfit.report(trace, html=...) makes one of the trace")
        if os.path.exists(name):
            with open(name, "rb") as f:
                if not f.read(64).lstrip().lower().startswith(b"<!doctype html"):
                    raise InputError("%s is there and is no page: it is left as it is" % name)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=os.path.dirname(name) or ".", prefix=".memfit-", delete=False) as f:
            try:
                f.write(self._page)
                f.close()
                os.chmod(f.name, 0o666 & ~_umask())
                os.replace(f.name, name)
            except BaseException:
                os.unlink(f.name)
                raise


def plan(
    model: Any,
    batch_size: Union[int, Sequence[int], None] = None,
    *,
    card: Optional[Several] = None,
    memory: Optional[Size] = None,
    runtime: Optional[str] = None,
    device: Optional[str] = None,
    optimizer: Optional[str] = None,
    loss: Optional[str] = None,
    precision: Optional[Several] = None,
    gradient_accumulation: Union[str, int, None] = None,
    recompute: Optional[str] = None,
    chunked_loss: Union[str, int, None] = None,
    allow_changed_numerics: bool = False,
    validation_batch_size: Optional[int] = None,
    input_shape: Optional[Sequence[int]] = None,
    dim: Optional[Mapping[str, int]] = None,
    assume: Optional[Mapping[str, str]] = None,
    threads: Optional[int] = None,
    curve: bool = False,
) -> Plan:
    """What training `model` takes: a live Keras model, the path of a .keras, .h5 or JSON file, or a PyTorch step that
    `torch_trace` recorded.

    `card` names one or more cards ("t4", ["t4", "rtx-3080"]), `memory` is a size with a unit ("8GiB") or bytes. The
    other arguments are those of `memfit plan`. `p.fits` answers for memfit's own engine, `p.in_framework.fits` for
    TensorFlow, PyTorch or JAX (`runtime`; without it, for a card, TensorFlow or the backend of a live model). A plan
    that does not fit raises nothing.
    """
    if runtime is None and card is not None and _keras.is_model(model):
        runtime = _keras.other_backend(model)
    options = _program.option_list(
        {
            "batch_size": batch_size,
            "for": card,
            "memory": memory,
            "runtime": runtime,
            "device": device,
            "optimizer": optimizer,
            "loss": loss,
            "precision": precision,
            "gradient_accumulation": gradient_accumulation,
            "recompute": recompute,
            "chunked_loss": chunked_loss,
            "allow_changed_numerics": allow_changed_numerics,
            "validation_batch_size": validation_batch_size,
            "input_shape": input_shape,
            "dim": dict(dim) if dim else None,
            "assume": dict(assume) if assume else None,
            "threads": threads,
            "curve": curve,
        }
    )
    source = Source(model, input_shape)
    with source.file() as path, tempfile.TemporaryDirectory(prefix="memfit-") as folder:
        page = os.path.join(folder, "plan.html")
        data = _program.ask(["plan", path, *options, *([] if source.recorded else ["--html", page])], allowed=FITS_OR_NOT)
        text = source.named(_read(page), path)
    _versions.compare(data.get("in_framework"))
    here = _program.here()
    return Plan(data, lambda: _text_of(source, options, here), text)


class Source:
    """A model as the program reads it: a path as it is, or a live model's configuration in a temporary file."""

    def __init__(self, model: Any, input_shape: Optional[Sequence[int]] = None) -> None:
        self._path: Optional[str] = None
        self._config: Tuple[str, str] = ("", "")
        self.recorded = isinstance(model, TorchTrace) or (isinstance(model, (str, os.PathLike)) and os.fspath(model).endswith((".csv", ".trace")))
        if isinstance(model, TorchTrace):
            self._path = _program.path_word(model.path)
        elif isinstance(model, (str, os.PathLike)):
            self._path = _program.path_word(model)
        elif _keras.is_model(model):
            self._config = (str(getattr(model, "name", "model")), _keras.config_text(model, input_shape))
        else:
            raise InputError(
                "%s is neither a Keras model nor a path" % type(model).__name__,
                "for a PyTorch module record its step: memfit.torch_trace(make, \"step.csv\")",
            )

    def named(self, text: Optional[str], path: str) -> Optional[str]:
        """Puts the model's own name where the program names the temporary file of a live model."""
        return text if text is None or self._path is not None else text.replace(path, self._config[0])

    @contextlib.contextmanager
    def file(self) -> Iterator[str]:
        if self._path is not None:
            yield self._path
            return
        name, config = self._config
        with tempfile.TemporaryDirectory(prefix="memfit-") as folder:
            path = os.path.join(folder, (re.sub(r"[^\w.-]", "_", name) or "model") + ".json")
            with open(path, "w", encoding="utf-8") as f:
                f.write(config)
            yield path


def _umask() -> int:
    now = os.umask(0o077)
    os.umask(now)
    return now


def _read(path: str) -> Optional[str]:
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as f:
        return f.read()


def _text_of(source: Source, options: Sequence[str], folder: Optional[str]) -> str:
    with source.file() as path:
        status, out, err = _program.run(["plan", path, *options], folder=folder)
    if status not in FITS_OR_NOT:
        raise _program.error_of(status, out, err)
    return source.named(out, path) or out


_CODE: Dict[str, str] = {
    r"--gradient-accumulation (\d+)": "memfit.fit(model, x, y, batch_size=BATCH, gradient_accumulation={0})",
    r"--batch-size (\d+)": "memfit.fit(model, x, y, batch_size={0})",
    r"--precision (\w+)": 'memfit.fit(model, x, y, precision="{0}")',
    r"--recompute (\w+)": 'memfit.fit(model, x, y, recompute="{0}")',
    r"--chunked-loss (\w+)": 'memfit.fit(model, x, y, chunked_loss="{0}")',
    r"--optimizer (\w+)": 'model.compile(optimizer="{0}", ...)',
    r"--input-shape ([\d,]+)": "keras.Input(({0}))",
    r"--validation-batch-size (\d+)": "memfit.fit(model, x, y, validation_batch_size={0})",
    r"trainable=(False)": "for layer in model.layers[:-1]: layer.trainable = {0}",
}


def _code_for(change: str, batch: int) -> str:
    """The line of Python that makes the change in memfit's own engine, whose figures these are; empty where there is
    none.

    `in_framework.suggestions` has the lines for Keras itself, with what they would take there.
    """
    for form, code in _CODE.items():
        found = re.search(form, change)
        if found:
            return code.format(*found.groups()).replace("BATCH", str(batch))
    return ""
