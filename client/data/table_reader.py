"""Tables on a device, read into columns of numbers: Python's csv and NumPy, a part of the rows at a time.

pandas would take 89 MB on the disk and 42 MB of memory (docs/decisions.md). How a file is written is recognised:
`table_text` (lines, header, cells), `table_numbers` and `table_times`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.client.data.table_numbers import A_NUMBER, GAPS, Floats, Numbers
from bouquet.client.data.table_series import series_of
from bouquet.client.data.table_text import SUFFIXES, Row, Sheet, table_files
from bouquet.client.data.table_times import A_TIME, Clock, alone_out_of_order, odd_epoch, seconds_of, wrong_clock
from bouquet.common.data.left_out import MOST, LeftOut, named
from bouquet.common.errors import BouquetError
from bouquet.common.settings.sections import TableSettings

ROWS = 10_000  # that are held as text at once
UNITS = 3  # lines of units and the like that may follow a header
VALUE = re.compile(r"[-+−.,]*\d")


@dataclass(frozen=True, eq=False)
class Table:
    """Rows in the order of their time.

    ``inputs`` (n, width) and ``targets`` (n, targets) have NaN where there is a gap; ``classes`` (n,) are −1 there;
    ``times`` (n,) are seconds, None without a column of them; ``lines`` (n,) are those of the file, and ``files`` (n,)
    which of the `table_files` that is. ``gaps`` are how many cells of a column are empty, where there are some;
    ``left_out`` counts rows that do not fit, and ``series`` is what `series_of` says for sure.
    """

    inputs: Floats
    targets: Floats
    classes: NDArray[np.int64] | None
    times: Floats | None
    lines: NDArray[np.int64]
    files: NDArray[np.int64]
    gaps: Mapping[str, int]
    notes: tuple[str, ...] = ()
    left_out: int = 0
    series: str = ""


@dataclass
class _Columns:
    """What the rows so far hold, an array for each part of them."""

    inputs: list[Floats] = field(default_factory=list)
    targets: list[Floats] = field(default_factory=list)
    classes: list[NDArray[np.int64]] = field(default_factory=list)
    times: list[Floats] = field(default_factory=list)
    lines: list[NDArray[np.int64]] = field(default_factory=list)
    files: list[NDArray[np.int64]] = field(default_factory=list)


def read_table(
    path: Path, about: TableSettings, classes: tuple[str, ...] = (), with_targets: bool = True, strict: bool = False
) -> Table:
    """The columns that the settings name; a last line that is not finished is passed over.

    ``classes`` are the words of a classification's target. Raises `BouquetError`, naming file, line and column, for a
    column that is missing, and for more than a few rows that do not fit: text where a number is due, a word that is
    none of the values, a time of a clock that was wrong. Few are left out and counted, unless ``strict``.
    """
    files = table_files(path)
    if not files:
        raise BouquetError(f"{path} is no table; give a CSV file ({', '.join(SUFFIXES)}), or a folder with some.")
    reading = _Reading(files, about, about.targets if with_targets else (), classes, LeftOut("rows", strict))
    bad = LeftOut("files")
    for number, file in enumerate(files):
        whole = [(parts, len(parts)) for parts in vars(reading.found).values()]
        damage = replace(reading.damage, reasons=[*reading.damage.reasons])
        try:
            reading.read(number, file)
        except BouquetError as error:
            if len(files) == 1 or strict:
                raise
            bad.add(error)
            reading.damage = damage
            for parts, length in whole:  # not the half of it
                del parts[length:]
    bad.check(len(files))
    found, damage = reading.found, reading.damage
    total = sum(map(len, found.lines)) + damage.count
    notes = [f"Recognised: {', '.join(reading.form)}."] * bool(reading.form)
    notes += [*bad.notes(len(files)), *reading.notes]
    folders = sorted(path.iterdir()) if path.is_dir() else ()
    readable = (entry for entry in folders if entry.is_dir() and os.access(entry, os.R_OK | os.X_OK))
    if below := [file for folder in readable for file in table_files(folder)]:
        notes.append(f"Passed over: {len(below)} tables in folders of {path}, such as {below[0].relative_to(path)}.")
    if damage.count == total:
        why = " ".join((*notes, *damage.reasons))
        raise BouquetError(
            f"{path} has no rows below its header. {why}".rstrip(), public="This device's table has no rows."
        )
    order: NDArray[np.intp] | slice = slice(None)
    series = ""
    times = np.concatenate(found.times) if about.time else None
    if times is not None:
        of_files = np.concatenate(found.files)
        wrong = wrong_clock(times, of_files)
        reading.leave_out(times, wrong, "years from the others: the clock was wrong")
        lost = alone_out_of_order(times, of_files, wrong)
        reading.leave_out(times, lost, "far from the rows around it: has its date lost a figure")
        wrong |= lost
        right, of_lines = ~wrong, np.concatenate(found.lines)
        rows = times[right], of_files[right], of_lines[right]
        said, is_sure = series_of(files, about.time, *rows, cache(lambda: reading.values()[right]))
        if is_sure:
            series = said
        elif said:
            notes.append(f"{said}: if they are of several sensors, give each a device, or one table a column for each.")
        order, twice = _in_order(times, wrong, about, bool(series))
        notes += odd_epoch(times)
        if twice:
            hint = " Do several sensors write here?" * (twice > MOST * len(times))
            notes.append(f"{twice} rows have a time that a later row has, too, and are left out.{hint}")
    damage.check(total)
    notes += damage.notes(total)

    def taken(parts: list[Any]) -> NDArray[Any]:
        whole = np.concatenate(parts)
        parts.clear()  # a long table would be in memory once more
        return whole[order]

    inputs, goals = taken(found.inputs), taken(found.targets)
    labels = taken(found.classes) if found.classes else None
    times = None if times is None else times[order]
    counts = {column: int(np.isnan(values).sum()) for column, values in columns_of(about, inputs, goals).items()}
    if labels is not None:
        counts[about.targets[0]] = int((labels < 0).sum())
    gaps = {column: count for column, count in counts.items() if count}
    lines, of_files = taken(found.lines), taken(found.files)
    return Table(inputs, goals, labels, times, lines, of_files, gaps, tuple(notes), damage.count, series)


def _in_order(
    times: Floats, wrong: NDArray[np.bool_], about: TableSettings, several: bool
) -> tuple[NDArray[np.intp] | slice, int]:
    """The rows to keep, by time, and how many are left out for another of the same time.

    Of those the last counts: a logger that was restarted wrote it again. Of ``several`` series all do.
    """
    order = np.argsort(times, kind="stable")
    order = order[~wrong[order]]
    right = len(order)
    if not several:
        order = order[np.append(np.diff(times[order]) > 0, True)]
    twice = right - len(order)
    if about.until:
        order = order[times[order] < seconds_of(about.until)]
    return slice(None) if np.array_equal(order, np.arange(len(times))) else order, twice


def columns_of(about: TableSettings, inputs: Floats, goals: Floats) -> dict[str, Floats]:
    """The values (n,) of each column: of words, whether it is the first of them; NaN in gaps."""
    places = np.cumsum([0, *(len(about.values.get(column, "1")) for column in about.inputs)])
    found = {column: inputs[:, place] for column, place in zip(about.inputs, places, strict=False)}
    return found | {column: goals[:, k] for k, column in enumerate(about.targets[: goals.shape[1]])}


# --- cells -----------------------------------------------------------------------------------------------------------


@dataclass
class _Reading:
    """The files of a table, one after another; rows of which a cell does not fit go to ``damage``."""

    files: Sequence[Path]
    about: TableSettings
    targets: Sequence[str]
    classes: tuple[str, ...]
    damage: LeftOut
    found: _Columns = field(default_factory=_Columns)
    form: dict[str, None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    units: dict[tuple[str, bool], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.wanted = tuple(dict.fromkeys((*self.about.inputs, *self.targets, *self.about.time)))
        told = () if self.classes else self.targets
        numbers = dict.fromkeys((*self.about.inputs, *told))
        self.numbers = tuple(column for column in numbers if column not in self.about.values)
        self.clock = Clock(self.about.dates, self._stamps, self.form)

    def read(self, number: int, file: Path) -> None:
        """One file. Raises `BouquetError` where it is none, or may be read in two ways."""
        with named(f"The table {file}"):
            if len(self.files) > 1 and not file.stat().st_size:
                self.notes.append(f"{file.name} is empty, and is passed over.")
                return
        sheet = Sheet(file, self.wanted, self.damage)
        rows, written, units = sheet.rows(), None, []
        while part := list(islice(rows, ROWS)):
            if written is None:
                units = self._units(part, sheet.form)
            if units:
                part = [row for row in part if row[1] not in units]
                if not part:
                    continue
            cells = dict(zip(self.wanted, zip(*(row for _, row in part), strict=True), strict=True))
            try:
                if written is None:
                    written = Numbers.of({c: cells[c] for c in self.numbers}, self.about.decimal, sheet.form)
                    self._compare_units(file, units, written.ends)
                self._read_part(file, cells, np.array([line for line, _ in part]), written)
            except BouquetError as error:
                where = "" if str(file) in str(error) else f"{file}: "
                raise BouquetError(f"{where}{error}", public=error.public) from None
            self.found.files.append(np.full(len(self.found.lines[-1]), number))
        self.form |= sheet.form
        self.notes += sheet.notes

    def _units(self, part: Sequence[Row], form: dict[str, None]) -> list[list[str]]:
        """The cells of the first rows, if they hold units and the like: neither a time nor a number."""
        places = [self.wanted.index(column) for column in (*self.numbers, *self.about.time)]
        units = []
        for line, row in part[:UNITS]:
            if is_data([row[place] for place in places]):
                break
            units.append(row)
            form[f"units in line {line}"] = None
        return units

    def _compare_units(self, file: Path, lines: Sequence[Sequence[str]], ends: Mapping[str, str]) -> None:
        """A word where a column has another unit than in a file before, below its header or in cells."""
        below = {(c, True): " ".join(line[self.wanted.index(c)] for line in lines) for c in self.numbers if lines}
        for key, unit in (below | {(column, False): end for column, end in ends.items()}).items():
            if (known := self.units.setdefault(key, unit)) != unit:
                self.notes.append(f"{file.name} has {key[0]!r} in {unit!r}, and a file before in {known!r}.")

    def _stamps(self) -> Iterator[str]:
        for file in self.files:
            for _, row in Sheet(file, self.about.time, LeftOut("rows")).rows():
                yield "T".join(row)

    def values(self) -> Floats:
        """All numbers of the rows so far, (n, columns)."""
        return np.concatenate([np.concatenate(self.found.inputs), np.concatenate(self.found.targets)], axis=1)

    def leave_out(self, times: Floats, wrong: NDArray[np.bool_], why: str) -> None:
        """Rows whose time is wrong."""
        if not wrong.any():
            return
        lines, files = np.concatenate(self.found.lines), np.concatenate(self.found.files)
        for i in map(int, np.flatnonzero(wrong)):
            when = f"{datetime.fromtimestamp(times[i], UTC):%Y-%m-%d %H:%M}"
            text = f"{self.files[files[i]]}, line {lines[i]} is of {when}, {why}."
            self.damage.add(BouquetError(text, public="A row of this device's table has a wrong time."))

    def _read_part(
        self, file: Path, cells: Mapping[str, Sequence[str]], lines: NDArray[np.int64], written: Numbers
    ) -> None:
        """Some rows into numbers."""
        about, targets, found = self.about, self.targets, self.found
        fits = np.ones(len(lines), dtype=bool)

        def checked(column: str, texts: Sequence[str], wrong: NDArray[np.bool_], allowed: str) -> None:
            for i in map(int, np.flatnonzero(wrong & fits)):
                self.damage.add(_wrong(file, int(lines[i]), column, texts[i], allowed))
                fits[i] = False

        def numbers(column: str) -> Floats:
            values, wrong = written.read(column, cells[column], about.gaps_of(column))
            checked(column, cells[column], wrong, A_NUMBER)
            return values

        def places(column: str, values: tuple[str, ...]) -> NDArray[np.int64]:
            known, wrong = _places(cells[column], values, about.gaps_of(column))
            checked(column, cells[column], wrong, f"one of {', '.join(values)}")
            return known

        inputs = []
        for column in about.inputs:
            values = about.values.get(column)
            one = numbers(column)[:, None] if values is None else _indicators(places(column, values), len(values))
            inputs.append(one)
        labels = places(targets[0], self.classes) if self.classes and targets else None
        goals = [numbers(column) for column in targets] if labels is None else []
        if about.time:
            texts = list(zip(*(cells[column] for column in about.time), strict=True))
            times = self.clock.seconds(texts)
            checked(", ".join(about.time), [" ".join(parts) for parts in texts], np.isnan(times), A_TIME)
            found.times.append(times[fits])
        found.inputs.append(np.concatenate(inputs, axis=1)[fits])
        found.targets.append((np.stack(goals, axis=1) if goals else np.empty((len(lines), 0)))[fits])
        found.lines.append(lines[fits])
        if labels is not None:
            found.classes.append(labels[fits])


def is_data(cells: Iterable[str]) -> bool:
    """Whether one of them is a value, or all are gaps; else they may be units."""
    known = [cell for cell in cells if cell.lower() not in GAPS]
    return not known or any(map(VALUE.match, known))


def _places(
    cells: Sequence[str], values: Iterable[str], gaps: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The place of each cell among the values (n,), −1 where there is a gap; and which cells are neither."""
    place = {value: k for k, value in enumerate(values)}
    found = np.array([place.get(cell, -1) for cell in cells])
    wrong = np.zeros(len(cells), dtype=bool)
    for i in map(int, np.flatnonzero(found < 0)):
        wrong[i] = cells[i].lower() not in GAPS and cells[i] not in gaps
    return found, wrong


def _indicators(places: NDArray[np.int64], count: int) -> Floats:
    """A column of 0 and 1 for each value (n, count); NaN where there is a gap."""
    found = (places[:, None] == np.arange(count)).astype(np.float64)
    found[places < 0] = np.nan
    return found


def _wrong(file: Path, line: int, column: str, cell: str, allowed: str) -> BouquetError:
    return BouquetError(
        f"{file}, line {line}, column {column!r} holds {cell[:40]!r}; it must be {allowed}.",
        public=f"A cell in column {column!r} of this device's table is not {allowed}.",
    )
