"""What programs print."""

from __future__ import annotations

import re
from pathlib import Path

from bouquet.common.system.log_file import OWN_TIME
from bouquet.common.texts import CONTROLS

ANSI_SEQUENCE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def plain_text(text: str) -> str:
    """Terminal colours taken out, which Flower writes into files too, and whatever else steers a terminal."""
    return CONTROLS.sub("", ANSI_SEQUENCE.sub("", text))


def tail(log_file: Path, lines: int = 15) -> str:
    """The last lines of a log, without colours and times; empty where there is none."""
    if not log_file.exists():
        return ""
    written = plain_text(log_file.read_text(errors="replace")).rstrip().splitlines()[-lines:]
    return "\n".join(OWN_TIME.sub("", line) for line in written)
