"""Several series in one table, as of two sensors by turns: taken for one, each window would go to and fro.

A column, or the file, tells them apart where each series by itself goes forward in time, the whole does not, and they
have other values at the same times. What only looks so is read: a logger that wrote rows again, a weekday, a burst.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bouquet.client.data.table_text import Sheet
from bouquet.client.data.table_times import DAY, HOUR
from bouquet.common.data.left_out import MOST, LeftOut
from bouquet.common.texts import plain

SERIES = 50  # at most, that a column tells apart
FIRST = 200  # rows, that series by turns are looked for in
ALIKE = 0.1  # of a column's deviation, by which two rows of one time may differ
JUMP = 2.0  # times what a series changes by from row to row, that one differs from another by
EACH = 4  # rows of each, on average
FRACTION = re.compile(r"\d[.,]\d")  # of a measured number
SURELY = 0.99  # of the rows
OFTEN = 0.2  # of the rows in order of time are of another series than the one before; of an hour twice in autumn fewer
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
) -> tuple[str, bool]:
    """A sentence on several series, with the column or the files that tell them apart, and whether they surely are.

    '' where it is one. Not sure are series that take turns, as a pump's states could. ``times``, ``files`` and
    ``lines`` (n,) are of the rows as they lie in the files ``paths``, as ``values`` (n, columns) would be; the columns
    ``about`` say when a row is of.
    """
    if len(paths) > 1 and _is_tangled(times) and _are_apart(files, times) and _differ(files, times, values()):
        return f"{paths[0].name} and {paths[-1].name} are of the same time, with other values", True
    for number, file in enumerate(paths):
        of_file = np.flatnonzero(files == number)
        tangled = _is_tangled(times[of_file])
        if not tangled and number:  # series by turns are in the first file, too
            continue
        if not tangled:
            of_file = of_file[:FIRST]
        for column, words, series, rows in _words(file, about, lines[of_file]):
            when = times[of_file][rows]
            if (_are_apart if tangled else _by_turns)(series, when) and _differ(series, when, values()[of_file][rows]):
                shown = ", ".join(plain(word, 20) for word in sorted(words)[:3])
                said = f"{file.name} has {len(words)} series, of which {column!r} says which ({shown})"
                return said, tangled
    return "", False


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
    return bool((np.diff(ordered) != 0).mean() > OFTEN)


def _by_turns(series: Places, times: Floats) -> bool:
    """Whether the series follow each other in turns, each as regular as a clock, but not day by day.

    A door opens and closes by turns, too, but when it likes; a weekday and an hour come again after days.
    """
    count = int(series.max()) + 1
    if len(series) < 3 * count or (series[count:] == series[:-count]).mean() < SURELY:
        return False
    if len(np.unique(series[:count])) < count:
        return False
    turn = np.abs(times[count:] - times[:-count])
    usual = np.median(turn)
    is_regular = np.abs(turn - usual) <= JITTER * usual
    return bool(is_regular.mean() > 1 - MOST and (usual < DAY / 2 or usual % DAY > HOUR))


def _differ(series: Places, times: Floats, values: Floats) -> bool:
    """Whether in most columns one series has other values than another at the same time.

    Rows of the same time differ by more than the digits of another export. Where there are none, a row differs from
    the next in time, which is of another series, by more than a series changes by from row to row.
    """
    order = np.argsort(times, kind="stable")
    series, times, values = series[order], times[order], values[order]
    spread = np.ma.masked_invalid(values).std(axis=0).filled(0)
    changes = np.flatnonzero(np.diff(series) != 0)
    least = ALIKE * spread
    if (same := changes[np.diff(times)[changes] == 0]).size > MOST * len(times):
        changes = same
    else:
        own = np.concatenate([np.diff(values[series == one], axis=0) for one in np.unique(series)])
        least = np.maximum(least, JUMP * _median(np.abs(own)))
    apart = _median(np.abs(values[changes] - values[changes + 1]))
    return bool((apart > least)[spread > 0].mean() > 1 / 2) if (spread > 0).any() else False


def _median(values: Floats) -> Floats:
    """Of each column, without its gaps."""
    found: Floats = np.ma.median(np.ma.masked_invalid(values), axis=0).filled(0)
    return found
