"""Why the ServerApp ended a run, left in the run folder for `bouquet server`, which is another process."""

from __future__ import annotations

from pathlib import Path

from common.errors import BouquetError, RunFailed
from common.system.files import write_atomically
from server.run_folder import FAILURE

RUN_FAILED = "(the run failed)\n"  # its last line, where the run came to nothing after it had begun


def record_failure(folder: Path, error: Exception) -> None:
    """Leave the reason where `bouquet server`, which is another process, finds it."""
    if folder.is_dir():
        last = RUN_FAILED if isinstance(error, RunFailed) else ""
        write_atomically(folder / FAILURE, f"{error}\n{last}".encode())  # it is taken as soon as it is there


def read_failure(folder: Path) -> BouquetError | None:
    """The error that the ServerApp of this run folder left, if any."""
    try:
        text = (folder / FAILURE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    failed = text.endswith(f"\n{RUN_FAILED}")
    return (RunFailed if failed else BouquetError)(text.removesuffix(RUN_FAILED).strip())
