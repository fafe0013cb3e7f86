"""A strategy's state on its way to a checkpoint and back: arrays to safetensors, everything else to JSON."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

State = TypeVar("State")


def dump_state(state: Any) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Split a dataclass into its arrays, by name, and the rest, which is JSON.

    A field is an array or None, a dict of arrays by text key, a dataclass of such fields, or anything that JSON can
    hold. The order of a dict's keys is kept: safetensors gives tensors back in any.
    """
    arrays: dict[str, NDArray[Any]] = {}
    rest: dict[str, Any] = {}
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, np.ndarray):
            arrays[field.name] = value
        elif is_dataclass(value):
            within, rest[field.name] = dump_state(value)
            arrays |= {f"{field.name}/{name}": array for name, array in within.items()}
        elif isinstance(value, dict) and value and all(isinstance(v, np.ndarray) for v in value.values()):
            arrays.update({f"{field.name}/{key}": array for key, array in value.items()})
            rest[field.name] = list(value)
        else:
            rest[field.name] = TypeAdapter(type(value)).dump_python(value, mode="json")
    return arrays, rest


def load_state(kind: type[State], arrays: dict[str, NDArray[Any]], rest: dict[str, Any]) -> State:
    """The inverse of `dump_state` for a dataclass ``kind``.

    What is not there is at its default. Raises `KeyError` for what has none.
    """
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        name = field.name
        nested = {k.split("/", 1)[1]: a for k, a in arrays.items() if k.startswith(f"{name}/")}
        if name in arrays:
            values[name] = arrays[name]
        elif is_dataclass(hints[name]) and name in rest:
            values[name] = load_state(hints[name], nested, rest[name])
        elif nested:
            values[name] = {key: nested[key] for key in rest.get(name) or sorted(nested)}
        elif name not in rest and (field.default is not MISSING or field.default_factory is not MISSING):
            continue
        elif rest[name] in (None, {}):
            values[name] = rest[name]
        else:
            values[name] = TypeAdapter(hints[name]).validate_python(rest[name])
    return kind(**values)
