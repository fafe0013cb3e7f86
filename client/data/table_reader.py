"""CSV files on a device, read into columns of numbers: Python's csv and NumPy, a part of the rows at a time.

pandas would take 89 MB on the disk and 42 MB of memory (docs/decisions.md).
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import lzma
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common.data.left_out import LeftOut
from bouquet.common.errors import BouquetError
from bouquet.common.settings.sections import TableSettings

SUFFIXES = (".csv", ".csv.gz", ".csv.xz")
OTHERS = {".parquet": "pandas.read_parquet(FILE).to_csv('data.csv', index=False)"}
GAPS = frozenset({"", "na", "n/a", "nan", "null", "none", "-"})  # what stands for a value that is not there
COMMON_GAPS = dict.fromkeys(("", "NA", "NaN", "nan", "null", "NULL", "None"), "nan")  # found without `lower`
PARTS = 6  # of a time: year, month, day, hour, minute, second
LATEST = 1e11  # seconds; what is more is milliseconds
ROWS = 10_000  # that are held as text at once
A_NUMBER = "a number that float32 holds, or nothing where there is a gap"
A_TIME = "a time: ISO 8601, seconds since 1970 (not milliseconds), a date and a time of day, or a date's parts"

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows in the order of their time.

    ``inputs`` (n, width) and ``targets`` (n, targets) have NaN where there is a gap; ``classes`` (n,) are −1 there;
    ``times`` (n,) are seconds, None without a column of them; ``lines`` (n,) are those of the file, and ``files`` (n,)
    which of the `table_files` that is. ``gaps`` are how many cells of a column are empty, where there are some;
    ``left_out`` counts rows that do not fit.
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


@dataclass
class _Columns:
    """What the rows so far hold, an array for each part of them."""

    inputs: list[Floats] = field(default_factory=list)
    targets: list[Floats] = field(default_factory=list)
    classes: list[NDArray[np.int64]] = field(default_factory=list)
    times: list[Floats] = field(default_factory=list)
    lines: list[NDArray[np.int64]] = field(default_factory=list)
    files: list[NDArray[np.int64]] = field(default_factory=list)


def table_files(path: Path) -> list[Path]:
    """The CSV file itself, or those of a folder, by name; empty where there are none."""
    if path.is_dir():
        found = (file for file in path.iterdir() if _is_table(file) and not file.name.startswith("."))
        return sorted(found)
    return [path] if _is_table(path) else []


def _is_table(file: Path) -> bool:
    return file.name.lower().endswith(SUFFIXES)  # a card of an Arduino has DATALOG.CSV


def read_table(
    path: Path,
    about: TableSettings,
    classes: tuple[str, ...] = (),
    with_targets: bool = True,
    strict: bool = False,
) -> Table:
    """The columns that the settings name; a last line that is not finished is passed over.

    ``classes`` are the words of a classification's target. Raises `BouquetError`, naming file, line and column, for a
    column that is missing, text where a number is due, or a word that is none of the values; rows that do
    not fit are left out and counted where they are few, unless ``strict``.
    """
    files = table_files(path)
    if not files:
        raise BouquetError(_no_table(path))
    targets = about.targets if with_targets else ()
    found, damage, notes = _Columns(), LeftOut("rows", strict), []
    for number, file in enumerate(files):
        unfinished: list[int] = []
        rows = _rows(file, list(dict.fromkeys((*about.inputs, *targets, *about.time))), damage, unfinished)
        while part := list(islice(rows, ROWS)):
            _read_part(file, part, about, targets, classes, found, damage)
            found.files.append(np.full(len(found.lines[-1]), number))
        if unfinished:
            notes.append(f"The last line of {file.name} has no end yet, and is passed over.")
    total = sum(map(len, found.lines)) + damage.count
    damage.check(total)
    if damage.count == total:
        why = " ".join((*notes, *damage.reasons))
        raise BouquetError(
            f"{path} has no rows below its header. {why}".rstrip(), public="This device's table has no rows."
        )
    notes += damage.notes(total)
    order: NDArray[np.intp] | slice = slice(None)
    times = np.concatenate(found.times) if about.time else None
    if times is not None:
        order, twice = _in_order(times, about)
        if twice:
            notes.append(f"{twice} rows have a time that a later row has, too, and are left out.")

    def taken(parts: list[Any]) -> NDArray[Any]:
        whole = np.concatenate(parts)
        parts.clear()  # a long table would be in memory once more
        return whole[order]

    inputs, goals = taken(found.inputs), taken(found.targets)
    labels = taken(found.classes) if found.classes else None
    times = None if times is None else times[order]
    gaps = _gaps(about, inputs, targets, goals, labels)
    lines, of_files = taken(found.lines), taken(found.files)
    return Table(inputs, goals, labels, times, lines, of_files, gaps, tuple(notes), damage.count)


def seconds_of(text: str) -> float:
    """Seconds since 1970 of a time in ISO 8601; one without a zone counts as UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _no_table(path: Path) -> str:
    for suffix, command in OTHERS.items():
        if path.suffix.lower() == suffix or (path.is_dir() and any(path.glob(f"*{suffix}"))):
            return f"{path}: tables are read as CSV, not as {suffix}. Where pandas is installed: {command}"
    return f"{path} is no table; give a CSV file ({', '.join(SUFFIXES)}), or a folder with some."


def _in_order(times: Floats, about: TableSettings) -> tuple[NDArray[np.intp] | slice, int]:
    """The rows to keep, by time, and how many are left out for another of the same time.

    Of those the last counts: a logger that was restarted wrote it again.
    """
    order = np.argsort(times, kind="stable")
    order = order[np.append(np.diff(times[order]) > 0, True)]
    twice = len(times) - len(order)
    if about.until:
        order = order[times[order] < seconds_of(about.until)]
    return slice(None) if np.array_equal(order, np.arange(len(times))) else order, twice


def _gaps(
    about: TableSettings, inputs: Floats, targets: Sequence[str], goals: Floats, labels: NDArray[np.int64] | None
) -> dict[str, int]:
    places = [0]
    for column in about.inputs:
        places.append(places[-1] + len(about.values.get(column, "1")))
    found = {c: int(np.isnan(inputs[:, k]).sum()) for c, k in zip(about.inputs, places, strict=False)}
    found |= {c: int(np.isnan(goals[:, k]).sum()) for k, c in enumerate(targets) if labels is None}
    if labels is not None:
        found[targets[0]] = int((labels < 0).sum())
    return {column: count for column, count in found.items() if count}


# --- files and rows --------------------------------------------------------------------------------------------------


def _lines(file: Path, unfinished: list[int]) -> Iterator[str]:
    """The lines that have an end: a logger may be in the middle of the last. It is in ``unfinished`` then."""
    try:
        content: Any = io.BytesIO(file.read_bytes())  # at once: a file may be written anew while it is read
        if file.name.lower().endswith(".gz"):
            content = gzip.GzipFile(fileobj=content)
        if file.name.lower().endswith(".xz"):
            content = lzma.LZMAFile(content)  # noqa: SIM115  of bytes in memory
        for number, line in enumerate(io.TextIOWrapper(content, "utf-8-sig", newline="")):
            if line.endswith(("\n", "\r")):
                yield line.replace("\0", "")  # what a card has where power was lost
            elif line.strip("\0"):
                unfinished.append(number)
    except OSError as error:
        raise BouquetError(f"The table {file} cannot be read: {error.strerror or error}.") from None
    except (EOFError, lzma.LZMAError, zlib.error) as error:
        raise BouquetError(f"The table {file} cannot be unpacked: {error}.") from None
    except UnicodeDecodeError:
        raise BouquetError(f"The table {file} is not text in UTF-8.") from None


def _rows(file: Path, wanted: list[str], damage: LeftOut, unfinished: list[int]) -> Iterator[tuple[int, list[str]]]:
    """Line number and the wanted cells of each row, each column once."""
    reader = csv.reader(_lines(file, unfinished))
    try:
        first = next(reader, [])
        places = _places_of(file, [name.strip() for name in first], wanted)
        for row in reader:
            if row == first or not any(map(str.strip, row)):
                continue  # a logger that was restarted writes its header again
            if len(row) != len(first):
                text = f"{file}, line {reader.line_num} has {len(row)} cells, its header {len(first)}."
                damage.add(
                    BouquetError(text, public="A row of this device's table is longer or shorter than its header.")
                )
                continue
            yield reader.line_num, [row[place].strip() for place in places]
    except csv.Error as error:
        raise BouquetError(f"{file}, line {reader.line_num}: {error}.") from None


def _places_of(file: Path, header: list[str], columns: list[str]) -> list[int]:
    if missing := [column for column in columns if column not in header]:
        other = next((mark for mark in ";\t" if len(header) == 1 and mark in header[0]), "")
        hint = f" Its cells are apart by {other!r}, where a comma is due, and a point in numbers." if other else ""
        raise BouquetError(
            f"{file} has no column {missing[0]!r}; its header has {', '.join(header) or 'nothing'}.{hint}",
            public=f"This device's table has no column {missing[0]!r}.",
        )
    if twice := [column for column in columns if header.count(column) > 1]:
        raise BouquetError(f"{file} has two columns {twice[0]!r}.")
    return [header.index(column) for column in columns]


# --- cells -----------------------------------------------------------------------------------------------------------


def _read_part(
    file: Path,
    rows: list[tuple[int, list[str]]],
    about: TableSettings,
    targets: Sequence[str],
    classes: tuple[str, ...],
    found: _Columns,
    damage: LeftOut,
) -> None:
    """Some rows into numbers; those of which a cell does not fit go to ``damage``."""
    wanted = dict.fromkeys((*about.inputs, *targets, *about.time))
    cells = dict(zip(wanted, zip(*(row for _, row in rows), strict=True), strict=True))
    lines = np.array([line for line, _ in rows])
    fits = np.ones(len(rows), dtype=bool)

    def checked(column: str, texts: Sequence[str], wrong: NDArray[np.bool_], allowed: str) -> None:
        for i in map(int, np.flatnonzero(wrong & fits)):
            damage.add(_wrong(file, int(lines[i]), column, texts[i], allowed))
            fits[i] = False

    def numbers(column: str) -> Floats:
        values, wrong = _numbers(cells[column])
        checked(column, cells[column], wrong, A_NUMBER)
        return values

    def places(column: str, values: tuple[str, ...]) -> NDArray[np.int64]:
        known, wrong = _places(cells[column], values)
        checked(column, cells[column], wrong, f"one of {', '.join(values)}")
        return known

    inputs = []
    for column in about.inputs:
        values = about.values.get(column)
        inputs.append(numbers(column)[:, None] if values is None else _indicators(places(column, values), len(values)))
    labels = places(targets[0], classes) if classes and targets else None
    goals = [numbers(column) for column in targets] if labels is None else []
    if about.time:
        texts = list(zip(*(cells[column] for column in about.time), strict=True))
        times = np.array([_time(parts) for parts in texts])
        checked(", ".join(about.time), [" ".join(parts) for parts in texts], np.isnan(times), A_TIME)
        found.times.append(times[fits])
    found.inputs.append(np.concatenate(inputs, axis=1)[fits])
    found.targets.append((np.stack(goals, axis=1) if goals else np.empty((len(rows), 0)))[fits])
    found.lines.append(lines[fits])
    if labels is not None:
        found.classes.append(labels[fits])


def _numbers(cells: Sequence[str]) -> tuple[Floats, NDArray[np.bool_]]:
    """The numbers (n,), NaN where there is a gap; and which cells are none."""
    try:
        found = np.array(list(map(float, map(COMMON_GAPS.get, cells, cells))))
    except ValueError:
        found = np.array([_number(cell) for cell in cells])
    return found, np.abs(found) > np.finfo(np.float32).max


def _number(text: str) -> float:
    """Infinite where it is none."""
    try:
        return math.nan if text.lower() in GAPS else float(text)
    except ValueError:
        return math.inf


def _places(cells: Sequence[str], values: Iterable[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The place of each cell among the values (n,), −1 where there is a gap; and which cells are neither."""
    place = {value: k for k, value in enumerate(values)}
    found = np.array([place.get(cell, -1) for cell in cells])
    wrong = np.zeros(len(cells), dtype=bool)
    for i in map(int, np.flatnonzero(found < 0)):
        wrong[i] = cells[i].lower() not in GAPS
    return found, wrong


def _indicators(places: NDArray[np.int64], count: int) -> Floats:
    """A column of 0 and 1 for each value (n, count); NaN where there is a gap."""
    found = (places[:, None] == np.arange(count)).astype(np.float64)
    found[places < 0] = np.nan
    return found


def _time(parts: Sequence[str]) -> float:
    """Seconds since 1970, NaN where it is no time: of one cell, of a date and a time of day, or of a date's parts."""
    try:
        if len(parts) == 2:
            return seconds_of("T".join(parts))
        if len(parts) > 1:
            numbers = [float(part) for part in parts]
            if any(not number.is_integer() for number in numbers):
                return math.nan
            return datetime(*map(int, numbers), tzinfo=UTC).timestamp()  # type: ignore[misc, arg-type]
        text = parts[0]
        if len(text) == 8 and text.isdigit():
            with contextlib.suppress(ValueError):
                return seconds_of(text)  # a date in ISO 8601's short form, not some second of 1970
        try:
            number = float(text)
        except ValueError:
            return seconds_of(text)
        return number if abs(number) < LATEST else math.nan
    except (ValueError, OverflowError):
        return math.nan


def _wrong(file: Path, line: int, column: str, cell: str, allowed: str) -> BouquetError:
    return BouquetError(
        f"{file}, line {line}, column {column!r} holds {cell[:40]!r}; it must be {allowed}.",
        public=f"A cell in column {column!r} of this device's table is not {allowed}.",
    )
