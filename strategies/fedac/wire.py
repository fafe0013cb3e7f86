"""The map from a model of d parameters to p numbers, and the part of the wire that only it needs (FedAC).

Server → device: the version of the map by which the device is to reduce its model and, where the device does not have
that version, its p directions as records of one model each and its p offsets. Device → server: p numbers and no model.
`bouquet.strategies.fedac.reduction` makes the map, `bouquet.strategies.fedac.device` keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bouquet.common.protocol import Payload, ProtocolError, Received, Scalar

PROCEDURE = "fedac"
NUMBERS = "reduced-model"  # key of the reply's config: the p numbers

_VERSION = "map-version"
_OFFSET = "map-offset"
_DIRECTION = "map-direction-"
_BLOCK_COLUMNS, _BLOCK_ELEMENTS = 2**16, 2**22  # that are converted at a time, and of all models together

Reduced = NDArray[np.float64]


class LowRankMap(NamedTuple):
    """r = P (w − m): ``directions`` P (p × d) float32, orthonormal rows, and ``offset`` P m (p,) float64."""

    directions: NDArray[np.float32]
    offset: Reduced

    def reduce(self, W: NDArray[np.floating[Any]]) -> Reduced:
        """P (W_i − m) for the rows of W (n × d), as an n × p matrix; accumulated in float64, some columns at a time."""
        reduced = np.tile(-self.offset, (len(W), 1))
        width = max(1, min(_BLOCK_COLUMNS, _BLOCK_ELEMENTS // max(1, len(W))))
        for start in range(0, W.shape[1], width):
            columns = slice(start, start + width)
            # One memory order, so that a map from a file gives the very numbers that it gave when it was made.
            directions = self.directions[:, columns].astype(np.float64, order="C")
            reduced += W[:, columns].astype(np.float64, order="C") @ directions.T
        return reduced


def asking_for_numbers(version: int) -> dict[str, Scalar]:
    """Config that asks a device to reply with its model's p numbers under a version of the map."""
    return {_VERSION: version}


def sending_map(low_rank: LowRankMap) -> tuple[dict[str, Payload], dict[str, Scalar]]:
    """The records and the config that carry a map."""
    records = {f"{_DIRECTION}{i}": Payload(direction, exact=True) for i, direction in enumerate(low_rank.directions)}
    return records, {_OFFSET: low_rank.offset.tolist()}


def read_question(received: Received) -> tuple[int, LowRankMap | None]:
    """At the device: the version that is asked for, and the map where it was sent. Raises `ProtocolError`."""
    version = received.config.get(_VERSION)
    if not isinstance(version, int):
        raise ProtocolError(f"The server asks for a reduced model and says {_VERSION} = {version!r}, not a number.")
    offset = received.config.get(_OFFSET)
    if offset is None:
        return version, None
    if not isinstance(offset, list) or not all(isinstance(value, float) for value in offset):
        raise ProtocolError(f"The server sends a low-rank map and says {_OFFSET}, which is no list of numbers.")
    names = [f"{_DIRECTION}{i}" for i in range(len(offset))]
    if missing := [name for name in names if name not in received.models]:
        raise ProtocolError(f"The low-rank map has {len(names)} offsets, but record {missing[0]!r} is missing.")
    directions = np.stack([received.models[name].vector for name in names])
    return version, LowRankMap(directions, np.array(offset, dtype=np.float64))


def read_numbers(config: Mapping[str, Scalar], num_dims: int) -> Reduced | None:
    """At the server: the p numbers (p,) of a reply, or None where the device has none to give.

    Raises `ProtocolError` for another count than ``num_dims`` and for numbers that are not finite.
    """
    numbers: Any = config.get(NUMBERS)
    if numbers is None:
        return None
    is_list = isinstance(numbers, list) and len(numbers) == num_dims
    if not is_list or not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers):
        said = repr(numbers[:8] if isinstance(numbers, list | str | bytes) else numbers)[:80]
        raise ProtocolError(f"The reduced model is {said}; it must be {num_dims} finite numbers.")
    return np.array(numbers, dtype=np.float64)
