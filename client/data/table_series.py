"""Several series in one table, as of two sensors by turns: taken for one, each window would go to and fro.

A column, or the file, tells them apart where each series by itself goes forward in time and the whole does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bouquet.client.data.table_text import Sheet
from bouquet.common.data.left_out import MOST, LeftOut
from bouquet.common.texts import plain

SERIES = 50  # at most, that a column tells apart
FIRST = 200  # rows, that series by turns are looked for in
ALIKE = 0.1  # of a column's deviation, by which two rows of one time may differ
EACH = 4  # rows of each, on average
FRACTION = re.compile(r"\d[.,]\d")  # of a measured number
SURELY = 0.99  # of the rows
UNEVEN = 2.0  # times the shortest step of series by turns, that their longest has at least; a weekday's are all alike
JITTER = 0.2  # of the time from a row of a series to its next

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


def series_of(
    paths: Sequence[Path],
    about: Sequence[str],
    times: Floats,
    files: Places,
    lines: Places,
    values: Callable[[], Floats],
) -> tuple[str, str]:
    """The column that tells several series apart, '' where the file does, and a sentence; both '' where it is one.

    ``times``, ``files`` and ``lines`` (n,) are of the rows as they lie in the files ``paths``, as ``values`` (n,
    columns) would be; the columns ``about`` say when a row is of.
    """
    if len(paths) > 1 and _is_tangled(times) and _are_apart(files, times) and _differ(values(), times):
        return "", f"{paths[0].name} and {paths[-1].name} have rows of the same times, with other values"
    for number, file in enumerate(paths):
        of_file = np.flatnonzero(files == number)
        tangled = _is_tangled(times[of_file])
        if not tangled and number:  # series by turns are in the first file, too
            continue
        if not tangled:
            of_file = of_file[:FIRST]
        for column, words, series, rows in _words(file, about, lines[of_file]):
            if (_are_apart if tangled else _by_turns)(series, times[of_file][rows]):
                shown = ", ".join(plain(word, 20) for word in sorted(words)[:3])
                return column, f"{file.name} has {len(words)} series, of which {column!r} says which ({shown})"
    return "", ""


def _words(file: Path, about: Sequence[str], lines: Places) -> Iterator[tuple[str, list[str], Places, list[int]]]:
    """Columns of few words: the words, which of them a row has (n,), and which of the ``lines`` these are."""
    sheet = Sheet(file, about, LeftOut("rows"))
    if not len(lines) or next(sheet.rows(), None) is None:
        return
    names = [name for name in sheet.header if name and sheet.header.count(name) == 1]
    kinds: dict[str, dict[str, int]] = {name: {} for name in names if name not in about}
    series: dict[str, list[int]] = {name: [] for name in kinds}
    rows: list[int] = []
    for line, cells in Sheet(file, names, LeftOut("rows")).rows():
        if not kinds or line > lines[-1]:
            break
        if lines[place := int(np.searchsorted(lines, line))] != line:
            continue
        rows.append(place)
        for name, cell in zip(names, cells, strict=True):
            if name in kinds:
                series[name].append(kinds[name].setdefault(cell, len(kinds[name])))
                if len(kinds[name]) > SERIES or FRACTION.search(cell):
                    del kinds[name]
    for name, words in kinds.items():
        if 1 < len(words) <= len(rows) / EACH:
            yield name, list(words), np.array(series[name]), rows


def _is_tangled(times: Floats) -> bool:
    """Whether many rows are not after all before them, nor in files with the newest first before them."""
    if len(times) < 2:
        return False
    behind = (times[1:] <= np.maximum.accumulate(times)[:-1], times[1:] >= np.minimum.accumulate(times)[:-1])
    return bool(min(part.mean() for part in behind) > MOST)


def _are_apart(series: Places, times: Floats) -> bool:
    """Whether each of the series goes forward, while in the order of time they change often."""
    for one in range(int(series.max()) + 1):
        steps = np.diff(times[series == one])
        if len(steps) and max((steps > 0).mean(), (steps < 0).mean()) < SURELY:
            return False
    ordered = series[np.argsort(times, kind="stable")]
    return bool((np.diff(ordered) != 0).mean() > MOST)


def _by_turns(series: Places, times: Floats) -> bool:
    """Whether the series follow each other in turns, each as regular as a clock, at steps that differ.

    A door opens and closes by turns, too, but when it likes.
    """
    count = int(series.max()) + 1
    if len(series) < 3 * count or (series[count:] == series[:-count]).mean() < SURELY:
        return False
    if len(np.unique(series[:count])) < count:
        return False
    round_ = np.abs(times[count:] - times[:-count])
    is_regular = np.abs(round_ - np.median(round_)) <= JITTER * np.median(round_)
    steps = [np.median(np.abs(np.diff(times)[k::count])) for k in range(count)]
    return bool(is_regular.mean() > 1 - MOST and max(steps) > UNEVEN * min(steps))


def _differ(values: Floats, times: Floats) -> bool:
    """Whether rows of the same time mostly have other values: more than by the digits of another export."""
    order = np.argsort(times, kind="stable")
    same = np.flatnonzero(np.diff(times[order]) == 0)
    here, after = values[order[same]], values[order[same + 1]]
    spread = np.ma.masked_invalid(values).std(axis=0).filled(0)
    other = ((np.abs(here - after) > ALIKE * spread) | (np.isnan(here) != np.isnan(after))).any(axis=1)
    return bool(len(same) and other.mean() > 1 / 2)
