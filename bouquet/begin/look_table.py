"""``bouquet init`` on tables: which columns there are, what they hold, what is to be told, and the task."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path

import numpy as np

from bouquet.begin.draft import Draft, class_setting, named
from bouquet.client.data.table_numbers import GAPS, Numbers
from bouquet.client.data.table_reader import UNITS, is_data
from bouquet.client.data.table_text import Sheet, columns_of, table_files
from bouquet.client.data.table_times import Clock, wrong_clock
from bouquet.common.data.left_out import MOST, LeftOut
from bouquet.common.errors import BouquetError
from bouquet.common.nearest import nearest

MOST_ROWS = 50_000  # of a table, that are looked at
TOLD = ("target", "label", "class", "y")  # names of columns that are to be told
DATE_PARTS = ("year", "month", "day", "hour", "minute", "second")
CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")
EPOCH = (1e8, 1e14)  # seconds to microseconds since 1970
DAY = 86_400.0
MOST_CLASSES, MOST_WORDS, FEW_NUMBERS = 50, 12, 10
WINDOW = 24  # rows, where a day has too few or too many of them
FILLED = 3  # steps of a gap that take the value before it


Cells = Mapping[str, Sequence[str]]  # of a device's table, by column


@dataclass(frozen=True)
class Column:
    """Cells of all devices, without gaps, and how many are gaps. ``numbers`` are None where some cell is none."""

    name: str
    cells: list[str]
    gaps: int
    numbers: list[float] | None

    @property
    def distinct(self) -> list[str]:
        """The values, each once, in order."""
        known = dict(zip(self.cells, self.numbers or self.cells, strict=True))
        return sorted(known, key=lambda text: (known[text], text))


def look_at_tables(draft: Draft, target: str | None) -> None:
    """Add what tables need to ``draft``; ``target`` is the column to tell, where somebody said it."""
    by_device = [_read(device) for device in draft.devices]
    common = [name for name in by_device[0] if all(name in cells for cells in by_device)]
    columns = {name: _column(name, by_device) for name in common}
    if len(common) < 2:
        raise BouquetError(f"The tables have {len(common)} columns in common ({', '.join(common)}); two are needed.")
    draft.samples = counts = [len(next(iter(cells.values()))) for cells in by_device]
    draft.seen.append(f"{named(draft)}, {sum(counts)} rows with the columns {', '.join(common)}.")
    if others := sorted({name for cells in by_device for name in cells} - set(common)):
        draft.seen.append(f"Not every device has {', '.join(others)}: passed over.")
    time = _time_columns(columns)
    left = [column for column in columns.values() if column.name not in time and column.cells]
    if empty := [name for name, column in columns.items() if not column.cells]:
        draft.seen.append(f"Empty: {', '.join(name or 'a column without a name' for name in empty)}.")
    told = _told(left, bool(time), target)
    kind = _task(told, bool(time))
    draft.set("task", "kind", kind) if kind != "classification" else None
    if unit := re.search(r"[(\[](.{1,20})[)\]]\s*$", told.name):
        draft.set("task", "unit", unit[1])
    inputs = _inputs(draft, left, told, kind)
    draft.set("table", "inputs", inputs, "columns that the model sees")
    draft.set("table", "targets", [told.name], "the column to tell")
    if kind == "classification":
        class_setting(draft, told.distinct, f"the words in {told.name}")
    named_so = "as its name says" if told.name.lower() in TOLD else "assumed; another by --target"
    why = "as you said" if target else named_so
    draft.assumed.append(f"The column to tell is {told.name} ({why}): {_what(kind, told)}.")
    if time:
        draft.set("table", "time", list(time), "when a row is of: the newest part is tested")
        _windows(draft, [_seconds(cells, time) for cells in by_device], min(counts), kind == "forecast")
    else:
        draft.assumed.append("No column says when a row is of: a random part is tested.")
    if holes := [f"{column.name} {column.gaps}" for column in left if column.gaps]:
        draft.seen.append(f"Empty cells: {', '.join(holes)}.")
        if time:
            draft.set("table", "fill", FILLED, "steps of a gap that take the value before it")
    draft.set("model", "name", "mlp")


def _read(device: Path) -> Cells:
    """The cells of a device's tables, by column, as text."""
    names: list[str] = []
    rows: list[list[str]] = []
    for file in table_files(device):
        names = names or [name for name, count in Counter(columns_of(file)).items() if count == 1]
        sheet = Sheet(file, names, LeftOut("rows"))  # what does not fit is named when all is read
        found = [row for _, row in islice(sheet.rows(), MOST_ROWS)] if names else []
        first = next((k for k, row in enumerate(found[: UNITS + 1]) if is_data(row)), 0)
        rows += found[first:]
    if not rows:
        raise BouquetError(f"{device} has no rows below its header.")
    return dict(zip(names, zip(*rows, strict=True), strict=True))


def _column(name: str, tables: Sequence[Cells]) -> Column:
    held = [[cell for cell in table[name] if cell.lower() not in GAPS] for table in tables]
    cells = [cell for one in held for cell in one]
    gaps = sum(len(table[name]) for table in tables) - len(cells)
    read = [Numbers.of({name: cells}, ".", {}).read(name, cells) for cells in held]
    wrong = np.concatenate([odd for _, odd in read])
    if wrong.sum() > MOST * len(wrong):
        return Column(name, cells, gaps, None)
    numbers = np.concatenate([found for found, _ in read])[~wrong]  # rows that do not fit are named when all is read
    return Column(name, list(compress(cells, ~wrong)), gaps, numbers.tolist())


def _time_columns(columns: dict[str, Column]) -> tuple[str, ...]:
    """The column with the time of a row; a date and a time of day; or a date's parts; empty without."""
    for column in columns.values():
        if column.cells and column.numbers is None and np.mean(np.isfinite(_times([column.cells[:100]]))) >= 1 - MOST:
            clocks = (c.name for c in columns.values() if c.cells and all(map(CLOCK.fullmatch, c.cells[:100])))
            dates = all(len(cell) <= len("2026-01-01") for cell in column.cells[:100])
            return (column.name, *islice(clocks, 1)) if dates else (column.name,)
        if (
            column.numbers
            and re.search("time|epoch|unix", column.name.lower())
            and EPOCH[0] < column.numbers[0] < EPOCH[1]
        ):
            return (column.name,)
    known = {name.lower(): name for name, column in columns.items() if column.numbers is not None}
    parts = [known[part] for part in DATE_PARTS if part in known]
    return tuple(parts) if all(part in known for part in DATE_PARTS[:3]) else ()


def _times(columns: Sequence[Sequence[str]]) -> list[float]:
    """Seconds since 1970 of each row, of one column, of two or of a date's parts; NaN where it is no time."""
    clock = Clock("", lambda: columns[0], {})
    try:
        return clock.seconds(list(zip(*columns, strict=True))).tolist()
    except BouquetError:  # dates that may be of two days; that is said when all is read
        return [0.0] * len(columns[0])


def _told(columns: list[Column], timed: bool, target: str | None) -> Column:
    by_name = {column.name: column for column in columns}
    if target is not None:
        if target not in by_name:
            raise BouquetError(f"No column {target!r} to tell; {nearest(target, by_name)}.")
        return by_name[target]
    for column in columns:
        if column.name.lower() in TOLD:
            return column
    measured = [c for c in columns if c.numbers is not None and len(set(c.numbers)) > 2]
    if timed and measured:
        return measured[0]
    if len(columns) < 2:
        raise BouquetError("There is nothing to tell from anything: the tables have one column beside their times.")
    return columns[-1]


def _task(told: Column, timed: bool) -> str:
    if told.numbers is None:
        if len(told.distinct) > MOST_CLASSES:
            raise BouquetError(
                f"The column {told.name} has {len(told.distinct)} different words; name another: --target."
            )
        return "classification"
    whole = all(number.is_integer() for number in told.numbers)
    if whole and len(told.distinct) <= FEW_NUMBERS and (not timed or told.name.lower() in TOLD):
        return "classification"
    return "forecast" if timed else "regression"


def _what(kind: str, told: Column) -> str:
    if kind == "classification":
        return f"one of {', '.join(told.distinct)}"
    return "a number" if kind == "regression" else "a number, foretold from what was before"


def _inputs(draft: Draft, columns: list[Column], told: Column, kind: str) -> list[str]:
    inputs: list[str] = []
    words: list[str] = []
    passed: list[str] = []
    for column in columns:
        if column is told:
            inputs += [column.name] if kind == "forecast" else []
        elif column.numbers is not None:
            counts = len(set(column.numbers))
            is_index = (np.diff(column.numbers) != 1).sum() < len(draft.devices)  # each device's begins anew
            (passed if counts < 2 or is_index or not column.name else inputs).append(column.name)
        elif 2 <= len(column.distinct) <= MOST_WORDS and not any(set(text) & set(",=") for text in column.distinct):
            inputs.append(column.name)
            words.append(f"{column.name}={','.join(column.distinct)}")
        else:
            passed.append(column.name)
    if not inputs:
        raise BouquetError(f"No column is left to tell {told.name} from.")
    if words:
        draft.set("table", "categories", words, "columns of words, and their values")
    if passed:
        names = ", ".join(name or "one without a name" for name in passed)
        draft.seen.append(f"Passed over: {names} (constant, a count of rows, or words of too many kinds).")
    return inputs


def _seconds(cells: Cells, time: Sequence[str]) -> list[float]:
    """Times that can be read and are of no wrong clock, in seconds since 1970, in order."""
    seconds = np.array([moment for moment in _times([cells[name] for name in time]) if np.isfinite(moment)])
    return sorted(seconds[~wrong_clock(seconds, np.zeros(len(seconds), dtype=np.int64))].tolist())


def _windows(draft: Draft, times: list[list[float]], rows: int, is_forecast: bool) -> None:
    """How often there is a row, how many are missing, and for a forecast how many of the ``rows`` the model sees."""
    differences = np.concatenate([np.diff(one) for one in times])
    differences = differences[differences > 0]
    step = float(np.median(differences)) if len(differences) else None  # None: written as only the reader knows
    if step is not None:
        missing = int(sum(np.rint(differences / step) - 1))
        draft.seen.append(f"A row every {_span(step)}" + (f"; {missing} steps have none." if missing else "."))
    if not is_forecast:
        return
    a_day = round(DAY / step) if step else 0
    history = max(1, min(a_day if 6 <= a_day <= 2 * WINDOW else WINDOW, rows // 20))
    draft.set("table", "history", history, "rows that the model sees")
    draft.set("table", "horizon", 1, "steps from the last of them to what is told")
    ahead = f" ({_span(step)})" if step else ""
    draft.assumed.append(f"It is foretold 1 step{ahead} ahead, from {history} rows.")


def _span(seconds: float) -> str:
    for length, unit in ((DAY, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= length:
            count = seconds / length
            return unit.removesuffix("s") if count == 1 else f"{count:g} {unit}"
    return "second" if seconds == 1 else f"{seconds:g} seconds"
