"""Ending a run between two rounds, when its owner asks for it."""

from __future__ import annotations

from pathlib import Path

from bouquet.common.errors import RunStopped
from bouquet.common.system.files import write_atomically
from bouquet.server.run_folder import STOP


def ask_to_stop(folder: Path) -> None:
    """Have the run in ``folder`` end after the round in hand."""
    write_atomically(folder / STOP, b"")


def take_back(folder: Path) -> None:
    """Forget what was asked, as a run does that begins or goes on."""
    (folder / STOP).unlink(missing_ok=True)


def check_stop(folder: Path, completed: int) -> None:
    """Raise `RunStopped` when the end was asked for, after so many rounds."""
    if (folder / STOP).exists():
        take_back(folder)
        raise RunStopped(f"Stopped after round {completed}, as asked; --resume goes on.")
