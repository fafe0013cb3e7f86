"""The parameter layout: a model's ``state_dict`` as one flat float32 vector, and back.

On the server the replies of n clients become the rows of an n × d matrix W. Then an aggregation is one
matrix product, and a layer, an embedding or a decision part is a set of columns.

A *layer* is one module that owns tensors: its weight, bias and buffers together, in the order of the
``state_dict``, which for a feed-forward model is the order from input to output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import BouquetError

Vector = NDArray[np.float32]


class LayoutError(BouquetError):
    """Tensors that do not fit the layout: missing, extra, misshapen or not numbers."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of the model: its name and shape, and where it lies in the flat vector."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    layer: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def columns(self) -> slice:
        """The tensor's columns in the flat vector."""
        return slice(self.offset, self.offset + self.size)


@dataclass(frozen=True)
class ParameterLayout:
    """Names, shapes, dtypes and offsets of a model's tensors, and the layer each belongs to."""

    tensors: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> ParameterLayout:
        """Read the layout off a mapping from tensor name to array, in its order.

        The layer of ``features.0.weight`` is ``features.0``; a name without a dot is a layer of its own.
        """
        specs: list[TensorSpec] = []
        offset = 0
        for name, array in arrays.items():
            layer = name.rpartition(".")[0] or name
            specs.append(TensorSpec(name, tuple(int(n) for n in array.shape), str(array.dtype), offset, layer))
            offset += int(array.size)
        if not specs:
            raise LayoutError("The model has no tensors.")
        return cls(tuple(specs))

    @property
    def dim(self) -> int:
        """Length d of the flat vector."""
        last = self.tensors[-1]
        return last.offset + last.size

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Layer names from input to output."""
        return tuple(dict.fromkeys(spec.layer for spec in self.tensors))

    @cached_property
    def layer_columns(self) -> dict[str, NDArray[np.int64]]:
        """Column indices of each layer, in order."""
        return {
            layer: np.concatenate([np.arange(s.offset, s.offset + s.size) for s in self.tensors if s.layer == layer])
            for layer in self.layers
        }

    @cached_property
    def integer_columns(self) -> NDArray[np.bool_]:
        """Mask (d,) of the columns that hold integer buffers, such as BatchNorm's counters."""
        mask = np.zeros(self.dim, dtype=bool)
        for spec in self.tensors:
            mask[spec.columns] = not np.issubdtype(np.dtype(spec.dtype), np.floating)
        return mask

    def columns(self, layers: Iterable[str]) -> NDArray[np.int64]:
        """Column indices of the given layers, in the layout's order."""
        wanted = self.check_layers(layers)
        if not wanted:
            return np.empty(0, dtype=np.int64)
        return np.concatenate([self.layer_columns[layer] for layer in wanted])

    def check_layers(self, layers: Iterable[str]) -> tuple[str, ...]:
        """Return the given layers in the layout's order; an unknown one is an error that names it."""
        wanted = set(layers)
        unknown = sorted(wanted - set(self.layers))
        if unknown:
            raise LayoutError(f"Unknown layer {unknown[0]!r}; the model has {', '.join(self.layers)}.")
        return tuple(layer for layer in self.layers if layer in wanted)

    def names(self, layers: Iterable[str]) -> tuple[str, ...]:
        """Tensor names of the given layers, in order."""
        wanted = set(self.check_layers(layers))
        return tuple(spec.name for spec in self.tensors if spec.layer in wanted)

    def flatten(self, arrays: Mapping[str, NDArray[Any]], layers: Sequence[str] | None = None) -> Vector:
        """Check the tensors of ``layers`` (all by default) and write them into a vector (d,).

        Columns of layers that are not asked for are zero. Raises `LayoutError`, naming the tensor, when one is
        missing or extra, has another shape, or holds a value that is not finite.
        """
        wanted = self.layers if layers is None else self.check_layers(layers)
        specs = [spec for spec in self.tensors if spec.layer in set(wanted)]
        expected = {spec.name for spec in specs}
        if missing := [spec.name for spec in specs if spec.name not in arrays]:
            raise LayoutError(f"Tensor {missing[0]!r} is missing ({len(missing)} of {len(specs)} are).")
        if extra := [name for name in arrays if name not in expected]:
            raise LayoutError(f"Tensor {extra[0]!r} was not asked for ({len(extra)} extra).")
        vector = np.zeros(self.dim, dtype=np.float32)
        for spec in specs:
            array = np.asarray(arrays[spec.name])
            if array.shape != spec.shape:
                raise LayoutError(f"Tensor {spec.name!r} has shape {array.shape}, expected {spec.shape}.")
            if not (np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
                raise LayoutError(f"Tensor {spec.name!r} holds {array.dtype}, not numbers.")
            with np.errstate(over="ignore"):
                vector[spec.columns] = array.reshape(-1)
            if not np.isfinite(vector[spec.columns]).all():
                raise LayoutError(f"Tensor {spec.name!r} holds values that are not finite.")
        return vector

    def unflatten(self, vector: NDArray[Any], layers: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """The tensors of ``layers`` (all by default), each in its own shape and dtype; integers are rounded."""
        if vector.shape != (self.dim,):
            raise LayoutError(f"A vector of shape {vector.shape} does not fit a layout of {self.dim} parameters.")
        wanted = set(self.layers if layers is None else self.check_layers(layers))
        arrays: dict[str, NDArray[Any]] = {}
        for spec in self.tensors:
            if spec.layer not in wanted:
                continue
            values = vector[spec.columns].reshape(spec.shape)
            dtype = np.dtype(spec.dtype)
            if not np.issubdtype(dtype, np.floating):
                values = np.asarray(np.rint(values))  # rint makes a scalar of an array without axes
            arrays[spec.name] = values.astype(dtype)
        return arrays

    def to_json(self) -> list[dict[str, Any]]:
        """A list of tensors, each with its name, shape and dtype, that `from_json` reads back."""
        return [{"name": s.name, "shape": list(s.shape), "dtype": s.dtype, "layer": s.layer} for s in self.tensors]

    @classmethod
    def from_json(cls, tensors: Iterable[Mapping[str, Any]]) -> ParameterLayout:
        """The inverse of `to_json`."""
        specs: list[TensorSpec] = []
        offset = 0
        for t in tensors:
            spec = TensorSpec(t["name"], tuple(t["shape"]), t["dtype"], offset, t["layer"])
            specs.append(spec)
            offset += spec.size
        return cls(tuple(specs))
