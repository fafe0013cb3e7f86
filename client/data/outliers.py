"""Values of a table's columns that are far from all others: what a sensor says that has nothing to say, and spikes.

Everything is judged by the median and the quartiles, which a fourth of wrong values cannot move far.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import numpy as np
from numpy.typing import NDArray

from bouquet.client.data.table_reader import Table, columns_of
from bouquet.common.settings.sections import TableSettings

# What sensors and loggers write where there is no reading; 85 and −127 are a DS18B20's, others the ends of integers.
_ENDS = (-32768, 32767, 65535, -3276.8, 3276.7, 6553.5, -327.68, 327.67, 655.35, 2147483647, 4294967295)
SENTINELS = (85, -127, -99, -99.9, -999, -999.9, -9999, 999, 999.9, 9999, 99999, -6999, 6999, 7999, -7999, *_ENDS)
FENCE = 10.0  # deviations, by the quartiles, that a value is far outside from
ALONE = 2.0  # of them, that nothing else is near a sentinel
SPOILT = 4.0  # of them, that a column's deviation is spoilt from; that of twelve stations' sensors is 2.1 at most
FAR = 100.0  # of them, that a value is said from whether or not it spoils anything
REPEATED = 3  # times, that a value is there that means something else
KINDS = 3  # of these, at most
FEW = 0.005  # of the values, that may be spikes next to each other
SPIKES = 0.05  # of the values, that may be spikes at all
SHOWN = 5  # lines that are named

Floats = NDArray[np.float64]


def limits_of(values: Floats) -> tuple[float, float] | None:
    """Between what the scale of a column (n,) is to be taken, where values far outside would spoil it; else None.

    Those are few words that mean something else, repeated, or spikes; a pump that runs for a hundredth of the time has
    as large a deviation, but neither.
    """
    median, spread = _spread(values)
    if not spread or values.std() <= SPOILT * spread:
        return None
    far = np.abs(values - median) > FENCE * spread
    found, place, counts = np.unique(values[far], return_inverse=True, return_counts=True)
    single = far.copy()
    single[far] = (counts < REPEATED)[place]
    beside = np.convolve(single, (1, 0, 1), "same") > 0
    few, most = (max(1.0, share * len(values)) for share in (FEW, SPIKES))
    if (len(found) - (counts < REPEATED).sum()) > KINDS or (single & beside).sum() > few or single.sum() > most:
        return None
    return median - FENCE * spread, median + FENCE * spread


def odd_values(table: Table, about: TableSettings, limited: Container[str]) -> Iterator[str]:
    """A sentence for each kind of value of a column that means something else, or is far outside, with lines.

    ``limited`` are the columns whose scale leaves some out.
    """
    for column, cells in columns_of(about, table.inputs, table.targets).items():
        if column in about.values:
            continue
        known = np.isfinite(cells)
        values, lines = cells[known], table.lines[known]
        if len(values):
            yield from _of_column(column, values, lines, FENCE if column in limited else FAR)


def _of_column(column: str, values: Floats, lines: NDArray[np.int64], fence: float) -> Iterator[str]:
    is_sentinel = np.isin(values, SENTINELS)
    median, spread = _spread(values[~is_sentinel] if not is_sentinel.all() else values)
    if not spread:
        return
    others = values[~is_sentinel]
    for value in np.unique(values[is_sentinel]):
        if abs(value - median) > FENCE * spread and np.abs(others - value).min(initial=np.inf) > ALONE * spread:
            there = values == value
            yield (
                f"{column}: {there.sum()} cells hold {value:g} ({_lines(lines[there])}), which sensors write that have "
                f"nothing to say. As gaps: table.gaps = ['{column}={value:g}']."
            )
    far = ~is_sentinel & (np.abs(values - median) > (FENCE if limits_of(values) else fence) * spread)
    if far.any():
        near = others[np.abs(others - median) <= FENCE * spread]
        shown = ", ".join(f"{value:g}" for value in values[far][:SHOWN])
        yield (
            f"{column}: {far.sum()} cells are far outside of the others, which go from {near.min():.4g} to "
            f"{near.max():.4g}: {shown} ({_lines(lines[far])}). If they mean something else, name them in table.gaps."
        )


def _spread(values: Floats) -> tuple[float, float]:
    """The median, and a deviation by the quartiles; of what is mostly one value, by those of the others."""
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75))
    if low == high and (others := values[values != median]).size:
        low, high = np.quantile(others, (0.25, 0.75))
    return float(median), float(high - low) / 1.349


def _lines(lines: NDArray[np.int64]) -> str:
    shown = ", ".join(map(str, lines[:SHOWN]))
    return f"line{'s' * (len(lines) > 1)} {shown}{', …' * (len(lines) > SHOWN)}"
