"""A live Keras model as a file the program reads: its configuration without weights, or the whole of it.

This module never imports Keras: a program with a model has imported it already.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Dict, Optional, Sequence

from .errors import InputError, UnsupportedError


def is_model(value: object) -> bool:
    """Anything with a Keras model's to_json and layers."""
    return callable(getattr(value, "to_json", None)) and hasattr(value, "layers")


def keras_of(model: Any) -> Any:
    """The Keras that made this model: `keras`, or TensorFlow's older `tf_keras`."""
    for kind in type(model).__mro__:
        root = kind.__module__.split(".")[0]
        if root in ("keras", "tf_keras") and root in sys.modules:
            return sys.modules[root]
    raise InputError("%s is no model of Keras 3" % type(model).__name__, "give a keras.Model, or a path")


def other_backend(model: Any) -> Optional[str]:
    """torch or jax, if Keras runs on it; the program itself answers for TensorFlow."""
    try:
        name = keras_of(model).backend.backend()
    except (InputError, AttributeError):
        return None
    return str(name) if name in ("torch", "jax") else None


def _is_functional(model: Any) -> bool:
    return any(kind.__name__ in ("Functional", "Sequential") for kind in type(model).__mro__)


def config_text(model: Any, input_shape: Optional[Sequence[int]] = None) -> str:
    """The model's configuration as JSON, with its build and compile configurations; no weights, but a mark that there
    are some."""
    return LIVE + _configuration(model, input_shape).lstrip()[1:]


# With weights a model takes other input sizes only where no weight's shape follows from them: the program must not offer any other.
LIVE = '{"memfit": {"weights": "live"}, '


def _configuration(model: Any, input_shape: Optional[Sequence[int]]) -> str:
    if _is_functional(model) and type(model).__module__.split(".")[0] in ("keras", "tf_keras"):
        try:
            return str(model.to_json())
        except (NotImplementedError, TypeError, ValueError) as e:
            raise UnsupportedError(
                "%s cannot be written as a configuration: %s" % (_name(model), _first_line(e)),
                "every layer needs a get_config that returns plain values",
            ) from e
    return _traced(model, input_shape)


def _traced(model: Any, input_shape: Optional[Sequence[int]]) -> str:
    """Calls a subclassed model once on symbolic inputs; the layers it calls become a functional model."""
    keras = keras_of(model)
    inputs = _symbolic_inputs(keras, model, input_shape)
    if inputs is None:
        raise InputError(
            "%s is a subclass of Model that was not built: the shapes of its inputs are not known" % _name(model),
            "call it once on a batch, or give input_shape=(...) without the batch",
        )
    try:
        functional = keras.Model(inputs, model.call(inputs), name=model.name)
        saved: Dict[str, Any] = json.loads(functional.to_json())
        if getattr(model, "compiled", False):
            saved["compile_config"] = json.loads(json.dumps(model.get_compile_config(), default=_plain(keras)))
    except Exception as e:  # whatever the user's own call raises
        raise UnsupportedError(
            "%s is a subclass of Model and cannot be followed on symbolic inputs: %s: %s"
            % (_name(model), type(e).__name__, _first_line(e)),
            "a model made of layers by keras.Sequential or the functional interface can be planned",
        ) from e
    return json.dumps(saved)


def _plain(keras: Any) -> Any:
    return lambda value: keras.saving.serialize_keras_object(value)


def _symbolic_inputs(keras: Any, model: Any, input_shape: Optional[Sequence[int]]) -> Any:
    if input_shape is not None:
        return keras.Input(tuple(int(n) for n in input_shape))
    built: Any = getattr(model, "_build_shapes_dict", None)
    if not built:
        return None
    shapes = list(built.values())
    return _inputs_like(keras, shapes[0]) if len(shapes) == 1 else None


def _inputs_like(keras: Any, shape: Any) -> Any:
    if isinstance(shape, dict):
        return {name: _inputs_like(keras, s) for name, s in shape.items()}
    if isinstance(shape, (list, tuple)) and shape and isinstance(shape[0], (list, tuple)):
        return [_inputs_like(keras, s) for s in shape]
    return keras.Input(tuple(shape[1:]))


def _name(model: Any) -> str:
    return '"%s" (%s)' % (getattr(model, "name", "?"), type(model).__name__)


def _first_line(e: BaseException) -> str:
    text = str(e).strip()
    return text.splitlines()[0] if text else type(e).__name__
