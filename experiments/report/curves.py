"""Curves as a page draws them: lines on a box that is 100 by 100, their axes and values as text beside it.

Text keeps its size on a phone and in the dark, and the values of a round are shown under the pointer without a script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib.ticker import MaxNLocator

from bouquet.server.record.reader import Points

MOST_POINTS = 400  # of a line; of more rounds each point is the mean of some
MOST_BANDS = 134  # of points whose values are shown under the pointer
FEW_DOTS = 30
OVER = 3.0  # times the range of the later rounds that a first value widens the axis to

Series = tuple[str, str, Points]  # label, colour as CSS has it, rounds and values


def chart(
    title: str,
    series: Sequence[Series],
    number: Callable[[float], str],
    zero: bool = False,
    newest: int | None = None,
) -> dict[str, Any] | None:
    """What the macro ``chart`` of ``parts.html`` draws; None where there are no two points.

    ``zero`` begins the axis there, ``newest`` leaves only so many rounds.
    """
    every = sorted({float(at) for *_, (x, _) in series for at in x})[-newest if newest else None :]
    if len(every) < 2:
        return None
    together = -(-len(every) // MOST_POINTS)
    stretches = {every[k]: every[k : k + together] for k in range(0, len(every), together)}
    rounds = [*stretches]
    point_of = {at: first for first, some in stretches.items() for at in some}
    drawn = [(label, colour, _means(point_of, points)) for label, colour, points in series]
    present = [(label, colour, [*found], [*found.values()]) for label, colour, found in drawn if found]
    values = [value for *_, y in present for value in y] + ([0.0] if zero else [])
    low, high = min(values), max(values)
    # An untrained model's error would press all later ones into a line: the axis ends below it, its value is told.
    later = max(value for *_, x, y in present for at, value in zip(x, y, strict=True) if at > rounds[0])
    if later > low:
        high = min(high, low + OVER * (later - low))
    ticks = [float(tick) for tick in MaxNLocator(4).tick_values(low, high)]
    low, high = ticks[0], ticks[-1]
    first, last = rounds[0], rounds[-1]

    def across(at: float) -> float:
        return round(100 * (at - first) / (last - first), 2)

    def up(value: float) -> float:
        return round(min(100.0, 100 * (value - low) / (high - low)), 2)

    shown = rounds[:: -(-len(rounds) // MOST_BANDS)]
    half = 50 / max(1, len(shown) - 1)
    bands = [
        {
            "left": round(max(0.0, across(at) - half), 2),
            "width": round(min(100.0, across(at) + half) - max(0.0, across(at) - half), 2),
            "at": f"after round {at:g}" if together == 1 else f"mean of rounds {at:g}–{stretches[at][-1]:g}",
            "across": across(at),
            "values": [(label, colour, number(y[at]), up(y[at])) for label, colour, y in drawn if at in y],
        }
        for at in shown
    ]
    return {
        "title": title,
        "keys": [(label, colour) for label, colour, *_ in present],
        "ticks": [(up(tick), number(tick)) for tick in ticks],
        "lines": [
            (colour, " ".join(f"{across(at)},{100 - up(value):g}" for at, value in zip(x, y, strict=True)))
            for _, colour, x, y in present
        ],
        "first": f"{first:g}",
        "last": f"{every[-1]:g}",
        "bands": bands,
    }


def _means(point_of: Mapping[float, float], points: Points) -> dict[float, float]:
    """The first round of each stretch → the mean of what the points have in it."""
    found: dict[float, list[float]] = {}
    for at, value in zip(*points, strict=True):
        if at in point_of:
            found.setdefault(point_of[at], []).append(float(value))
    return {first: fmean(values) for first, values in found.items()}


def spark(values: Sequence[float], low: float, high: float) -> str:
    """The points of a small curve on a box of 100 by 24; empty of fewer than two values."""
    if len(values) < 2:
        return ""
    room = (high - low) or 1.0
    every = max(1, len(values) // FEW_DOTS)
    kept = [*values[:-1:every], values[-1]]
    wide = 100 / (len(kept) - 1)
    return " ".join(f"{k * wide:.1f},{22 - 20 * (value - low) / room:.1f}" for k, value in enumerate(kept))
