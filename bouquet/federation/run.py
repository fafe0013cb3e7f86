"""A run on a fleet, in the process of its server: the rounds in the main thread, the service in another."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings
from bouquet.common.system.files import write_atomically
from bouquet.common.system.log_file import LogFile
from bouquet.common.trust.code import archive, code_files, own_code, owners_signature, release
from bouquet.common.wire.fleet_pb2 import Run
from bouquet.common.wire.transfer import content_in
from bouquet.keys.store import ServerKeys
from bouquet.server.fleet.names import Names
from bouquet.server.record.status import note_failure
from bouquet.server.record.writer import RunRecord, check_new
from bouquet.server.run.loop import Follow, Show, run_rounds
from bouquet.server.run_folder import IDENTITY, SERVER_LOG, SERVICE, SUMMARY, holds_run
from bouquet.server.service.grid import FleetGrid
from bouquet.server.service.service import BUNDLE

if TYPE_CHECKING:
    from bouquet.server.initial_model.seed_model import PlainStart
    from bouquet.server.initial_model.torch_model import Start


def is_finished(folder: Path, settings: Settings) -> bool:
    """Whether the run in this folder has its result, and no more rounds are asked for."""
    if not (folder / SUMMARY).exists():
        return False
    done = json.loads((folder / SUMMARY).read_text(encoding="utf-8")).get("rounds", 0)
    return bool(done >= settings.run.rounds)


def check_folder(folder: Path, settings: Settings, resume: bool) -> None:
    """A new run needs a folder without one; one that goes on needs settings that fit."""
    if resume:
        RunRecord(folder).check_continues(settings)
    else:
        check_new(folder)


@contextlib.contextmanager
def live_page(
    current: Callable[[], Path], address: str | None, secured: ServerKeys | None, console: Console, stays: bool = False
) -> Iterator[None]:
    """Serve the live page of the run in hand at ``address`` inside the ``with`` block; without an address, nothing.

    One that ``stays`` is there until Ctrl-C.
    """
    if address is None:
        yield
        return
    from bouquet.monitor.web import serving  # FastAPI, and the plots

    keys = secured.registered.parent if secured else current()
    with serving(current, address, keys, secured.certificates if secured else None) as said:
        console.print(said, soft_wrap=True, highlight=False)
        yield
        if stays:
            console.print("The page stays until Ctrl-C.")
            threading.Event().wait()


def do_run(
    grid: FleetGrid,
    settings: Settings,
    folder: Path,
    resume: bool,
    start: Start | PlainStart,
    *,
    registered: Path | None = None,
    signature: Path | None = None,
    follow: Follow | None = None,
    show: Show = lambda status: None,
) -> dict[str, Any]:
    """Do a run with the devices of ``grid``; its summary.

    ``start`` is what it starts from. ``registered`` is the folder of the devices' certificates, ``signature`` the
    owner's on this code; ``follow`` is called with each round's line, ``show`` with the status whenever it changes.
    """
    try:
        service = grid.service.options.folder
        names = Names(
            folder, grid, registered, resume, tags=frozenset(settings.server.tags), service=service.absolute()
        )
        grid.begin(run_of(settings, folder, service, signature), start.layout)
        with logged(folder / SERVER_LOG):
            summary = run_rounds(grid, settings, start.record, RunRecord(folder), resume, follow, names, start, show)
    except Exception as error:  # but no signal: after an orderly restart the devices' work is of use, as after a crash
        grid.end()
        with contextlib.suppress(BouquetError):  # on a full disk the reason is on the screen alone
            note_failure(folder, error)
        raise
    grid.end()
    return summary


def run_of(settings: Settings, folder: Path, service: Path, signature: Path | None) -> Run:
    """What devices are told of a run. Its id is the same after a restart, and with it those of its tasks.

    A new run in the place of one that was removed has another: devices remember what they did in that one.
    """
    bundle, identity = service / BUNDLE, folder / IDENTITY
    if not identity.exists():
        write_atomically(identity, uuid.uuid4().hex.encode())
    write_atomically(bundle, archive(code_files()))
    return Run(
        id=int.from_bytes(hashlib.sha256(identity.read_bytes()).digest()[:8], "big") >> 1,
        settings=settings.model_dump_json(),
        code=own_code(),
        signature=owners_signature(signature)[0],
        release=release(),
        bundle=content_in(bundle),
    )


@contextlib.contextmanager
def logged(file: Path) -> Iterator[None]:
    """Keep what Flower and the strategy log inside the ``with`` block in a file, whatever the console shows of it."""
    log, logger = LogFile(file, "run"), logging.getLogger("flwr")
    level = logger.level
    for shown in logger.handlers:
        shown.setLevel(max(shown.level, level))
    handler = _ToFile(log)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        log.close()


class _ToFile(logging.Handler):
    def __init__(self, log: LogFile) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record."""
        for line in f"{record.levelname} {record.getMessage()}".splitlines():
            self._log.write(line)


def clear_service(folder: Path) -> Path:
    """The folder of what is on its way to devices and back, in a run folder; what is of no use any more goes."""
    service = folder / SERVICE
    if not holds_run(folder):
        shutil.rmtree(service, ignore_errors=True)
    for content in service.glob("*.content"):
        content.unlink(missing_ok=True)
    service.mkdir(parents=True, exist_ok=True, mode=0o700)
    return service
