"""Samples of a device's own tables: rows, or windows to foretell from; what is tested, and what they are scaled by."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.client.data.arrays import OwnData
from bouquet.client.data.outliers import limits_of
from bouquet.client.data.table_reader import Floats, Table
from bouquet.client.data.table_times import DAY, seconds_of
from bouquet.common.data.scaling import Limits, Scaling
from bouquet.common.errors import BouquetError
from bouquet.common.settings.sections import TableSettings
from bouquet.common.system.resources import available_bytes

COPIES = 3  # of all windows, that are in memory while they are scaled and divided
SPARSE = 50  # steps of time for each row, beyond which a time must be wrong
NEWEST, FAR = 9, 100.0  # samples, and deviations that they may be off before it is said
SAME = 1e-12  # of its mean, that a column deviates by where nothing but rounding changes


@dataclass(frozen=True, eq=False)
class Samples:
    """What a table gives: ``x`` (n, width) or (n, width, history), ``y`` (n, targets) or labels (n,).

    ``times`` (n,) are those of the targets and ``starts`` (n,) of the first row that a sample is made of, None without
    times. ``naive`` (k, n, targets) is what a forecast without a model says, by the ``naive_names``. ``lines`` (n,) are
    those of the file that rows are from, and ``files`` (n,) which of the `table_files` that is; None of windows.
    """

    x: Floats
    y: NDArray[Any]
    times: Floats | None
    starts: Floats | None
    notes: tuple[str, ...]
    naive: Floats
    naive_names: tuple[str, ...]
    lines: NDArray[np.int64] | None = None
    files: NDArray[np.int64] | None = None


Timed = Samples | OwnData


def samples_of(table: Table, about: TableSettings, is_forecast: bool, needs_targets: bool = True) -> Samples:
    """Each row a sample, or with ``is_forecast`` each window; rows and windows with gaps are left out and counted.

    Without ``needs_targets`` those stay whose target is not there, NaN or −1: what is yet to come. A window is
    ``history`` rows, one step of time after another, the step being the most common one; its targets are those
    ``horizon`` steps later. None goes over a gap in time. Raises `BouquetError` for windows of several series in one
    table; each of their rows is a sample.
    """
    if table.series and is_forecast:
        raise BouquetError(
            f"{table.series}: give each a device of its own, or one table a column for each.",
            public="This device's table has several series in one, such as of two sensors.",
        )
    return (_windows if is_forecast else _single_rows)(table, about, needs_targets)


def divide(
    samples: Timed, about: TableSettings, test_fraction: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Indices to train and to test on, by time; None where there are no times.

    What is of ``table.cut`` or later is tested, or the newest ``test_fraction``. No row that a tested sample is made of
    is before the cut, and no target that is trained on is after it.
    """
    if samples.times is None or samples.starts is None:
        return None
    if about.cut:
        cut = seconds_of(about.cut)
    else:
        later = np.sort(samples.times)[len(samples.times) - max(1, round(test_fraction * len(samples.times))) :]
        cut = float(later[0]) if len(later) else 0.0
    return np.flatnonzero(samples.times < cut), np.flatnonzero(samples.starts >= cut)


def span(samples: Timed, train: NDArray[np.int64], test: NDArray[np.int64]) -> str:
    """From when to when is trained on and tested, for people."""
    times = samples.times
    assert times is not None
    said = [f"{_date(times[part].min())} to {_date(times[part].max())}" for part in (train, test)]
    return f"Trained on: {said[0]}; tested: {said[1]} (UTC)."


def scaling_of(x: NDArray[Any], y: NDArray[Any], has_classes: bool) -> Scaling:
    """Mean and deviation of each column of what is trained on; that of a constant counts as 1.

    Where few values are so far outside that they would spoil the scale (`client.data.outliers`), it is that of the
    others. Bytes, of images, are not scaled here.
    """
    inputs = _of_columns(x)
    targets = _of_columns(y) if not has_classes else ((), (), ())
    return Scaling(*inputs[:2], *targets[:2], limits=inputs[2], target_limits=targets[2])


def _of_columns(values: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...], Limits]:
    """Mean, deviation and limits of each column of (n, columns, …)."""
    if values.dtype == np.uint8:
        return (0.0,) * values.shape[1], (1.0,) * values.shape[1], ()
    mean, std = (list(found) for found in _mean_and_deviation(values, (0, *range(2, values.ndim))))
    limits: list[tuple[float, float] | None] = [None] * len(mean)
    for k in range(len(mean) if values.ndim < 4 else 0):
        column = values[:, k]
        found = limits_of(column if column.ndim == 1 else column[:, -1])  # a window's other rows are others' last
        if found is not None:
            limits[k] = low, high = found
            inside = column[(column >= low) & (column <= high)]
            mean[k], std[k] = (figures[0] for figures in _mean_and_deviation(inside[:, None], (0,)))
    return tuple(mean), tuple(std), tuple(limits) if any(limits) else ()


def capped(scaling: Scaling, about: TableSettings) -> dict[str, str]:
    """The columns whose scale leaves out what is far outside, with what it leaves."""
    words = about.words
    named = [*zip(words, scaling.limits, strict=False), *zip(about.targets, scaling.target_limits, strict=False)]
    return {column: f"{column} {limit[0]:.4g} to {limit[1]:.4g}" for column, limit in named if limit is not None}


def jumped(x: NDArray[np.float32], about: TableSettings) -> tuple[str, ...]:
    """A word on inputs whose newest values are far from what is trained on; ``x`` (n, columns) is scaled, in order."""
    words = about.words
    off = np.abs(np.median(x[-NEWEST:], axis=0))
    return tuple(
        f"The newest values of {column!r} are far from what is trained on: has its unit changed, or does it fail?"
        for column, by in zip(words, off, strict=True)
        if by > FAR
    )


def _date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(float(seconds), UTC):%Y-%m-%d %H:%M}"


def _mean_and_deviation(values: NDArray[Any], axes: tuple[int, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    deviation = values.std(axis=axes, dtype=np.float64)
    mean = values.mean(axis=axes, dtype=np.float64)
    least = SAME * np.abs(mean)
    std = np.where(deviation > least, deviation, np.maximum(1.0, least))  # of a constant 1e18 rounding is large, too
    return tuple(float(v) for v in mean), tuple(float(v) for v in std)


# --- samples ---------------------------------------------------------------------------------------------------------


def _single_rows(table: Table, about: TableSettings, needs_targets: bool) -> Samples:
    inputs, filled = table.inputs, 0
    if about.fill and not table.series and table.times is not None and len(table.times) > 1:
        steps = np.rint((table.times - table.times[0]) / _step(table.times)).astype(np.int64)
        inputs, filled = _filled(inputs, about.fill, steps)
    if table.classes is not None:
        y: NDArray[Any] = table.classes
        known = np.asarray(table.classes >= 0)
    else:
        y, known = table.targets, np.asarray(np.isfinite(table.targets).all(axis=1))
    whole = np.asarray(np.isfinite(inputs).all(axis=1) & (known | (not needs_targets)))
    times = None if table.times is None else table.times[whole]
    notes = (*table.notes, *_gap_notes(table, len(whole), int(whole.sum()), filled, "rows"))
    none = np.empty((0, int(whole.sum()), table.targets.shape[1]))
    return Samples(inputs[whole], y[whole], times, times, notes, none, (), table.lines[whole], table.files[whole])


def _windows(table: Table, about: TableSettings, needs_targets: bool) -> Samples:
    times = table.times
    if times is None or len(times) < 2:
        raise BouquetError("A forecast needs two rows at least, and their times.")
    step = _step(times)
    ticks = np.rint((times - times[0]) / step).astype(np.int64)
    if ticks[-1] >= SPARSE * len(times):
        first, last = (_date(times[i]) for i in (0, -1))
        raise BouquetError(
            f"The table's times go from {first} to {last}, in steps of {step:g} seconds, and it has {len(times)} rows: "
            "is a time wrong?"
        )
    # A row for each step of time; of rows that fall on the same, the last.
    x = np.full((ticks[-1] + 1, table.inputs.shape[1]), np.nan)
    y = np.full((ticks[-1] + 1, table.targets.shape[1]), np.nan)
    x[ticks], y[ticks] = table.inputs, table.targets
    missing = len(x) - len(np.unique(ticks))
    x, filled = _filled(x, about.fill, np.arange(len(x)))
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
    notes += _gap_notes(table, count, len(start), filled, "windows")
    seconds = times[0] + step * (start + history - 1 + horizon)
    return Samples(chosen, y[start + history - 1 + horizon], seconds, times[0] + step * start, notes, naive, names)


def _step(times: Floats) -> float:
    """The most common difference of times, in seconds; of jittering ones about the median."""
    differences = np.diff(times)
    values, counts = np.unique(np.round(differences, 3), return_counts=True)
    most = int(counts.argmax())
    common = float(values[most])
    return common if common > 0 and counts[most] * 2 > len(differences) else float(np.median(differences))


def _naive(windows: Floats, about: TableSettings, step: float) -> tuple[tuple[str, ...], Floats]:
    """What is foretold without a model, (k, n, targets): the last value, and that of the same time a day before."""
    inputs = list(about.words)
    if not all(target in inputs and target not in about.values for target in about.targets):
        return (), np.empty((0, len(windows), len(about.targets)))
    columns = [inputs.index(target) for target in about.targets]
    found = {"the last value": windows[:, columns, -1]}
    back = round(DAY / step) - about.horizon  # steps before the window's last row
    if 0 < back < about.history:
        found["the value of a day before"] = windows[:, columns, -1 - back]
    return tuple(found), np.stack(list(found.values()))


def _filled(values: Floats, most: int, steps: NDArray[np.int64]) -> tuple[Floats, int]:
    """Gaps of at most ``most`` steps of time take the value before them; the values, and how many were filled.

    ``steps`` (n,) says when the rows are, in ascending order.
    """
    if not most or not np.isnan(values).any():
        return values, 0
    gap = np.isnan(values)
    place = np.arange(len(values))[:, None]
    last = np.maximum.accumulate(np.where(gap, -1, place), axis=0)
    following = np.minimum.accumulate(np.where(gap, len(values), place)[::-1], axis=0)[::-1]
    when = np.append(steps, steps[-1] + 1)
    short = gap & (last >= 0) & (when[following] - when[np.maximum(last, 0)] - 1 <= most)
    return np.where(short, np.take_along_axis(values, np.maximum(last, 0), axis=0), values), int(short.sum())


def _gap_notes(table: Table, all_: int, whole: int, filled: int, what: str) -> tuple[str, ...]:
    notes = []
    if filled:
        notes.append(f"{filled} cells in gaps took the value before them (table.fill).")
    if whole < all_:
        notes.append(f"{all_ - whole} of {all_} {what} have gaps and are left out.")
    if table.gaps:
        cells = ", ".join(f"{column} {count}" for column, count in table.gaps.items())
        notes.append(f"Cells without a value, of {len(table.inputs)} rows: {cells}.")
    return tuple(notes)
