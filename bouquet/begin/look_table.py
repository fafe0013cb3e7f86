"""``bouquet init`` on tables: which columns there are, what they hold, what is to be told, and the task."""

from __future__ import annotations

import csv
import gzip
import lzma
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bouquet.begin.draft import Draft, class_setting, named
from bouquet.client.data.table_reader import table_files
from bouquet.common.errors import BouquetError
from bouquet.common.nearest import nearest

MOST_ROWS = 50_000  # of a table, that are looked at
GAPS = {"", "na", "n/a", "nan", "null", "none", "-"}
TOLD = ("target", "label", "class", "y")  # names of columns that are to be told
DATE_PARTS = ("year", "month", "day", "hour", "minute", "second")
CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")
EPOCH = (1e8, 1e14)  # seconds to microseconds since 1970
DAY = 86_400.0
MOST_CLASSES, MOST_WORDS, FEW_NUMBERS = 50, 12, 10
WINDOW = 24  # rows, where a day has too few or too many of them
FILLED = 3  # steps of a gap that take the value before it


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
        return sorted(
            set(self.cells), key=lambda text: (self.numbers is not None and float(text.replace(",", ".")), text)
        )


def look_at_tables(draft: Draft, target: str | None) -> None:
    """Add what tables need to ``draft``; ``target`` is the column to tell, where somebody said it."""
    by_device = [_read(device) for device in draft.devices]
    common = [name for name in by_device[0][0] if all(name in header for header, _ in by_device)]
    columns = {name: _column(name, by_device) for name in common}
    if len(common) < 2:
        raise BouquetError(f"The tables have {len(common)} columns in common ({', '.join(common)}); two are needed.")
    rows = sum(len(cells) for _, cells in by_device)
    draft.seen.append(f"{named(draft)}, {rows} rows with the columns {', '.join(common)}.")
    if others := sorted({name for header, _ in by_device for name in header} - set(common)):
        draft.seen.append(f"Not every device has {', '.join(others)}: passed over.")
    time = _time_columns(columns)
    left = [column for column in columns.values() if column.name not in time and column.cells]
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
    why = (
        "as you said" if target else "as its name says" if told.name.lower() in TOLD else "assumed; another by --target"
    )
    draft.assumed.append(f"The column to tell is {told.name} ({why}): {_what(kind, told)}.")
    if time:
        draft.set("table", "time", list(time), "when a row is of: the newest part is tested")
        _windows(draft, [_seconds(header, cells, time) for header, cells in by_device], kind == "forecast")
    else:
        draft.assumed.append("No column says when a row is of: a random part is tested.")
    if holes := [f"{column.name} {column.gaps}" for column in left if column.gaps]:
        draft.seen.append(f"Empty cells: {', '.join(holes)}.")
        if time:
            draft.set("table", "fill", FILLED, "steps of a gap that take the value before it")
    draft.set("model", "name", "mlp")


def _read(device: Path) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a device's tables, as text."""
    header: list[str] = []
    rows: list[list[str]] = []
    for file in table_files(device):
        opened: Any = {".gz": gzip.open, ".xz": lzma.open}.get(file.suffix.lower(), open)
        try:
            with opened(file, "rt", encoding="utf-8-sig", newline="") as content:
                text = content.readline()
                mark = max(",;\t", key=text.count)
                names = [name.strip() for name in next(csv.reader([text], delimiter=mark), [])]
                if header and names != header:
                    raise BouquetError(
                        f"{file} has the columns {', '.join(names)}, and another file {', '.join(header)}."
                    )
                header = names
                read = islice(csv.reader(content, delimiter=mark), MOST_ROWS)
                rows += [[cell.strip() for cell in row] for row in read if len(row) == len(names)]
        except (OSError, EOFError, UnicodeDecodeError, csv.Error, lzma.LZMAError) as error:
            raise BouquetError(f"The table {file} cannot be read: {error}.") from None
    if not rows:
        raise BouquetError(f"{device} has no rows below its header.")
    return header, rows


def _column(name: str, tables: Iterable[tuple[list[str], list[list[str]]]]) -> Column:
    cells = [row[header.index(name)] for header, rows in tables for row in rows]
    held = [cell for cell in cells if cell.lower() not in GAPS]
    return Column(name, held, len(cells) - len(held), _numbers(held))


def _numbers(cells: Sequence[str]) -> list[float] | None:
    try:
        return [float(cell.replace(",", ".")) for cell in cells]
    except ValueError:
        return None


def _time_columns(columns: dict[str, Column]) -> tuple[str, ...]:
    """The column with the time of a row; a date and a time of day; or a date's parts; empty without."""
    for column in columns.values():
        if column.cells and column.numbers is None and all(map(_is_time, column.cells[:100])):
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


def _is_time(text: str) -> bool:
    if not re.match(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}", text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return len(text) >= 8  # another way to write it, of which the reader knows more
    return True


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
            is_index = np.array_equal(np.diff(column.numbers[:1000]), np.ones(min(len(column.numbers), 1000) - 1))
            (passed if counts < 2 or is_index else inputs).append(column.name)
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
        draft.seen.append(f"Passed over: {', '.join(passed)} (constant, a count of rows, or words of too many kinds).")
    return inputs


def _seconds(header: list[str], rows: list[list[str]], time: Sequence[str]) -> list[float]:
    """Times that can be read, in seconds since 1970, in order."""
    places = [header.index(name) for name in time]
    found = []
    for row in rows:
        cells = [row[place] for place in places]
        try:
            if len(cells) > 2:
                moment = datetime(*map(int, map(float, cells)), tzinfo=UTC)  # type: ignore[misc, arg-type]
            elif (number := _numbers(cells)) is not None:
                found.append(number[0])
                continue
            else:
                moment = datetime.fromisoformat("T".join(cells))
            found.append((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
        except ValueError:
            continue
    return sorted(found)


def _windows(draft: Draft, times: list[list[float]], is_forecast: bool) -> None:
    """How often there is a row, how many are missing, and for a forecast how many the model sees."""
    differences = np.concatenate([np.diff(one) for one in times])
    differences = differences[differences > 0]
    if not len(differences):
        return
    step = float(np.median(differences))
    missing = int(sum(np.rint(differences / step) - 1))
    draft.seen.append(f"A row every {_span(step)}" + (f"; {missing} steps have none." if missing else "."))
    if not is_forecast:
        return
    fewest = min(map(len, times))
    a_day = round(DAY / step)
    history = max(1, min(a_day if 6 <= a_day <= 2 * WINDOW else WINDOW, fewest // 20))
    draft.set("table", "history", history, "rows that the model sees")
    draft.set("table", "horizon", 1, "steps from the last of them to what is told")
    draft.assumed.append(f"It is foretold 1 step ({_span(step)}) ahead, from {history} rows.")


def _span(seconds: float) -> str:
    for length, unit in ((DAY, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= length:
            count = seconds / length
            return unit.removesuffix("s") if count == 1 else f"{count:g} {unit}"
    return "second" if seconds == 1 else f"{seconds:g} seconds"
