"""The parameter layout: a model's ``state_dict`` as one flat float32 vector, and back.

On the server the replies of n clients become the rows of an n × d matrix W. Then an aggregation is one
matrix product, and a layer, an embedding or a decision part is a set of columns.

A *layer* is one module that owns tensors: its weight, bias and buffers together, in the order of the
``state_dict``, which for a feed-forward model is the order from input to output.

A tensor is a *parameter*, a *buffer* of floats (BatchNorm's running statistics) or a *counter*, by which any tensor of
integers or truth values is meant (BatchNorm's ``num_batches_tracked``). All of them are sent and averaged; what a
method compares are the parameters (`ParameterLayout.parameters_of`), because a counter would tell clients apart by
the amount of their data.

A float takes one column, of float32 whatever its own dtype is: float16 comes back exactly, float64 rounded. An integer
takes as many as it needs to come back exactly (`bouquet.common.parameters.integer_columns`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from bouquet.common.errors import BouquetError
from bouquet.common.parameters import integer_columns

Vector = NDArray[np.float32]
Rows = TypeVar("Rows", bound=NDArray[Any])
Kind = Literal["parameter", "buffer", "counter"]

SUPPORTED = "numbers that can be sent (floats of 16, 32 or 64 bits, integers, truth values)"
HEADER_BYTES = 4096  # that a tensor may take in a message beside its numbers: the header of its serialised form
_STATISTICS = ("running_mean", "running_var")  # of batch and instance normalisation


class LayoutError(BouquetError):
    """Tensors that do not fit the layout: missing, extra, misshapen or not numbers."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of the model: its name and shape, what it is, and where it lies in the flat vector."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    layer: str
    kind: Kind = "parameter"

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @cached_property
    def width(self) -> int:
        """Number of columns: one for each element, and more for integers of 32 and 64 bits."""
        return self.size * (integer_columns.num_digits(np.dtype(self.dtype)) if self.kind == "counter" else 1)

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of its numbers in its own dtype."""
        return self.size * np.dtype(self.dtype).itemsize

    @cached_property
    def columns(self) -> slice:
        """The tensor's columns in the flat vector."""
        return slice(self.offset, self.offset + self.width)

    def write(self, array: NDArray[Any], columns: NDArray[np.float32]) -> None:
        """Write a tensor into its columns (width,). Raises `LayoutError`, naming it, for what does not fit."""
        if array.shape != self.shape:
            raise LayoutError(f"Tensor {self.name!r} has shape {array.shape}, expected {self.shape}.")
        check_dtype(self.name, array.dtype)
        if self.kind != "counter":
            columns.reshape(self.shape)[...] = array
            return
        values = array.reshape(-1)
        if not np.isfinite(values).all() or not integer_columns.fits(values, np.dtype(self.dtype)):
            raise LayoutError(f"Tensor {self.name!r} holds values that are no {self.dtype}.")
        columns[:] = integer_columns.to_digits(values, np.dtype(self.dtype))

    def decode(self, columns: NDArray[Any], copy: bool = True) -> NDArray[Any]:
        """The tensors (…, *shape) that columns (…, width) stand for, in their dtype; integers are rounded.

        Without ``copy`` the columns themselves, where they are of that dtype.
        """
        shape, dtype = (*columns.shape[:-1], *self.shape), np.dtype(self.dtype)
        if self.kind == "counter":
            return integer_columns.from_digits(columns, dtype).reshape(shape)
        return columns.reshape(shape).astype(dtype, copy=copy)


@dataclass(frozen=True)
class ParameterLayout:
    """Names, shapes, dtypes and offsets of a model's tensors, and the layer each belongs to.

    Examples
    --------
    >>> tensors = {"body.weight": np.ones((2, 2), np.float32), "head.bias": np.zeros(2, np.float32)}
    >>> layout = bouquet.ParameterLayout.of(tensors)
    >>> layout.layers, layout.dim
    (('body', 'head'), 6)
    >>> layout.flatten(tensors)
    array([1., 1., 1., 1., 0., 0.], dtype=float32)
    """

    tensors: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], parameters: Collection[str] | None = None) -> ParameterLayout:
        """Read the layout off a mapping from tensor name to array, in its order.

        The layer of ``features.0.weight`` is ``features.0``; a name without a dot is a layer of its own.
        ``parameters`` are the names of the model's parameters, frozen ones too, where the model is at hand. Without
        them, a module's ``running_mean`` and ``running_var`` are buffers, and all other floats parameters.
        Raises `LayoutError`, naming the tensor, for a dtype that the flat vector cannot hold.
        """
        tensors = []
        for name, array in arrays.items():
            check_dtype(name, array.dtype)
            tensors.append({"name": name, "shape": array.shape, "dtype": str(array.dtype)})
        if not tensors:
            raise LayoutError("The model has no tensors.")
        kinds = None if parameters is None else dict.fromkeys(parameters, "parameter")
        return cls(_specs(tensors, kinds))

    @property
    def dim(self) -> int:
        """Length d of the flat vector."""
        return self.tensors[-1].columns.stop

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Layer names from input to output."""
        return tuple(dict.fromkeys(spec.layer for spec in self.tensors))

    @cached_property
    def num_bytes(self) -> dict[str, int]:
        """Bytes of each tensor by its name."""
        return {spec.name: spec.num_bytes for spec in self.tensors}

    @cached_property
    def most_bytes(self) -> int:
        """Bytes that a model takes at most in a message, whichever way it is written: twice its own, and headers."""
        return sum(2 * max(spec.num_bytes, 4 * spec.width) + HEADER_BYTES for spec in self.tensors)

    @cached_property
    def layer_columns(self) -> dict[str, NDArray[np.int64]]:
        """Column indices of each layer, in order."""
        spans: dict[str, list[NDArray[np.int64]]] = {layer: [] for layer in self.layers}
        for spec in self.tensors:
            spans[spec.layer].append(np.arange(spec.columns.start, spec.columns.stop))
        return {layer: np.concatenate(parts) for layer, parts in spans.items()}

    @cached_property
    def parameter_columns(self) -> NDArray[np.bool_]:
        """Mask (d,) of the columns that hold parameters, and neither buffers nor counters."""
        mask = np.zeros(self.dim, dtype=bool)
        for spec in self.tensors:
            mask[spec.columns] = spec.kind == "parameter"
        return mask

    def parameters_of(self, rows: Rows) -> Rows:
        """The parameters (…, p) of models (…, d): what a method compares. The models themselves where that is all."""
        return rows if self.parameter_columns.all() else rows[..., self.parameter_columns]  # type: ignore[return-value]

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
        chosen = self.layers if layers is None else self.check_layers(layers)
        is_whole = len(chosen) == len(self.layers)
        specs = self.tensors if is_whole else tuple(spec for spec in self.tensors if spec.layer in chosen)
        expected = {spec.name for spec in specs}
        if missing := [spec.name for spec in specs if spec.name not in arrays]:
            raise LayoutError(f"Tensor {missing[0]!r} is missing ({len(missing)} of {len(specs)} are).")
        if extra := [name for name in arrays if name not in expected]:
            raise LayoutError(f"Tensor {extra[0]!r} was not asked for ({len(extra)} extra).")
        vector = (np.empty if is_whole else np.zeros)(self.dim, dtype=np.float32)
        with np.errstate(over="ignore"):  # what float32 cannot hold is not finite in it, and named below
            for spec in specs:
                spec.write(np.asarray(arrays[spec.name]), vector[spec.columns])
        if not np.isfinite(vector).all():
            name = next(spec.name for spec in specs if not np.isfinite(vector[spec.columns]).all())
            raise LayoutError(f"Tensor {name!r} holds values that are not finite.")
        return vector

    def unflatten(self, vector: NDArray[Any], layers: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """The tensors of ``layers`` (all by default), each in its own shape and dtype; integers are rounded.

        Tensors of float32 are parts of the vector, not copies.
        """
        if vector.shape != (self.dim,):
            raise LayoutError(f"A vector of shape {vector.shape} does not fit a layout of {self.dim} parameters.")
        wanted = set(self.layers if layers is None else self.check_layers(layers))
        return {
            spec.name: spec.decode(vector[spec.columns], copy=False) for spec in self.tensors if spec.layer in wanted
        }

    def to_json(self) -> list[dict[str, Any]]:
        """A list of tensors, each with its name, shape, dtype and kind, that `from_json` reads back."""
        return [
            {"name": s.name, "shape": list(s.shape), "dtype": s.dtype, "layer": s.layer, "kind": s.kind}
            for s in self.tensors
        ]

    @classmethod
    def from_json(cls, tensors: Iterable[Mapping[str, Any]]) -> ParameterLayout:
        """The inverse of `to_json`."""
        listed = list(tensors)
        return cls(_specs(listed, {t["name"]: t["kind"] for t in listed}))


def contiguous(array: NDArray[Any]) -> NDArray[Any]:
    """The array in C order and in its own shape; `numpy.ascontiguousarray` would make (1,) of the shape ()."""
    return np.asarray(array, order="C")


def check_dtype(name: str, dtype: np.dtype[Any]) -> None:
    """Raise `LayoutError`, naming the tensor, for what a float32 vector cannot hold."""
    if dtype.kind not in "fiub":
        raise LayoutError(f"Tensor {name!r} holds {dtype}, not {SUPPORTED}.")


def _specs(tensors: Sequence[Mapping[str, Any]], kinds: Mapping[str, Any] | None) -> tuple[TensorSpec, ...]:
    """The tensors one after another; of ``kinds``, if they are known, a float that is not in them is a buffer."""
    names = {t["name"] for t in tensors}
    specs: list[TensorSpec] = []
    for t in tensors:
        name = t["name"]
        layer = name.rpartition(".")[0]
        kind: Kind = "parameter"
        if integer_columns.is_integer(np.dtype(t["dtype"])):
            kind = "counter"  # also a frozen parameter of integers
        elif kinds is not None:
            kind = kinds.get(name, "buffer")
        else:
            beside = {f"{layer}.{statistic}" if layer else statistic for statistic in _STATISTICS}
            kind = "buffer" if name in beside <= names else "parameter"
        offset = specs[-1].columns.stop if specs else 0
        shape = tuple(int(n) for n in t["shape"])
        specs.append(TensorSpec(name, shape, str(t["dtype"]), offset, layer or name, kind))
    return tuple(specs)
