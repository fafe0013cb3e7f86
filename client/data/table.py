"""A device's own tables: CSV files with a header, as samples, or as windows to foretell from.

Read with Python's csv and NumPy: pandas would take 89 MB on the disk and 42 MB of memory (docs/decisions/tasks.md).
"""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.data.scaling import Scaling
from common.errors import BouquetError
from common.settings.sections import TableSettings
from common.system.resources import available_bytes

SUFFIXES = (".csv", ".csv.gz", ".csv.xz")
GAPS = frozenset({"", "na", "n/a", "nan", "null", "none", "-"})  # what stands for a value that is not there
PARTS = ("year", "month", "day", "hour", "minute", "second")
DAY = 86_400.0
COPIES = 3  # of all windows, that are in memory while they are scaled and divided
SPARSE = 50  # steps of time for each row, beyond which a time must be wrong

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows in the order of their time.

    ``inputs`` (n, width) and ``targets`` (n, targets) have NaN where there is a gap; ``classes`` (n,) are −1 there;
    ``times`` (n,) are seconds, None without a column of them.
    """

    inputs: Floats
    targets: Floats
    classes: NDArray[np.int64] | None
    times: Floats | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Samples:
    """What a table gives: ``x`` (n, width) or (n, width, history), ``y`` (n, targets) or labels (n,).

    ``times`` (n,) are those of the targets and ``starts`` (n,) of the first row that a sample is made of, None without
    times. ``naive`` (k, n, targets) is what a forecast without a model says, by the ``naive_names``.
    """

    x: Floats
    y: NDArray[Any]
    times: Floats | None
    starts: Floats | None
    notes: tuple[str, ...]
    naive: Floats
    naive_names: tuple[str, ...]


def table_files(path: Path) -> list[Path]:
    """The CSV file itself, or those of a folder, by name; empty where there are none."""
    if path.is_dir():
        found = (file for file in path.iterdir() if file.name.endswith(SUFFIXES) and not file.name.startswith("."))
        return sorted(found)
    return [path] if path.name.endswith(SUFFIXES) else []


def read_table(path: Path, about: TableSettings, classes: tuple[str, ...] = (), with_targets: bool = True) -> Table:
    """The columns that the settings name; a last line that is not finished is passed over.

    ``classes`` are the words of a classification's target. Raises `BouquetError`, naming file, line and column, for a
    column that is missing, text where a number is due, or a word that is none of the values.
    """
    files = table_files(path)
    if not files:
        raise BouquetError(f"{path} is no table; give a CSV file ({', '.join(SUFFIXES)}), or a folder with some.")
    targets = about.targets if with_targets else ()
    wanted = (*about.inputs, *targets, *about.time)
    rows: list[list[str]] = []
    origins: list[tuple[Path, int]] = []
    for file in files:
        for line, row in _rows(file, wanted):
            rows.append(row)
            origins.append((file, line))
    if not rows:
        raise BouquetError(f"{path} has no rows below its header.", public="This device's table has no rows.")
    cells = dict(zip(dict.fromkeys(wanted), zip(*rows, strict=True), strict=True))

    def numbers(column: str) -> Floats:
        return _numbers(column, cells[column], origins)

    blocks = []
    for column in about.inputs:
        values = about.values.get(column)
        blocks.append(numbers(column)[:, None] if values is None else _words(column, cells[column], values, origins))
    inputs = np.concatenate(blocks, axis=1)
    labels = _labels(targets[0], cells[targets[0]], classes, origins) if classes and targets else None
    numeric = [] if labels is not None else [numbers(column) for column in targets]
    goals = np.stack(numeric, axis=1) if numeric else np.empty((len(rows), 0))
    if not about.time:
        return Table(inputs, goals, labels, None)
    times = _times(about.time, cells, origins)
    order = np.argsort(times, kind="stable")
    # Of rows of the same time the last counts: a logger that was restarted wrote it again.
    last = np.append(np.diff(times[order]) > 0, True)
    order = order[last]
    twice = len(rows) - len(order)
    if about.until:
        order = order[times[order] < _seconds(about.until)]
    notes = (f"{twice} rows have a time that a later row has, too, and are left out.",) if twice else ()
    return Table(inputs[order], goals[order], None if labels is None else labels[order], times[order], notes)


def samples_of(table: Table, about: TableSettings, is_forecast: bool, needs_targets: bool = True) -> Samples:
    """Each row a sample, or with ``is_forecast`` each window; rows and windows with gaps are left out and counted.

    Without ``needs_targets`` those stay whose target is not there, NaN or −1: what is yet to come. A window is
    ``history`` rows, one step of time after another, the step being the most common one; its targets are those
    ``horizon`` steps later. None goes over a gap in time.
    """
    return (_windows if is_forecast else _single_rows)(table, about, needs_targets)


def divide(
    samples: Samples, about: TableSettings, test_fraction: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Indices to train and to test on, by time; None where there are no times.

    What is of ``table.cut`` or later is tested, or the newest ``test_fraction``. No row that a tested sample is made of
    is before the cut, and no target that is trained on is after it.
    """
    if samples.times is None or samples.starts is None:
        return None
    if about.cut:
        cut = _seconds(about.cut)
    else:
        later = np.sort(samples.times)[len(samples.times) - max(1, round(test_fraction * len(samples.times))) :]
        cut = float(later[0]) if len(later) else 0.0
    return np.flatnonzero(samples.times < cut), np.flatnonzero(samples.starts >= cut)


def scaling_of(x: NDArray[Any], y: NDArray[Any], about: TableSettings, has_classes: bool) -> Scaling:
    """Mean and deviation of each column of what is trained on; a deviation of 0 counts as 1."""
    if about.scaling == "none":
        return Scaling((0.0,) * x.shape[1], (1.0,) * x.shape[1], *(((), ()) if has_classes else _unscaled(y)))
    axes = (0, 2) if x.ndim == 3 else (0,)
    targets = ((), ()) if has_classes else _mean_and_deviation(y, (0,))
    return Scaling(*_mean_and_deviation(x, axes), *targets)


def _unscaled(y: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return (0.0,) * y.shape[1], (1.0,) * y.shape[1]


def _mean_and_deviation(values: NDArray[Any], axes: tuple[int, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    deviation = values.std(axis=axes)
    mean, std = values.mean(axis=axes), np.where(deviation > 0, deviation, 1.0)
    return tuple(float(v) for v in mean), tuple(float(v) for v in std)


# --- reading ---------------------------------------------------------------------------------------------------------


def _text(file: Path) -> str:
    try:
        content = file.read_bytes()
        if file.name.endswith(".gz"):
            content = gzip.decompress(content)
        if file.name.endswith(".xz"):
            content = lzma.decompress(content)
        return content.decode("utf-8-sig")
    except OSError as error:
        raise BouquetError(f"The table {file} cannot be read: {error.strerror or error}.") from None
    except (EOFError, lzma.LZMAError, zlib.error) as error:
        raise BouquetError(f"The table {file} cannot be unpacked: {error}.") from None
    except UnicodeDecodeError:
        raise BouquetError(f"The table {file} is not text in UTF-8.") from None


def _rows(file: Path, wanted: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Line number and the wanted cells of each row, each column once."""
    text = _text(file)
    whole = text[: text.rfind("\n") + 1]  # a logger may be in the middle of a line
    reader = csv.reader(io.StringIO(whole, newline=""))
    try:
        header = [name.strip() for name in next(reader, [])]
        places = _places_of(file, header, list(dict.fromkeys(wanted)))
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise BouquetError(f"{file}, line {reader.line_num} has {len(row)} cells, its header {len(header)}.")
            yield reader.line_num, [row[place].strip() for place in places]
    except csv.Error as error:
        raise BouquetError(f"{file}, line {reader.line_num}: {error}.") from None


def _places_of(file: Path, header: list[str], columns: list[str]) -> list[int]:
    if missing := [column for column in columns if column not in header]:
        raise BouquetError(
            f"{file} has no column {missing[0]!r}; its header has {', '.join(header) or 'nothing'}.",
            public=f"This device's table has no column {missing[0]!r}.",
        )
    if twice := [column for column in columns if header.count(column) > 1]:
        raise BouquetError(f"{file} has two columns {twice[0]!r}.")
    return [header.index(column) for column in columns]


def _numbers(column: str, cells: Sequence[str], origins: Sequence[tuple[Path, int]]) -> Floats:
    texts = ["nan" if cell.lower() in GAPS else cell for cell in cells]
    try:
        found = np.array(texts).astype(np.float64)
    except ValueError:
        found = np.array([_number(text) for text in texts])
    wrong = np.flatnonzero(np.abs(found) > np.finfo(np.float32).max)
    if len(wrong):
        i = int(wrong[0])
        raise _wrong(origins[i], column, cells[i], "a number that float32 holds, or nothing where there is a gap")
    return found


def _number(text: str) -> float:
    """Infinite where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.inf


def _words(column: str, cells: Sequence[str], values: tuple[str, ...], origins: Sequence[tuple[Path, int]]) -> Floats:
    """A column of 0 and 1 for each value (n, values); NaN where there is a gap."""
    places = _places(column, cells, values, origins)
    found = (places[:, None] == np.arange(len(values))).astype(np.float64)
    found[places < 0] = np.nan
    return found


def _labels(
    column: str, cells: Sequence[str], classes: tuple[str, ...], origins: Sequence[tuple[Path, int]]
) -> NDArray[np.int64]:
    return _places(column, cells, classes, origins)


def _places(
    column: str, cells: Sequence[str], values: tuple[str, ...], origins: Sequence[tuple[Path, int]]
) -> NDArray[np.int64]:
    """The place of each cell among the values (n,); −1 where there is a gap."""
    place = {value: k for k, value in enumerate(values)}
    found = np.empty(len(cells), dtype=np.int64)
    for i, cell in enumerate(cells):
        if cell not in place and cell.lower() not in GAPS:
            raise _wrong(origins[i], column, cell, f"one of {', '.join(values)}")
        found[i] = place.get(cell, -1)
    return found


def _times(columns: tuple[str, ...], cells: Mapping[str, Sequence[str]], origins: Sequence[tuple[Path, int]]) -> Floats:
    """Seconds since 1970 (n,); a time without a zone counts as UTC."""
    if len(columns) > 1:
        parts = dict(zip(PARTS, columns, strict=False))
        rows = zip(*(cells[column] for column in parts.values()), strict=True)
        texts: list[Any] = [tuple(row) for row in rows]
    else:
        texts = list(cells[columns[0]])
    found = np.empty(len(texts))
    for i, text in enumerate(texts):
        try:
            found[i] = _seconds(text)
        except (ValueError, OverflowError):
            shown = " ".join(text) if isinstance(text, tuple) else text
            raise _wrong(
                origins[i], ", ".join(columns), shown, "a time: ISO 8601, seconds, or a date's parts"
            ) from None
    return found


def _seconds(text: str | tuple[str, ...]) -> float:
    if isinstance(text, tuple):
        return datetime(*(int(part) for part in text), tzinfo=UTC).timestamp()  # type: ignore[misc, arg-type]
    try:
        number = float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not np.isfinite(number):
        raise ValueError(text)
    return number


def _wrong(origin: tuple[Path, int], column: str, cell: str, allowed: str) -> BouquetError:
    file, line = origin
    return BouquetError(
        f"{file}, line {line}, column {column!r} holds {cell[:40]!r}; it must be {allowed}.",
        public=f"A cell in column {column!r} of this device's table is not {allowed}.",
    )


# --- samples ---------------------------------------------------------------------------------------------------------


def _single_rows(table: Table, about: TableSettings, needs_targets: bool) -> Samples:
    inputs, filled = _filled(table.inputs, about.fill if table.times is not None else 0)
    if table.classes is not None:
        y: NDArray[Any] = table.classes
        known = np.asarray(table.classes >= 0)
    else:
        y, known = table.targets, np.asarray(np.isfinite(table.targets).all(axis=1))
    whole = np.asarray(np.isfinite(inputs).all(axis=1) & (known | (not needs_targets)))
    times = None if table.times is None else table.times[whole]
    notes = (*table.notes, *_gap_notes(len(whole), int(whole.sum()), filled, "rows"))
    none = np.empty((0, int(whole.sum()), table.targets.shape[1]))
    return Samples(inputs[whole], y[whole], times, times, notes, none, ())


def _windows(table: Table, about: TableSettings, needs_targets: bool) -> Samples:
    times = table.times
    if times is None or len(times) < 2:
        raise BouquetError("A forecast needs two rows at least, and their times.")
    step = _step(times)
    ticks = np.rint((times - times[0]) / step).astype(np.int64)
    if ticks[-1] >= SPARSE * len(times):
        first, last = (f"{datetime.fromtimestamp(float(times[i]), UTC):%Y-%m-%d %H:%M}" for i in (0, -1))
        raise BouquetError(
            f"The table's times go from {first} to {last}, in steps of {step:g} seconds, and it has {len(times)} rows: "
            "is a time wrong?"
        )
    # A row for each step of time; of rows that fall on the same, the last.
    x = np.full((ticks[-1] + 1, table.inputs.shape[1]), np.nan)
    y = np.full((ticks[-1] + 1, table.targets.shape[1]), np.nan)
    x[ticks], y[ticks] = table.inputs, table.targets
    missing = len(x) - len(np.unique(ticks))
    x, filled = _filled(x, about.fill)
    history, horizon = about.history, about.horizon
    if not needs_targets:  # the newest windows are of a time that is yet to come
        y = np.concatenate([y, np.full((horizon, y.shape[1]), np.nan)])
    count = max(0, min(len(x) + 1, len(y) - horizon + 1) - history)
    runs = np.concatenate([[0], np.cumsum(np.isfinite(x).all(axis=1))])
    start = np.arange(count)
    whole: NDArray[Any] = runs[start + history] - runs[start] == history
    if needs_targets:
        whole = whole & np.isfinite(y[start + history - 1 + horizon]).all(axis=1)
    start = start[whole]
    size, free = len(start) * x.shape[1] * history * x.itemsize, available_bytes()
    if free is not None and COPIES * size > free:  # a server may ask for any history
        raise BouquetError(
            f"{len(start)} windows of {history} rows and {x.shape[1]} columns take {COPIES * size // 10**6} MB, and "
            f"{free // 10**6} MB are free: a shorter table.history, fewer table.inputs, or a shorter table.",
            public="This device has too little memory for the windows of its table.",
        )
    windows = np.lib.stride_tricks.sliding_window_view(x, history, axis=0)[start] if len(start) else None
    shape = (0, x.shape[1], history)
    chosen = np.empty(shape) if windows is None else np.ascontiguousarray(windows)
    names, naive = _naive(chosen, about, step)
    notes = table.notes
    if missing:
        notes += (f"{missing} steps of {step:g} seconds have no row.",)
    notes += _gap_notes(count, len(start), filled, "windows")
    seconds = times[0] + step * (start + history - 1 + horizon)
    return Samples(chosen, y[start + history - 1 + horizon], seconds, times[0] + step * start, notes, naive, names)


def _step(times: Floats) -> float:
    """The most common difference of times, in seconds; of jittering ones about the median."""
    differences = np.diff(times)
    values, counts = np.unique(np.round(differences, 3), return_counts=True)
    most = int(counts.argmax())
    return float(values[most]) if counts[most] * 2 > len(differences) else float(np.median(differences))


def _naive(windows: Floats, about: TableSettings, step: float) -> tuple[tuple[str, ...], Floats]:
    """What is foretold without a model, (k, n, targets): the last value, and that of the same time a day before."""
    inputs = [column for column in about.inputs for _ in about.values.get(column, "1")]
    if not all(target in inputs and target not in about.values for target in about.targets):
        return (), np.empty((0, len(windows), len(about.targets)))
    columns = [inputs.index(target) for target in about.targets]
    found = {"the last value": windows[:, columns, -1]}
    back = round(DAY / step) - about.horizon  # steps before the window's last row
    if 0 < back < about.history:
        found["the value of a day before"] = windows[:, columns, -1 - back]
    return tuple(found), np.stack(list(found.values()))


def _filled(values: Floats, most: int) -> tuple[Floats, int]:
    """Gaps of at most ``most`` rows take the value before them; the values, and how many were filled."""
    if not most or not np.isnan(values).any():
        return values, 0
    gap = np.isnan(values)
    place = np.arange(len(values))[:, None]
    last = np.maximum.accumulate(np.where(gap, -1, place), axis=0)
    following = np.minimum.accumulate(np.where(gap, len(values), place)[::-1], axis=0)[::-1]
    short = gap & (last >= 0) & (following - last - 1 <= most)
    return np.where(short, np.take_along_axis(values, np.maximum(last, 0), axis=0), values), int(short.sum())


def _gap_notes(all_: int, whole: int, filled: int, what: str) -> tuple[str, ...]:
    notes = []
    if filled:
        notes.append(f"{filled} cells in gaps took the value before them (table.fill).")
    if whole < all_:
        notes.append(f"{all_ - whole} of {all_} {what} have gaps and are left out.")
    return tuple(notes)
