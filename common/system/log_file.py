"""Logs that can be left alone: a time on each line, no terminal colours, files that do not grow for ever.

What the programs of a federation print goes through here, into a file that is turned over (``NAME.log.1`` is the one
before), or to a terminal or a service's journal. ``BOUQUET_LOG=json`` makes each line a JSON object.
"""

from __future__ import annotations

import json
import logging
import os
import re
from datetime import datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

from bouquet.common.errors import BouquetError
from bouquet.common.system.files import make_folder

VARIABLE = "BOUQUET_LOG"
JSON = "json"
LARGEST_BYTES = 5_000_000
KEPT_FILES = 3
# A time that the program wrote itself, as a web server does.
OWN_TIME = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z? ")


def stamp(line: str, source: str = "") -> str:
    """A line with the local time before it; a JSON object with ``time``, ``source`` and ``text`` where asked for."""
    now = datetime.now().astimezone()
    if os.environ.get(VARIABLE) == JSON:
        about = {"source": source} if source else {}
        return json.dumps({"time": now.isoformat(timespec="seconds"), **about, "text": line}, ensure_ascii=False)
    return f"{now:%Y-%m-%d %H:%M:%S} {OWN_TIME.sub('', line)}"


class LogFile:
    """A log file that is appended to, stamped, and turned over at ``largest`` bytes; ``leave_out`` matches lines that
    say nothing.

    Raises `BouquetError` when it cannot be written. Later, on a full disk, lines are lost and nothing else.
    """

    def __init__(
        self, path: Path, source: str = "", leave_out: re.Pattern[str] | None = None, largest: int = LARGEST_BYTES
    ) -> None:
        make_folder(path.parent, "the folder of a log")
        self.source = source
        self.leave_out = leave_out
        try:
            self._handler = RotatingFileHandler(path, maxBytes=largest, backupCount=KEPT_FILES, encoding="utf-8")
        except OSError as error:
            raise BouquetError(f"The log {path} cannot be written: {error.strerror}.") from None
        self._handler.handleError = lambda record: None  # type: ignore[method-assign]

    def write(self, line: str) -> None:
        """Append one line, without colours."""
        if not line.strip() or (self.leave_out is not None and self.leave_out.search(line)):
            return
        text = stamp(line, self.source)
        self._handler.handle(logging.LogRecord("", logging.INFO, "", 0, text, None, None))

    def close(self) -> None:
        """Close the file."""
        self._handler.close()
