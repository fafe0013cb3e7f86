"""The runs that a server with ``--keep-waiting`` is to do next: a folder of settings in its run folder.

One file a run, named by when it was asked for, with its settings and the folder of its record. ``current.json`` is the
run in hand, with which a server that was restarted goes on.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings, parse_settings
from bouquet.common.system.files import make_folder, write_json
from bouquet.common.system.locks import is_locked
from bouquet.server.record.status import STOPPED, read_status
from bouquet.server.record.writer import holds_rounds
from bouquet.server.run_folder import QUEUE, SUMMARY

CURRENT = "current.json"
# As long as anybody waits, in a number that every format can hold.
WITHOUT_LIMIT = 1e9


@dataclass(frozen=True)
class NextRun:
    """A run to do: its settings, and where its record goes."""

    settings: Settings
    folder: Path

    def write(self, file: Path) -> None:
        """Into a file that `read_next` reads."""
        write_json(file, {"folder": str(self.folder.absolute()), "settings": self.settings.model_dump(mode="json")})


def read_next(file: Path) -> NextRun:
    """A run from its file. Raises `BouquetError` for what is not one."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return NextRun(parse_settings(content["settings"], {}), Path(content["folder"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BouquetError(f"{file} is no run to do ({error}).") from None


def queue_of(folder: Path) -> Path:
    """Where the server that was started on this run folder looks for further runs."""
    return folder / QUEUE


def waiting_server(parent: Path = Path("runs")) -> Path:
    """The run folder of the server that takes further runs. Raises `BouquetError` unless there is just one."""
    servers = [folder.parent for folder in parent.glob(f"*/{QUEUE}") if is_locked(folder.parent)]
    if len(servers) != 1:
        known = ", ".join(map(str, servers)) or "none"
        raise BouquetError(
            f"Servers that take further runs, below {parent.absolute()}: {known}. Start one with bouquet server "
            "--keep-waiting, or name its run folder with --on."
        )
    return servers[0]


def enqueue(server: Path, run: NextRun) -> None:
    """Have the server do a run after those that were asked for before. Raises `BouquetError` when it cannot."""
    if not queue_of(server).is_dir() or not is_locked(server):
        raise BouquetError(f"No server that takes further runs works in {server}: bouquet server --keep-waiting.")
    if holds_rounds(run.folder):
        raise BouquetError(f"The run folder {run.folder} holds a run already: give another --out or run.name.")
    if is_locked(run.folder):
        raise BouquetError(f"The run folder {run.folder} is in use: give another --out or run.name.")
    if run.folder.absolute() in _asked_for(server):
        raise BouquetError(f"A run into {run.folder} was asked for already: give another --out or run.name.")
    run.write(queue_of(server) / f"{time.time_ns()}.json")


def _asked_for(server: Path) -> Iterator[Path]:
    """The folders of the runs that wait; a file that is none is renamed when its turn comes."""
    for file in queue_of(server).glob("[0-9]*.json"):
        with contextlib.suppress(BouquetError):
            yield read_next(file).folder


def take_next(server: Path) -> NextRun | None:
    """The run that was asked for first; it becomes the one in hand. One that cannot be read is renamed to ``.bad``.

    In one step, so that a server that is killed just then comes back to it.
    """
    for file in sorted(queue_of(server).glob("[0-9]*.json")):
        try:
            entry = read_next(file)
        except BouquetError:
            file.rename(file.with_suffix(".bad"))
            raise
        file.replace(queue_of(server) / CURRENT)
        return entry
    return None


def put_down(server: Path) -> None:
    """There is no run in hand: the one that was taken cannot be done."""
    (queue_of(server) / CURRENT).unlink(missing_ok=True)


def open_queue(server: Path) -> None:
    """Make the queue: from now on the server takes runs."""
    make_folder(queue_of(server), "the queue of further runs")


def in_hand(server: Path) -> NextRun | None:
    """The run that the server did last, or was at when it went down, where that was not its first one."""
    with contextlib.suppress(BouquetError):
        entry = read_next(queue_of(server) / CURRENT)
        return entry if entry.folder != server.absolute() else None
    return None


def interrupted(server: Path) -> NextRun | None:
    """The run in hand when the server went down, where that was not its first one."""
    entry = in_hand(server)
    return None if entry is None or was_ended(entry.folder) else entry


def was_ended(folder: Path) -> bool:
    """Whether the run is over, or its owner ended it: a server that comes back leaves it alone."""
    return (folder / SUMMARY).exists() or was_stopped(folder)


def was_stopped(folder: Path) -> bool:
    """Whether its owner ended the run (`bouquet stop`)."""
    return bool(read_status(folder).get("state") == STOPPED)
