"""Cells of a table as numbers, in the forms that loggers and spreadsheets write them: 21.5, 21,5, 1.021,5, 45 %."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bouquet.common.errors import BouquetError

# What stands for a value that is not there: of spreadsheets, databases, Home Assistant, and strokes.
GAPS = frozenset({"", "na", "n/a", "nan", "null", "none", "-", "--", "---", "–", "—", "−", "--.-", "?", "#n/a", "#nv"})
GAPS |= {"<na>", "\\n", "n.a.", "unknown", "unavailable"}
COMMON_GAPS = dict.fromkeys(("", "NA", "NaN", "nan", "null", "NULL", "None"), "nan")  # found without `lower`
A_NUMBER = "a number that float32 holds, or a gap (table.gaps names what stands for one, table.categories words)"
# 1,234 is either; 0,5 and 12,34 and 1.234,5 have a decimal comma; 1,234.5 and 1,234,567 have commas between thousands.
EITHER = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")
COMMA = re.compile(r"[-+]?(\d{1,3}(\.\d{3})+|\d*),\d+([eE][-+]?\d+)?")
THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
POINTS = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+")
WITH_UNIT = re.compile(r"[-+−]?[\d.,]*\d(?:[eE][-+]?\d+)?\s*((?![eE][-+]?\d)[^\d\s.,].{0,9})")
MOSTLY = 0.9  # of a column's cells, that end in the same unit
BETWEEN = re.compile("(?<=\\d)[\u00a0\u2009\u200b\u202f'’](?=\\d{3}(?!\\d))")  # thousands; 1'30 is a minute and a half
AROUND = "\u200b'’=\""  # ="21.5", which spreadsheets take for text

Floats = NDArray[np.float64]


@dataclass
class Numbers:
    """How one file writes numbers: recognised in the first rows of it, ``columns`` being the cells of each column.

    ``decimal`` is the settings' word where the rows allow both, '' without; ``form`` collects what was recognised.
    """

    decimal: str
    form: dict[str, None]
    ends: dict[str, str] = field(default_factory=dict)  # a unit that the cells of a column end in

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[str]], decimal: str, form: dict[str, None]) -> Numbers:
        """Raises `BouquetError` for numbers that can be read in two ways."""
        found = cls("", form)
        odd = {name: texts for name, cells in columns.items() if (texts := _odd(cells))}
        for name, texts in odd.items():
            ends = Counter(match[1] for text in texts if (match := WITH_UNIT.fullmatch(text)))
            end, count = ends.most_common(1)[0] if ends else ("", 0)
            if count > MOSTLY * len(texts):
                found.ends[name] = end
                form[f"{name!r} in {end!r}"] = None
        bare = [[text.removesuffix(found.ends.get(name, "")).strip() for text in t] for name, t in odd.items()]
        found.decimal = _decimal(bare, decimal)
        if found.decimal == ",":
            form["decimal comma"] = None
        return found

    def read(self, column: str, cells: Sequence[str], gaps: tuple[str, ...] = ()) -> tuple[Floats, NDArray[np.bool_]]:
        """The numbers (n,), NaN where there is a gap; and which cells are none."""
        end, joined = self.ends.get(column), "\0".join(cells)
        quick: Iterable[str] = cells
        if self.decimal == "," and "." not in joined:
            quick = joined.replace(",", ".").split("\0")
        try:
            if end or "_" in joined:  # Python reads 1_000
                raise ValueError
            found = np.array([float(COMMON_GAPS.get(cell, cell)) for cell in quick])
        except ValueError:
            found = np.array([self._number(cell, end or "", gaps) for cell in cells])
        values = [value for gap in gaps if math.isfinite(value := self._number(gap, "", ()))]
        if values:
            found[np.isin(found, values)] = np.nan
        return found, np.abs(found) > np.finfo(np.float32).max

    def _number(self, cell: str, end: str, gaps: tuple[str, ...]) -> float:
        """Infinite where it is none."""
        if cell.lower() in GAPS or cell in gaps:
            return math.nan
        text = _bare(cell.removesuffix(end))
        if end and not cell.endswith(end) and text.strip("0.,"):
            return math.inf  # 850 beside 1.2 k
        if self.decimal == "," and COMMA.fullmatch(text):
            text = text.replace(".", "").replace(",", ".")
        elif self.decimal == "," and POINTS.fullmatch(text):
            return math.inf  # 1.234 beside numbers with a comma: a thousand, or one and a bit?
        elif THOUSANDS.fullmatch(text):
            text = text.replace(",", "")
        try:
            return math.inf if "_" in text else float(text)
        except ValueError:
            return math.inf


def _bare(cell: str) -> str:
    """Without what stands between thousands and around a number."""
    return BETWEEN.sub("", cell.strip().strip(AROUND).replace("−", "-"))


def _odd(cells: Sequence[str]) -> list[str]:
    """The cells that are no gaps, where one is no plain number."""
    try:
        for cell in cells:
            float(COMMON_GAPS.get(cell, cell))
    except ValueError:
        return [text for cell in cells if (text := _bare(cell)).lower() not in GAPS]
    return []


def _decimal(columns: Iterable[Sequence[str]], given: str) -> str:
    comma, point, either = False, False, ""
    for texts in columns:
        with_comma = [text for text in texts if "," in text]
        of_both = [text for text in with_comma if EITHER.fullmatch(text)]
        comma = comma or any(COMMA.fullmatch(text) for text in with_comma if text not in set(of_both))
        point = point or any(THOUSANDS.fullmatch(text) and text not in set(of_both) for text in with_comma)
        if of_both and len(of_both) < len(texts):
            either = either or of_both[0]
        elif of_both:
            comma = comma or given != "."  # all have three digits behind a comma: decimals, or so the owner says
    if comma != point:
        return "," if comma else "."
    if either and not given:
        raise BouquetError(
            f"{either!r} may be {either.replace(',', '.')} or {either.replace(',', '')}: say which by table.decimal, "
            "',' or '.'.",
            public="This device's table has numbers that may be read in two ways: table.decimal says which.",
        )
    return given or "."
