"""Matched averaging: hidden units of a client's model are put into the center's order before models are averaged.

A network computes the same function when the units of a hidden layer change places, so the mean of two equal but
reordered models is neither of them. FeSEM-MA (Long et al., section 5.1) therefore aligns each member with its center
before the mean. The cost is the Gaussian posterior of Yurochkin et al., "Bayesian Nonparametric Federated Learning of
Neural Networks", ICML 2019, layer by layer as in Wang et al., "Federated Learning with Matched Averaging", ICLR 2020.
The width stays fixed: the Indian-buffet prior over the number of units, which could add units, has no say.

Which layers hold permutable units is read off the tensors' shapes: the model must be a plain chain of linear and
convolution layers. What shapes do not show is not noticed: a skip connection between layers of one width, or a
transposed convolution with as many outputs as inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout, TensorSpec
from bouquet.strategies.mathematics.aggregation import Matrix, Vector


@dataclass(frozen=True)
class UnitView:
    """A tensor as an array (before × units × after): the hidden units lie along the middle axis."""

    columns: slice
    shape: tuple[int, int, int]

    def of(self, row: Vector) -> NDArray[Any]:
        """The tensor inside a flat model (d,); writing to it writes to the model."""
        return row[self.columns].reshape(self.shape)

    def by_unit(self, row: Vector) -> NDArray[np.float64]:
        """What the tensor says of each unit, as (units × values)."""
        return self.of(row).astype(np.float64).swapaxes(0, 1).reshape(self.shape[1], -1)


@dataclass(frozen=True)
class HiddenLayer:
    """A layer whose units may change places.

    ``own``: the rows of its weight, its bias, and the parameters of normalisation layers that follow it, by channel.
    ``buffers``: what those layers keep beside their parameters. ``outgoing``: the columns of the next layer's weight.
    ``last``: the next layer is the model's output.
    """

    name: str
    own: tuple[UnitView, ...]
    buffers: tuple[UnitView, ...]
    outgoing: UnitView
    last: bool

    @property
    def compared(self) -> tuple[UnitView, ...]:
        """The parameters that tell units apart: those whose other axis is in the center's order already.

        Incoming weights are, because the layer before has been matched. Outgoing weights go to the next layer's
        units, whose order is not known yet, and would tie the result to the order that a client happens to have;
        only those of the last hidden layer go to units that never move, the classes, and so they count there.
        """
        return (*self.own, self.outgoing) if self.last else self.own

    @property
    def moved(self) -> tuple[UnitView, ...]:
        """The tensors that a permutation of the units changes."""
        return (*self.own, *self.buffers, self.outgoing)


def hidden_layers(layout: ParameterLayout) -> tuple[HiddenLayer, ...]:
    """The chain of permutable layers, from input to output; the output layer is not one of them.

    A tensor of two or more axes is a weight: (out, in) of a linear layer, (out, in, k) or (out, in, k, k) of a
    convolution. Between a convolution and a linear layer the flatten gives each channel a block of columns.
    Raises `BouquetError`, naming the layer, when the shapes do not chain or when permuting could change the model's
    output: a skip connection, grouped convolution, attention, recurrence, group normalisation.
    """
    weights = [spec for spec in layout.tensors if len(spec.shape) >= 2]
    if tables := [spec for spec in weights if spec.kind != "parameter"]:
        raise _not_a_chain(tables[0].layer, f"{tables[0].name!r} is no parameter, and what it is for is not known")
    for first, second in pairwise(weights):
        if first.layer == second.layer:
            raise _not_a_chain(second.layer, f"it has two weights, {first.name!r} and {second.name!r}")
    attached = _vectors_by_weight(layout, weights)
    chain = []
    for position, (weight, following) in enumerate(pairwise(weights), start=2):
        units, inputs = weight.shape[0], following.shape[1]
        flattens = len(weight.shape) > 2 and len(following.shape) == 2
        if inputs % units or (inputs != units and not flattens):
            raise _not_a_chain(following.layer, f"it takes {inputs} inputs, but {weight.layer!r} has {units} units")
        own, buffers = [UnitView(weight.columns, (1, units, weight.size // units))], list[UnitView]()
        for vector in attached[weight.layer]:
            # A normalisation after the flatten has a value for each input of the next layer.
            if vector.size not in (units, inputs):
                raise _not_a_chain(vector.layer, f"it has {vector.size} values for the {units} units before it")
            # Integers have their digits one after another, each for all units.
            view = UnitView(vector.columns, (vector.width // vector.size, units, vector.size // units))
            (own if vector.kind == "parameter" else buffers).append(view)
        outgoing = UnitView(
            following.columns, (following.shape[0], units, following.size // following.shape[0] // units)
        )
        chain.append(HiddenLayer(weight.layer, tuple(own), tuple(buffers), outgoing, last=position == len(weights)))
    return tuple(chain)


def match_rows(center: Vector, rows: Matrix, layout: ParameterLayout) -> Matrix:
    """``rows`` (m × d), each with its hidden units in the order in which they resemble those of ``center`` (d,).

    Each row still computes the same function. From input to output, the units of a layer are paired one to one with
    the center's so that the sum of squared differences, each tensor's divided by its variance, is the least: the
    Gaussian maximum a posteriori assignment. The variance of a tensor is taken per unit value over all units of all
    members and averaged over the values. It makes weights, biases and normalisation tensors commensurable, and it
    does not depend on the order of anyone's units; nor, but for exact ties, does the result.
    Raises `BouquetError` as `hidden_layers` does.
    """
    from scipy.optimize import linear_sum_assignment  # a tenth of a second, where nothing is matched

    matched = np.array(rows)
    for hidden in hidden_layers(layout):
        scales = [_inverse_deviation(view, matched) for view in hidden.compared]
        target = _describe(hidden, center, scales)
        for row in matched:
            # A pairing's sum of squares is a constant minus twice its inner product.
            _, order = linear_sum_assignment(target @ _describe(hidden, row, scales).T, maximize=True)
            for view in hidden.moved:
                view.of(row)[:] = view.of(row)[:, order]
    return matched


def _describe(hidden: HiddenLayer, row: Vector, scales: Sequence[float]) -> NDArray[np.float64]:
    """(units × values): what tells a layer's units apart, each tensor multiplied by its scale."""
    parts = [scale * view.by_unit(row) for view, scale in zip(hidden.compared, scales, strict=True)]
    return np.concatenate(parts, axis=1)


def _inverse_deviation(view: UnitView, rows: Matrix) -> float:
    """1 / σ of a tensor over the units of all rows; 0 where all are equal, so that it tells nothing apart."""
    # One row at a time: in float64, a large layer of all members would not fit beside W.
    mean = np.mean([view.by_unit(row).mean(axis=0) for row in rows], axis=0)
    variance = float(np.mean([np.square(view.by_unit(row) - mean).mean() for row in rows]))
    return variance**-0.5 if variance > 0 else 0.0


def _vectors_by_weight(layout: ParameterLayout, weights: Sequence[TensorSpec]) -> dict[str, list[TensorSpec]]:
    """The one-dimensional tensors of each weight's units: its bias, and what normalises its output.

    Scalars and vectors of one value are shared by all units; what comes before the first weight belongs to the input.
    """
    by_layer = {weight.layer: weight for weight in weights}
    attached: dict[str, list[TensorSpec]] = {layer: [] for layer in by_layer}
    before: TensorSpec | None = None
    for spec in layout.tensors:
        if len(spec.shape) >= 2:
            before = spec
        owner = by_layer.get(spec.layer, before)
        if len(spec.shape) != 1 or spec.size == 1 or owner is None:
            continue
        _refuse_group_normalisation(layout, owner, spec)
        attached[owner.layer].append(spec)
    return attached


def _refuse_group_normalisation(layout: ParameterLayout, weight: TensorSpec, vector: TensorSpec) -> None:
    """Channels that are normalised in groups cannot change places; batch normalisation keeps running statistics."""
    names = {name.rpartition(".")[2] for name in layout.names([vector.layer])}
    of_channels = vector.layer != weight.layer and len(weight.shape) > 2 and vector.size == weight.shape[0]
    if of_channels and {"weight", "bias"} <= names and "running_mean" not in names:
        raise _not_a_chain(vector.layer, "it may be group normalisation, whose channels cannot change places")


def _not_a_chain(layer: str, reason: str) -> BouquetError:
    return BouquetError(
        f"Layer {layer!r} cannot be matched: {reason}. Matched averaging needs a plain chain of linear and convolution "
        "layers, with batch normalisation if any; take strategy 'fesem', or another model."
    )
