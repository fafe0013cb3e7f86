"""Who may take part: a folder of public keys, and a SuperLink that admits those and no others.

The folder is looked at throughout a run, so that a device can be added or removed without a restart. What SuperLink
knows already is read from its database.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import BouquetError
from common.trust.public_keys import read_public_key
from server.superlink.process import SuperLink, register_supernodes, unregister_supernode

LOOK_SECONDS = 1.0
RETRY_SECONDS = 10.0


@dataclass
class Admission:
    """Keeps a SuperLink's registered devices the same as the ``*.pub`` files of a folder.

    ``report`` is told, in one line each, of every device that is admitted or shut out and of every key that cannot be.
    """

    superlink: SuperLink
    registered: Path
    report: Callable[[str], None]
    _names: dict[bytes, str] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)

    def apply(self) -> None:
        """Register what is new in the folder, and shut out what is no longer there.

        Shutting out cannot be undone, so that nothing is while a file cannot be read: it may be half copied.
        Raises `BouquetError` when the folder is gone, or SuperLink refuses or does not answer.
        """
        wanted, complete = self._wanted()
        known = _known(self.superlink)
        new = {pem: file for pem, file in wanted.items() if pem not in known}
        for (pem, file), _ in zip(new.items(), register_supernodes(self.superlink, [*new.values()]), strict=True):
            self._names[pem] = file.stem
            self.report(f"registered {file.stem}")
        for pem, file in wanted.items():
            if pem in known and not known[pem].active:
                self._once(
                    f"The key of {file.stem} was removed from this server before, and Flower never admits it again; "
                    f"give the device a new one: bouquet keys remove {file.stem}, then bouquet keys add {file.stem}."
                )
        for pem, node in known.items():
            if complete and node.active and pem not in wanted:
                unregister_supernode(self.superlink, node.node_id)
                self.report(f"removed {self._names.get(pem, f'node {node.node_id}')}: it is shut out")
        self._names |= {pem: file.stem for pem, file in wanted.items()}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Apply the folder now, and whenever it changes inside the ``with`` block."""
        before = self._state()
        self.apply()
        end = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(before, end), name="admission", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            end.set()

    def _watch(self, before: list[tuple[str, int, int]] | None, end: threading.Event) -> None:
        pause = LOOK_SECONDS
        while not end.wait(pause) and self.superlink.process.alive:
            pause = LOOK_SECONDS
            try:
                if (now := self._state()) == before:
                    continue
                self.apply()
                before = now
            except (BouquetError, OSError) as error:
                if not end.is_set():
                    self._once(f"The devices' keys in {self.registered} could not be applied: {error}")
                pause = RETRY_SECONDS

    def _state(self) -> list[tuple[str, int, int]]:
        listed = []
        for file in sorted(self.registered.glob("*.pub")):
            with contextlib.suppress(FileNotFoundError):
                about = file.stat()
                listed.append((file.name, about.st_mtime_ns, about.st_size))
        return listed

    def _wanted(self) -> tuple[dict[bytes, Path], bool]:
        """The readable public keys, and whether that is all of them."""
        if not self.registered.is_dir():
            raise BouquetError(f"The folder {self.registered} is not there; it holds the public keys of the devices.")
        wanted: dict[bytes, Path] = {}
        complete = True
        for file in sorted(self.registered.glob("*.pub")):
            try:
                wanted[read_public_key(file).pem] = file
            except BouquetError as error:
                complete = False
                self._once(f"{error} Until it is mended or gone, no device is shut out.")
        return wanted, complete

    def _once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self.report(line)


@dataclass(frozen=True)
class _Node:
    node_id: int
    active: bool


def _known(superlink: SuperLink) -> dict[bytes, _Node]:
    """Every key that SuperLink has ever registered; ``flwr supernode list`` shows ids, but not whose they are."""
    if superlink.database is None or not superlink.database.exists():
        raise BouquetError("Devices are registered in SuperLink's database, and this one was started without.")
    try:
        with contextlib.closing(sqlite3.connect(superlink.database, timeout=30.0)) as database:
            rows = database.execute("SELECT public_key, node_id, status FROM node").fetchall()
    except sqlite3.Error as error:
        raise BouquetError(f"SuperLink's database {superlink.database} cannot be read ({error}).") from None
    # SQLite's integers are signed, Flower's node ids are not.
    return {bytes(pem): _Node(node_id % 2**64, status != "unregistered") for pem, node_id, status in rows}
