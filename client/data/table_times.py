"""When rows are: times in the forms that loggers and spreadsheets write them, and clocks that were wrong."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
from numpy.typing import NDArray

from bouquet.common.data.left_out import MOST
from bouquet.common.errors import BouquetError

LATEST = 1e11  # seconds; what is more is milliseconds, a thousand times that microseconds, and so on
UNITS = ("seconds", "milliseconds", "microseconds", "nanoseconds")
PARTS = 6  # of a time: year, month, day, hour, minute, second
A_TIME = "a time: ISO 8601, a date as 14.10.2026, seconds or milliseconds since 1970, or a date's parts"
HOUR, DAY, YEAR = 3600.0, 86_400.0, 365 * 86_400.0
CLOCKS = 946_684_800.0  # 2000: clocks that lost their power begin in 1970, 1980 or 2000
BEGUN = 30 * DAY  # that one which began in 2000 may have run
MONTHS = "janfebmaraprmayjunjulaugsepoctnovdec"
STAMP = re.compile(
    r"(\d{1,4})([./ -])(\d{1,2}|[A-Za-z]{3})\2(\d{4}|\d{1,2})"
    r"(?:[T,_\s]\s*(\d{1,2})([:.-])(\d{2})(?:\6(\d{2})(?:[.,](\d{1,9}))?)?(?:\s*([AaPp])\.?[Mm]\.?)?"
    r"\s*(Z|(?:UTC|GMT)?[-+]\d{1,2}(?::?\d{2})?|[A-Z]{3,4})?(?:\s*[\[(].*[\])])?)?"
)
# Wed Oct 14 12:30:00 CEST 2026, as a script's `date` has it, mails, and October 14, 2026 at 12:30PM.
WORDED = re.compile(
    r"(?:[A-Za-z]{3,9},? +)?(?:([A-Za-z]{3})[a-z]* +(\d{1,2})|(\d{1,2}) +([A-Za-z]{3})[a-z]*),?"
    r"(?: +(\d{4}),?)?(?: +at)? +(\d.*?)(?: +(\d{4}))?"
)
ZONES = {"Z": 0, "UTC": 0, "GMT": 0, "WET": 0, "WEST": 1, "BST": 1, "CET": 1, "CEST": 2, "MEZ": 1, "MESZ": 2, "EET": 2}
ZONES |= {"EEST": 3, "EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7}
COMPACT = re.compile(r"(?:19|20)\d{6}(?:\d{4}|\d{6})")  # 20261014123000

Floats = NDArray[np.float64]


def seconds_of(text: str) -> float:
    """Seconds since 1970 of a time in ISO 8601; one without a zone counts as UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


class Clock:
    """Reads times. ``order`` is that of a date's parts by the settings, '' without; ``stamps`` are all of the table.

    They are looked at where the first dates allow two orders. ``form`` collects what was recognised, for people.
    """

    def __init__(self, order: str, stamps: Callable[[], Iterable[str]], form: dict[str, None]) -> None:
        self.order, self.stamps, self.form = order, stamps, form
        self._known, self.doubt = order, ""  # a date that may be of two days

    def seconds(self, cells: Sequence[Sequence[str]]) -> Floats:
        """Seconds since 1970 (n,), of one cell, a date and a time of day, or a date's parts; NaN where it is no time.

        Raises `BouquetError` where dates may be of two days; a single one, of a row that is torn, is no time.
        """
        self.doubt = ""
        found = np.array([self._of_parts(parts) for parts in cells])
        if self.doubt and 2 * np.isnan(found).sum() >= len(found):
            raise _two_days(self.doubt)
        return found

    def _of_parts(self, parts: Sequence[str]) -> float:
        try:
            if len(parts) > 2:
                numbers = [float(part) for part in parts]
                if any(not number.is_integer() for number in numbers):
                    return math.nan
                return datetime(*map(int, numbers), tzinfo=UTC).timestamp()  # type: ignore[misc, arg-type]
            return self._of_text(_together(*parts) if len(parts) == 2 else parts[0])
        except (ValueError, OverflowError, LookupError):
            return math.nan

    def _of_text(self, text: str) -> float:
        # 2026-10-14_01-15 is a time of day, and no zone of 15 hours.
        if (text[4:5] == "-" and text[13:14] != "-") or (len(text) == 8 and text.isdigit()):
            with contextlib.suppress(ValueError):
                return seconds_of(text)  # 20260301 is a date in ISO 8601's short form, not some second of 1970
        if COMPACT.fullmatch(text):
            with contextlib.suppress(ValueError):
                return seconds_of(f"{text[:8]}T{text[8:]}")
        if (match := WORDED.fullmatch(text)) is not None:
            month, day, day_, month_, year, rest, year_ = match.groups()
            text = f"{day or day_}-{month or month_}-{year or year_} {rest}"
        if (match := STAMP.fullmatch(text)) is not None:
            return self._of_stamp(match)
        try:
            number = float(text.replace(",", ".", 1))
        except ValueError:
            return seconds_of(text)
        for power, unit in enumerate(UNITS):
            if abs(number) < LATEST * 1000**power:
                if power:
                    self.form[f"times in {unit}"] = None
                return number / 1000**power
        return math.nan

    def _of_stamp(self, match: re.Match[str]) -> float:
        first, mark, second, third, hour, _, minute, second_, fraction, half, zone = match.groups()
        if len(first) == 3 or len(first + third) < 3 or max(int(minute or 0), int(second_ or 0) - 1) > 59:
            return math.nan
        if second.isdigit() and len(first) < 3 and not (order := self._order(first, mark, second, third)):
            self.doubt = self.doubt or match[0]
            return math.nan
        if not second.isdigit():
            order, second = "year-month-day" if len(first) == 4 else "day-month-year", str(_month(second))
        elif len(first) > 2:
            order = "year-month-day"
        parts = dict(zip(order.split("-"), map(int, (first, second, third)), strict=True))
        year, hours = parts["year"], int(hour or 0)
        if year < 100:
            year += 2000
        if half:
            hours = hours % 12 + 12 * (half in "pP")
        day = datetime(year, parts["month"], parts["day"], tzinfo=self._zone(zone or "Z"))
        moment = day + timedelta(hours=hours, minutes=int(minute or 0), seconds=int(second_ or 0))
        if hours > 24 or (hours == 24 and moment != day + timedelta(days=1)):
            return math.nan
        return moment.timestamp() + float(f"0.{fraction or 0}")

    def _zone(self, text: str) -> timezone:
        name, sign, hours, minutes = re.fullmatch(r"([A-Z]*)([-+]?)(\d{0,2}):?(\d*)", text).groups()  # type: ignore[union-attr]
        if sign:
            ahead = timedelta(hours=int(hours), minutes=int(minutes or 0))
            return timezone(ahead if sign == "+" else -ahead)
        if ZONES[name]:
            self.form[f"times in {name}"] = None
        return timezone(timedelta(hours=ZONES[name]))

    def _order(self, first: str, mark: str, second: str, third: str) -> str:
        """Of a date whose year is not first, or has two digits; '' where it is not known."""
        if self.order:
            return self.order
        if mark == ".":  # nobody writes the month first with points
            self.form["day first"] = None
            return "day-month-year"
        if len(third) < 4:
            return ""
        if not self._known:
            self._known = self._seen()
            self.form[self._known.partition("-")[0] + " first"] = None
        return self._known

    def _seen(self) -> str:
        """The order that the table's own dates allow, in which some day is past the 12th."""
        days: set[str] = set()
        one = ""
        for text in self.stamps():
            match = STAMP.match(text)
            if match is None or match[2] == "." or len(match[1]) > 2 or len(match[4]) < 4 or not match[3].isdigit():
                continue
            one = one or text
            days |= {"day-month-year"} if int(match[1]) > 12 else set()
            days |= {"month-day-year"} if int(match[3]) > 12 else set()
        if len(days) != 1:
            raise _two_days(one)
        return days.pop()


def wrong_clock(times: Floats, files: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rows are of a clock that was wrong (n,); ``times`` (n,) and their ``files`` (n,) as they were read.

    Of rows that are a year or more apart from the most of them: those before 2000 or of its first month, where the
    others are later; those that are later than now; and those that are out of order among the others in their file.
    """
    wrong = np.zeros(len(times), dtype=bool)
    order = np.argsort(times, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(times[order]) > YEAR) + 1)
    main = max(parts, key=len)
    now = time.time() + DAY
    for part in parts:
        if part is main:
            continue
        earlier = bool(times[part[0]] < times[main[0]])
        before = earlier and times[part[-1]] < CLOCKS + BEGUN <= times[main[0]]
        future = not earlier and times[part[0]] > now >= times[main[-1]]
        for file in np.unique(files[part]):
            rows, others = part[files[part] == file], main[files[main] == file]
            wrong[rows] = before or future or _out_of_order(rows, others, times, earlier)
    return wrong


def _out_of_order(rows: NDArray[np.intp], others: NDArray[np.intp], times: Floats, earlier: bool) -> bool:
    if not len(others):
        return False
    low, high = others.min(), others.max()
    is_first = earlier != bool(times[low] > times[high])  # some write the newest row first
    return bool(rows.max() > low if is_first else rows.min() < high)


def odd_epoch(times: Floats) -> tuple[str, ...]:
    """A word on times that are likely to be counted from another day than that of 1970, or in days."""
    if times.min() >= 30_000 and times.max() < 80_000:  # what spreadsheets write for dates from 1982 to 2119
        return ("All times are of one day of 1970: if they are a spreadsheet's day numbers, write dates.",)
    if times.min() > time.time() + YEAR:
        begin = datetime.fromtimestamp(times.min(), UTC)
        return (f"All times are later than now, from {begin:%Y-%m-%d}: are they counted from 1904, as LabVIEW does?",)
    return ()


def alone_out_of_order(times: Floats, files: NDArray[np.int64], wrong: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which other rows than the ``wrong`` ones (n,) are alone far from both around them: a date lost a figure.

    Those that are of a time that another row has, or more than a day and three steps off: what came late fills a gap.
    None, where they are many: such a file has no order.
    """
    alone, rows = np.zeros(len(times), dtype=bool), np.flatnonzero(~wrong)
    times, files = times[rows], files[rows]
    before, here, after = times[:-2], times[1:-1], times[2:]
    apart = np.abs(after - before)
    off = np.minimum(np.abs(here - before), np.abs(here - after))
    far = ((here - before) * (here - after) > 0) & (off >= np.maximum(HOUR, apart / 2)) & (apart > 0)
    far &= (files[:-2] == files[1:-1]) & (files[1:-1] == files[2:])
    if far.sum() <= max(1.0, MOST * len(times)):
        late = max(DAY, 3 * float(np.median(np.abs(np.diff(times)))))
        for i in map(int, np.flatnonzero(far)):
            alone[rows[i + 1]] = off[i] > late or (times == here[i]).sum() > 1
    return alone


def _together(date: str, clock: str) -> str:
    return f"{date.partition(' ')[0] if ':' in date else date}T{clock}"


def _month(name: str) -> int:
    place = MONTHS.find(name.lower())
    if place % 3:
        raise ValueError(name)
    return place // 3 + 1


def _two_days(text: str) -> BouquetError:
    return BouquetError(
        f"{text!r} may be of two days, and no other date here says which of its parts is the day: set table.dates, to "
        "'day-month-year' or 'month-day-year'.",
        public="This device's table has dates that may be of two days: table.dates says which.",
    )
