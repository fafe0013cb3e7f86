"""A federation of real processes: the server's side of `bouquet server` and `bouquet demo`.

The SuperLink, the ServerApp and this program are three processes; the run folder is where they meet. The ServerApp
writes each round into it, and this program shows what appears there.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from bouquet.keys.store import ServerKeys
from common.errors import BouquetError
from common.settings import Settings
from common.system.locks import is_held
from common.system.programs import tail
from common.trust.app_bundle import signed_app_files, write_app
from server.fleet.admission import Admission
from server.fleet.duplicates import Twins
from server.fleet.names import registered_keys
from server.record.status import STOPPED, read_status
from server.run.failure import read_failure
from server.run.stop import RunStopped
from server.run_folder import FAILURE, ROUNDS, SERVER_LOG, SERVERAPP, SUMMARY
from server.superlink.process import (
    RunLog,
    SuperLink,
    run_status,
    submit_run,
)

POLL_SECONDS = 0.3
LOOK_SECONDS = 5.0
ENDING_SECONDS = 10.0
LITTLE_BYTES = 1_000_000  # with less room nothing that matters can be written
# SuperLink's answer to a key that it knows, of a node that it takes for connected: a line of its own from end to end,
# with nothing in it that a device could word.
TURNED_AWAY = re.compile(
    r"ERROR [^\[\]]{0,40}\[[\w./]{1,60}\]\[ApiError:2004\] Attempted to register SuperNode with public key: "
    r"b'(-----BEGIN PUBLIC KEY-----\\n[A-Za-z0-9+/=\\]{1,2000}-----END PUBLIC KEY-----(?:\\n)?)', "
    r"exception: SuperNode with node ID \d{1,20} could not be activated\."
)

Follow = Callable[[dict[str, Any]], None]


class ServerAppLost(BouquetError):
    """The ServerApp is gone, and neither a result nor a reason is there: it was killed, or the kernel ended it."""


def is_finished(folder: Path, settings: Settings) -> bool:
    """Whether the run in this folder has its result, and no more rounds are asked for."""
    if not (folder / SUMMARY).exists():
        return False
    done = json.loads((folder / SUMMARY).read_text(encoding="utf-8")).get("rounds", 0)
    return bool(done >= settings.run.rounds)


def admitted_devices(
    superlink: SuperLink, registered: Path | None, console: Console
) -> contextlib.AbstractContextManager[None]:
    """While the run lasts, the devices of the folder ``registered`` may take part; whoever asks, if there is none."""
    if registered is None:
        return contextlib.nullcontext()
    if not any(registered.glob("*.pub")):
        console.print("No device is registered yet: bouquet keys add DEVICE …, also while this server runs.")
    return Admission(superlink, registered, lambda line: console.print(f"devices  {line}", soft_wrap=True)).watched()


@contextlib.contextmanager
def live_page(
    current: Callable[[], Path], address: str | None, secured: ServerKeys | None, console: Console
) -> Iterator[None]:
    """Serve the live page of the run in hand at ``address`` inside the ``with`` block; without an address, nothing."""
    if address is None:
        yield
        return
    from bouquet.monitor.web import serving  # FastAPI, and the plots

    keys = secured.registered.parent if secured else current()
    with serving(current, address, keys, secured.certificates if secured else None) as said:
        console.print(said, soft_wrap=True, highlight=False)
        yield


class OneKeyTwice:
    """Tells the owner of two devices that hold one key, from what SuperLink logs and its database."""

    def __init__(self, registered: Path, report: Callable[[str], None]) -> None:
        self.registered = registered
        self.report = report
        self.twins: Twins | None = None

    def on_line(self, line: str) -> None:
        """A line of SuperLink's log."""
        if self.twins is not None and (found := TURNED_AWAY.fullmatch(line)):
            self.twins.refused(found[1].replace("\\n", "\n").encode(), time.time())

    def look(self) -> None:
        """Report what has shown itself since the last look."""
        if self.twins is None:
            return
        with contextlib.suppress(BouquetError):
            names = {key.pem: name for name, key in registered_keys(self.registered)}
            for line in self.twins.same_key(names):
                self.report(line)


def run_federation(
    superlink: SuperLink,
    settings: Settings,
    folder: Path,
    follow: Follow,
    wait: Callable[[dict[str, Any]], None] = lambda status: None,
    look: Callable[[], None] = lambda: None,
    signature: Path | None = None,
) -> dict[str, Any]:
    """Submit the run, call ``follow`` with each round's line as it is written, and return the summary.

    ``wait`` is called with the server's status whenever that changes, ``look`` every few seconds. Raises
    `BouquetError` with the ServerApp's reason when the run fails. ``signature`` is the owner's, on the app.
    """
    (folder / FAILURE).unlink(missing_ok=True)
    before = _version(folder / SUMMARY)
    status: dict[str, Any] = {}
    looked = 0.0
    app = write_app(superlink.directory / "app", signed_app_files(signature)[0])
    seen = _count_lines(folder / ROUNDS)
    run_id = submit_run(superlink, app, settings.to_run_config())
    log = RunLog(superlink, run_id, folder / SERVER_LOG)
    life = Life(folder / SERVERAPP, run_id)
    while True:
        over = _is_over(superlink, run_id, log, folder, before, life)
        if (now := read_status(folder)) != status:
            status = now
            wait(status)
        if time.monotonic() - looked >= LOOK_SECONDS:
            looked = time.monotonic()
            look()
        lines = _complete_lines(folder / ROUNDS)
        # A resumed run drops the lines of rounds that it repeats.
        seen = min(seen, len(lines))
        for line in lines[seen:]:
            follow(json.loads(line))
        seen = len(lines)
        if over:
            break
        time.sleep(POLL_SECONDS)
    failure = read_failure(folder)
    if failure is not None and read_status(folder).get("state") == STOPPED:
        raise RunStopped(str(failure))
    if failure is not None:
        raise failure
    if _version(folder / SUMMARY) in (before, None):
        full = "" if shutil.disk_usage(folder).free > LITTLE_BYTES else f" The disk of {folder} is full."
        raise BouquetError(f"The run ended without a result.{full} The end of {folder / SERVER_LOG}:\n{log.tail()}")
    summary: dict[str, Any] = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    return summary


class Life:
    """Of a run's ServerApp, which is a process of SuperLink's, by the ``file`` that it holds while it lives.

    SuperLink itself learns of its death when no heartbeat has come for a minute.
    """

    def __init__(self, file: Path, run_id: int) -> None:
        self.file = file
        self.run_id = str(run_id)
        self._began = False

    @property
    def over(self) -> bool:
        """Whether it was there and is no more."""
        with contextlib.suppress(OSError):
            # The file may be that of the run before, or of a ServerApp that another one has succeeded.
            if self.file.read_text(encoding="utf-8") == self.run_id:
                held = is_held(self.file)
                self._began = self._began or held
                return self._began and not held
        return False


def _is_over(superlink: SuperLink, run_id: int, log: RunLog, folder: Path, before: object, life: Life) -> bool:
    if not superlink.process.alive:
        raise BouquetError(f"SuperLink ended during the run.\n{superlink.process.tail()}")
    gone = life.over  # looked at first: what it leaves is there before it ends
    # A run that goes on has a summary from before, which is not its result.
    if _version(folder / SUMMARY) not in (before, None) or (folder / FAILURE).exists():
        return True
    # The log ends with the run.
    if log.alive and not gone:
        return False
    try:
        finished = run_status(superlink, run_id).finished
    except BouquetError:
        # Killed, it counts as alive until its supervisor has ended what was below it.
        with contextlib.suppress(TimeoutError):
            superlink.process.wait(ENDING_SECONDS)
            raise BouquetError(f"SuperLink ended during the run.\n{superlink.process.tail()}") from None
        raise
    if gone and not finished:  # one that ends by itself tells SuperLink so before
        raise ServerAppLost(
            f"The ServerApp was killed, or crashed. The end of {folder / SERVER_LOG}:\n{tail(folder / SERVER_LOG)}"
        )
    return finished


def _version(path: Path) -> tuple[int, int] | None:
    """Changes whenever the file is replaced; None where there is none."""
    try:
        about = path.stat()
    except FileNotFoundError:
        return None
    return about.st_ino, about.st_mtime_ns


def _complete_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return text[: text.rfind("\n") + 1].splitlines()


def _count_lines(path: Path) -> int:
    return len(_complete_lines(path))
