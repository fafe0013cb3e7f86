"""CSV files as loggers write them, taken apart into rows of cells: encoding, lines, separator, and where the header is.

Parquet is read by pyarrow, where that is installed, and goes on as the lines of a CSV.

All of it is recognised. The header is the first line that has every column that the settings name, whatever its cells
are apart by: so a preamble and the separator need no setting.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import lzma
import re
import stat
import unicodedata
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from bouquet.common.data.left_out import LeftOut, named
from bouquet.common.errors import BouquetError
from bouquet.common.system.resources import available_bytes
from bouquet.common.texts import plain

PARQUET = ".parquet"
SUFFIXES = (".csv", ".csv.gz", ".csv.xz", PARQUET)
ROTATED = re.compile(r"[.-]\d+(?=(\.gz|\.xz)?$)")  # what logrotate makes of a .csv: .csv.1, .csv-20261014, .csv.2.gz
SEPARATORS = (",", ";", "\t", "|", " ")  # the last of them stands for any white space
PARTS = 10_000  # rows of Parquet that are in memory as text at once
PREAMBLE = 100  # lines that a header may come after
QUOTED = 20  # lines that a cell in quotation marks may go over
LOST = 16 * "\0"  # what a card has where power was lost
LONGEST = 1 << 20  # characters of a line: zeros that are never written have no end, and a packed file has gigabytes
SNIFFED = 4096  # bytes, to see whether each character is two
A_ROW_IS_LEFT_OUT = "A row of this device's table is longer or shorter than its header."

Row = tuple[int, list[str]]


def table_files(path: Path) -> list[Path]:
    """The CSV file itself, or those of a folder, by name; empty where there are none."""
    if path.is_dir():
        with named(f"The folder {path}"):
            found = [file for file in path.iterdir() if _is_table(file) and not file.name.startswith(".")]
        return sorted(file for file in found if not file.is_dir())  # also links to a stick that is not there
    return [path] if _is_table(path) else []


def _is_table(file: Path) -> bool:
    return ROTATED.sub("", file.name.lower()).endswith(SUFFIXES)  # a card of an Arduino has DATALOG.CSV


@dataclass
class Sheet:
    """A file's rows, with the cells of the ``wanted`` columns only, each once.

    ``form`` collects what was recognised that not every table has, for people, and ``notes`` what was passed over;
    ``header`` has all columns, once there is a row.
    """

    file: Path
    wanted: Sequence[str]
    damage: LeftOut
    form: dict[str, None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    header: list[str] = field(default_factory=list)

    def rows(self) -> Iterator[Row]:
        """The number of its line, and the cells of each row; one of another length goes to ``damage``.

        Raises `BouquetError`, naming the file, where it cannot be read, or lacks a column.
        """
        lines = self.lines()
        self.wanted = [unicodedata.normalize("NFC", column) for column in self.wanted]
        above, separator, header = self._header(lines)
        self.header = header
        places, last = self._places(header)
        name = max(self.wanted, key=len)
        seen = {*above}  # a logger that was restarted writes its header again, and what is above it
        blank = f'{separator}" \t\r\n'
        waiting: deque[tuple[int, str]] = deque()
        while following := waiting.popleft() if waiting else next(lines, None):
            number, line = following
            if not line.strip(blank) or line.strip() in seen:
                continue
            if line.count('"') % 2:
                line = self._quoted(line, separator, last, lines, waiting)
            try:
                row = cells(line, separator)
            except csv.Error as error:
                self.damage.add(BouquetError(f"{self.file}, line {number}: {error}."))
                continue
            if name in line and set(self.wanted) <= {*(names := _names(row))}:  # a logger's new firmware, a new order
                header, places, last = names, *self._places(names)
                continue
            if len(row) != len(header) and (len(row) < last or any(map(str.strip, row[len(header) :]))):
                if not line.startswith("#"):
                    text = f"{self.file}, line {number} has {len(row)} cells, its header {last}."
                    self.damage.add(BouquetError(text, public=A_ROW_IS_LEFT_OUT))
                continue
            yield number, [row[place].strip() for place in places]

    def _header(self, lines: Iterator[tuple[int, str]]) -> tuple[list[str], str, list[str]]:
        """The texts of the lines to it, what cells are apart by, and the columns' names."""
        above: list[str] = []
        best: tuple[int, list[str]] = (0, [])
        for number, line in islice(lines, PREAMBLE):
            above.append(line.strip())
            for separator in SEPARATORS:
                try:
                    names = _names(cells(line, separator))
                except csv.Error as error:
                    raise BouquetError(f"{self.file}, line {number}: {error}.") from None
                there = sum(column in names for column in self.wanted)
                if there == len(self.wanted):
                    self._say(number, separator, len(names))
                    return above, separator, names
                if (there, len(names)) > (best[0], len(best[1])) and (there or len(above) == 1):
                    best = (there, names)
        raise self._lacks(best[1])

    def _places(self, header: list[str]) -> tuple[list[int], int]:
        """Where the wanted columns are, and how many there are up to the last that has a name."""
        if twice := [column for column in self.wanted if header.count(column) > 1]:
            raise BouquetError(f"{self.file} has two columns {twice[0]!r}.")
        last = max(k for k, name in enumerate(header, 1) if name)
        return [header.index(column) for column in self.wanted], last

    def _lacks(self, names: list[str]) -> BouquetError:
        missing = next(column for column in self.wanted if column not in names)
        like = [name for name in names if missing.lower() in name.lower()]
        hint = f" Is it {plain(like[0], 40)!r}? Names are the same on all devices, to the letter." if like else ""
        there = ", ".join(plain(name, 40) for name in names[:20]) or "nothing"
        return BouquetError(
            f"{self.file} has no column {missing!r}; its header has {there}.{hint}",
            public=f"This device's table has no column {missing!r}.",
        )

    def _say(self, number: int, separator: str, width: int) -> None:
        if separator != "," and width > 1:
            self.form["cells apart by " + {"\t": "tabs", " ": "spaces"}.get(separator, repr(separator))] = None
        if number > 1:
            self.form[f"header in line {number}"] = None

    def _quoted(
        self, line: str, separator: str, width: int, lines: Iterator[tuple[int, str]], waiting: deque[tuple[int, str]]
    ) -> str:
        """A line whose quotation marks are not even, with those that its last cell goes on in, where that makes a row.

        Else one damaged line would take all that follow with it.
        """
        taken: list[tuple[int, str]] = []
        whole = line
        while len(taken) < QUOTED and whole.count('"') % 2:
            following = waiting.popleft() if waiting else next(lines, None)
            if following is None:
                break
            taken.append(following)
            whole += following[1]
        with contextlib.suppress(csv.Error):
            if not whole.count('"') % 2 and len(cells(whole, separator)) == width:
                return whole
        waiting.extendleft(reversed(taken))
        return line

    def lines(self) -> Iterator[tuple[int, str]]:
        """Number and text of the lines that have an end: a logger may be in the middle of the last."""
        with named(f"The table {self.file}"):
            about, free = self.file.stat(), available_bytes()
            if not stat.S_ISREG(about.st_mode):  # a pipe would never end
                raise OSError(0, "it is no file")
            if free is not None and about.st_size > free:
                raise OSError(0, f"it takes {about.st_size // 10**6} MB, and {free // 10**6} MB are free")
            # At once: a file may be written anew while it is read. By content: many are named as they are not.
            content: Any = io.BytesIO(self.file.read_bytes())
            head = bytes(content.getbuffer()[:6])
            if head.startswith(b"PK\3\4"):
                raise OSError(0, "it is a ZIP file, as spreadsheets are (.xlsx): save it as CSV")
        if head.startswith(b"PAR1") or self.file.name.lower().endswith(PARQUET):
            yield from ((number, self._decoded(line)) for number, line in enumerate(self._of_parquet(content), 1))
            return
        with named(f"The table {self.file}"):
            if head.startswith(b"\x1f\x8b"):
                content = gzip.GzipFile(fileobj=content)
            if head == b"\xfd7zXZ\0":
                content = lzma.LZMAFile(content)  # noqa: SIM115  of bytes in memory
            encoding = _encoding(content.read(SNIFFED))
            content.seek(0)
        if encoding.startswith("utf-16"):
            self.form["UTF-16"] = None
        # What is no UTF-8 is seen line by line: a logger writes "°C" in its own code page, and lines are damaged.
        text = io.TextIOWrapper(content, encoding, "surrogateescape" if encoding == "utf-8-sig" else "replace", "")
        number = 0
        try:
            for number, line in enumerate(iter(lambda: text.readline(LONGEST), ""), 1):
                if len(line) == LONGEST and not line.endswith(("\n", "\r")):
                    if line.strip("\0"):
                        why = f"{self.file}, line {number} has no end within {LONGEST} characters."
                        self.damage.add(BouquetError(why, public=A_ROW_IS_LEFT_OUT))
                elif line.endswith(("\n", "\r")):
                    *torn, rest = line.split(LOST)
                    if any(part.strip("\0") for part in torn):  # what follows is of another row
                        why = f"{self.file}, line {number} is torn by zeros, as where power was lost."
                        self.damage.add(BouquetError(why, public=A_ROW_IS_LEFT_OUT))
                    yield number, self._decoded(rest)
                elif line.strip("\0"):
                    self.notes.append(f"The last line of {self.file.name} has no end yet, and is passed over.")
        except EOFError:
            self.notes.append(f"{self.file.name} breaks off after line {number}: what is before that is read.")
        except (OSError, lzma.LZMAError, zlib.error) as error:
            raise BouquetError(f"The table {self.file} cannot be unpacked: {error}.") from None

    def _of_parquet(self, content: io.BytesIO) -> Iterator[str]:
        """Lines of a CSV with the wanted columns; the header alone where none is wanted, or one is not there."""
        with named(f"The table {self.file}"):
            try:
                from pyarrow import csv as arrow_csv
                from pyarrow import parquet, types
            except ImportError:
                raise OSError(0, "this takes pyarrow: pip install pyarrow; or convert it to CSV") from None
            whole = parquet.ParquetFile(content)
            there = [column.name for column in whole.schema_arrow if not types.is_nested(column.type)]
            names = [unicodedata.normalize("NFC", name) for name in _names(there)]
            if not self.wanted or not {*self.wanted} <= {*names}:
                text = io.StringIO()
                csv.writer(text).writerow(there)
                yield text.getvalue()
                return
            columns = [column for column, name in zip(there, names, strict=True) if name in self.wanted]
            for number, batch in enumerate(whole.iter_batches(PARTS, columns=columns)):
                part = io.BytesIO()
                arrow_csv.write_csv(batch, part, arrow_csv.WriteOptions(include_header=not number))
                part.seek(0)
                yield from io.TextIOWrapper(part, "utf-8", "replace", "\n")

    def _decoded(self, line: str) -> str:
        if "\0" in line:
            line = line.replace("\0", "")
        if line.isascii():
            return line
        try:
            line.encode()
        except UnicodeEncodeError:
            self.form["Windows-1252, not UTF-8"] = None
            line = line.encode("utf-8", "surrogateescape").decode("cp1252", "replace")
        return unicodedata.normalize("NFC", line).removeprefix("\ufeff")  # of files that were put together


def columns_of(file: Path) -> list[str]:
    """The names of a table's columns, where none is known: the first line as wide as most lines are; else nothing.

    Raises `BouquetError`, naming the file, where it cannot be read.
    """
    lines = [line for _, line in islice(Sheet(file, (), LeftOut("rows")).lines(), PREAMBLE) if line.strip()]
    best: tuple[int, int, list[str]] = (0, 0, [])
    for separator in SEPARATORS[:-1]:
        try:
            rows = [cells(line, separator) for line in lines]
        except csv.Error as error:
            raise BouquetError(f"{file}: {error}.") from None
        widths = Counter(len(row) for row in rows if len(row) > 1)
        if widths and (found := max((count, width) for width, count in widths.items())) > best[:2]:
            best = (*found, _names(next(row for row in rows if len(row) == found[1])))
    return best[2]


def cells(line: str, separator: str) -> list[str]:
    """The cells of a line. Raises `csv.Error`."""
    if separator == " ":
        return line.split()
    if '"' not in line:
        return line.split(separator)
    return next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])


def _names(header: list[str]) -> list[str]:
    """Without the mark of a comment, which some put before a header."""
    return [name.strip().lstrip("# " if k == 0 else "") for k, name in enumerate(header)]


def _encoding(head: bytes) -> str:
    """UTF-16 by its mark, or where every other byte is 0; not where a card has zeros because power was lost."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    zeros = [head[k::2].count(0) / max(1, len(head[k::2])) for k in (0, 1)]
    if max(zeros) > 0.5 and min(zeros) < 0.1:
        return "utf-16-le" if zeros[1] > zeros[0] else "utf-16-be"
    return "utf-8-sig"
