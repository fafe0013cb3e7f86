"""Whether a device's data are still what they were: a sensor that is stuck, a unit that changed, a camera that is dark.

Cheap figures of the data are held against those of the device's own last rounds, which it keeps in its state. What is
said has no values in it: the server is told, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.client.data.loading import ClientData
from bouquet.client.state.store import Store
from bouquet.common.data.images import FLAT

FILE = "figures.json"
KEPT = 5  # rounds whose data differed, that are remembered; the oldest of them is what is compared with
STUCK, LONGER = 24, 3  # rows of the same value at the end, and times the longest run before it
MOVED = 10.0  # deviations that a mean may move by, and times that a deviation may grow or shrink
FEW, MOST = 3, 0.5  # photos that show nothing, and their part of the new ones, from which it is said
PHOTOS = "photos"


def stuck(x: NDArray[Any], columns: Sequence[str]) -> Iterator[str]:
    """A word on each column of (n, columns), in order of time, whose newest values are all the same one."""
    for k, column in enumerate(columns):
        ends = np.flatnonzero(np.append(np.diff(x[:, k]) != 0, True))
        runs = np.diff(np.append(-1, ends))
        if len(runs) > 1 and runs[-1] >= max(STUCK, LONGER * runs[:-1].max()):
            yield f"The newest values of {column!r} are all the same, longer than ever before: is the sensor stuck?"


def drifted(store: Store, data: ClientData, columns: Sequence[str]) -> tuple[str, ...]:
    """A word on what is not as it was in the last rounds; today's figures are kept in the device's state."""
    now = _figures(data, columns)
    content = store.read(FILE)
    try:
        kept = [{str(k): [float(a), float(b)] for k, (a, b) in one.items()} for one in json.loads(content or b"[]")]
    except (ValueError, TypeError, AttributeError):
        kept = []
    if now and now not in kept[-1:]:
        kept = [*kept[-KEPT:], now]
        store.write(FILE, json.dumps(kept).encode())
    return tuple(_changed(now, kept[0])) if now else ()


def _figures(data: ClientData, columns: Sequence[str]) -> dict[str, list[float]]:
    """Mean and deviation by column; of photos how many there are, and how many show nothing."""
    if data.scaling is not None and data.train_x.ndim < 4:
        names = columns or [f"x[:, {k}]" for k in range(len(data.scaling.mean))]
        found = zip(names, data.scaling.mean, data.scaling.std, strict=False)
        return {name: [mean, std] for name, mean, std in found}
    if data.train_x.ndim != 4 or data.train_x.dtype != np.uint8:
        return {}
    flat = sum(int((np.ptp(x.reshape(len(x), -1), axis=1) < FLAT).sum()) for x in (data.train_x, data.test_x))
    return {PHOTOS: [float(len(data.train_x) + len(data.test_x)), float(flat)]}


def _changed(now: Mapping[str, Sequence[float]], before: Mapping[str, Sequence[float]]) -> Iterator[str]:
    for name, (mean, std) in now.items():
        if name not in before:
            continue
        old_mean, old_std = before[name]
        if name == PHOTOS:
            added, flat = mean - old_mean, std - old_std
            if flat >= FEW and flat > MOST * added:
                yield "Most of the newest photos show nothing: is the camera dark, or covered?"
            continue
        is_constant = 1.0 in (std, old_std)  # whose deviation counts as 1
        if abs(mean - old_mean) > MOVED * old_std or not (is_constant or old_std / MOVED <= std <= old_std * MOVED):
            yield f"The values of {name!r} are far from those of the last rounds: has its unit or its place changed?"
