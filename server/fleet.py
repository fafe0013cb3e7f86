"""Which devices there are: their names, as the SuperLink authenticated them, and who of them is connected.

SuperLink's database says which key each node has and when it was last heard of; the folder of registered keys says
what the key is called. With keys a device is what its key is called and nothing else. Without keys it is what it calls
itself when it is asked.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from common import protocol
from common.bundle import DISTRIBUTION
from common.errors import BouquetError
from common.files import write_json
from common.public_keys import PublicKey, read_public_key
from server.run_folder import NAMES

HEARTBEATS_MISSED = 2  # Flower's HEARTBEAT_PATIENCE: a node counts as connected for so many intervals
UNREGISTERED, ONLINE = "unregistered", "online"


@dataclass(frozen=True)
class Connection:
    """What SuperLink knows of a node. Times are seconds since 1970; ``seen`` is when it was last heard of."""

    node_id: int
    key: bytes
    status: str
    since: float | None
    seen: float | None
    patience: float = 60.0  # seconds without a word after which it no longer counts as connected

    @property
    def registered(self) -> bool:
        """Whether its key may take part."""
        return self.status != UNREGISTERED

    def online(self, now: float) -> bool:
        """Whether it counts as connected: not gone, and heard of within two heartbeats."""
        return self.status == ONLINE and self.seen is not None and now - self.seen <= self.patience


def connections(database: Path) -> dict[int, Connection]:
    """Every node that SuperLink has ever known, by id. Raises `BouquetError` where its database cannot be read."""
    if not database.exists():
        raise BouquetError(f"SuperLink's database {database} is not there.")
    columns = "node_id, public_key, status, last_activated_at, last_deactivated_at, online_until, heartbeat_interval"
    try:
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30.0)) as opened:
            rows = opened.execute(f"SELECT {columns} FROM node").fetchall()
    except sqlite3.Error as error:
        raise BouquetError(f"SuperLink's database {database} cannot be read ({error}).") from None
    found = {}
    for node_id, key, status, activated, deactivated, until, interval in rows:
        patience = HEARTBEATS_MISSED * (interval or 30.0)
        seen = None if until is None else until - patience
        if status != ONLINE and deactivated:
            seen = _seconds(deactivated)
        since = _seconds(activated)
        if since is not None:
            seen = since if seen is None else max(seen, since)
        # SQLite's integers are signed, Flower's node ids are not.
        node = node_id % 2**64
        found[node] = Connection(node, bytes(key or b""), status, since, seen, patience)
    return found


def registered_keys(folder: Path) -> Iterator[tuple[str, PublicKey]]:
    """Name and key of every device that is registered; files that are no keys are passed over."""
    for file in sorted(folder.glob("*.pub")):
        with contextlib.suppress(BouquetError):
            yield file.stem, read_public_key(file)


@dataclass
class Names:
    """What each node is called in a run.

    A device has one name in a run, the one it began with: renamed (its key's file, or its ``--name``) it is the device
    it was. The names are kept in the run folder, so that a run that goes on knows them; one that is not ``resumed``
    begins without. Who only looks (``keeps`` is false) writes nothing. ``notices`` collects what a device's owner
    should be told, by node.
    """

    folder: Path
    database: Path | None = None
    registered: Path | None = None
    resumed: bool = True
    keeps: bool = True
    devices: dict[str, dict[str, Any]] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    notices: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.resumed:
            return
        with contextlib.suppress(OSError, ValueError):
            self.devices = json.loads((self.folder / NAMES).read_text(encoding="utf-8"))

    def __call__(self, node: int, said: Mapping[str, Any] | None = None) -> str | None:
        """The name of a node; None where that cannot be known (yet).

        ``said`` is what it says of itself, where it has said anything. With keys that is never a name: who has spoken
        and whose key cannot be found is called by its node.
        """
        if self.registered is not None:
            name = self.nodes.get(node) or self._by_key(node)
            if name is not None and said:
                self._note_release(node, said)
            return name if said is None else name or f"node-{node}"
        if said and set(said) != {protocol.RELEASE}:  # that alone, of a device that refuses the app
            self._by_word(node, said)
        return self.nodes.get(node)

    def other_releases(self, there: Collection[str]) -> dict[str, str]:
        """The release that is installed on each of the devices ``there`` where it is not the one of this server."""
        own = importlib.metadata.version(DISTRIBUTION)
        found = {name: release for name in there if (release := self.release(name)) not in (None, own)}
        return {name: release for name, release in sorted(found.items()) if release}

    def release(self, name: str) -> str | None:
        """The release of Bouquet that a device said is installed on it."""
        found = [d.get(protocol.RELEASE) for d in self.devices.values() if d["name"] == name]
        return next((release for release in found if release), None)

    def _by_key(self, node: int) -> str | None:
        assert self.registered is not None
        if self.database is None:
            return None
        try:
            found = connections(self.database).get(node)
        except BouquetError:
            return None
        if found is None:
            return None
        for name, key in registered_keys(self.registered):
            if key.pem == found.key:
                return self._settle(node, key.fingerprint, name)
        return None

    def _by_word(self, node: int, said: Mapping[str, Any]) -> None:
        name = str(said.get(protocol.CLIENT_ID) or f"node-{node}")
        identity = str(said.get(protocol.DEVICE_ID) or name)
        name = self._settle(node, identity, name)
        self._note_release(node, said)

    def _settle(self, node: int, identity: str, name: str) -> str:
        known = self.devices.get(identity)
        if known is None:
            taken = {device["name"] for other, device in self.devices.items() if self._still_there(other)}
            # A key that replaces another under the same name is the same device.
            chosen = next(n for n in (name, *(f"{name}-{k}" for k in range(2, len(taken) + 3))) if n not in taken)
            if chosen != name:
                self.notices[node] = (
                    f"Another device is called {name} already, so this one is called {chosen} in this run. Give each a "
                    "name of its own (bouquet client --name NAME)."
                )
            known = self.devices[identity] = {"name": chosen}
        self.nodes[node] = known["name"]
        self._write()
        return str(known["name"])

    def _still_there(self, identity: str) -> bool:
        if self.registered is None:
            return True
        return any(key.fingerprint == identity for _, key in registered_keys(self.registered))

    def _note_release(self, node: int, said: Mapping[str, Any]) -> None:
        name, release = self.nodes.get(node), said.get(protocol.RELEASE)
        for device in self.devices.values():
            if device["name"] == name and release and device.get(protocol.RELEASE) != release:
                device[protocol.RELEASE] = str(release)
                self._write()

    def _write(self) -> None:
        if self.keeps:
            write_json(self.folder / NAMES, self.devices)


@dataclass
class Twins:
    """Finds two devices that are taken for one: a copied SD card, with its key or its name on it.

    A device that lost power and came back looks the same at first: SuperLink still takes the one before for connected.
    But that one is not heard of again; a twin is.
    """

    database: Path
    said: set[str] = field(default_factory=set)
    _refused: dict[bytes, float] = field(default_factory=dict)

    def refused(self, key: bytes, now: float) -> None:
        """SuperLink turned away somebody with this key, because it takes a node for connected that has it."""
        self._refused.setdefault(key, now)

    def same_key(self, names: Mapping[bytes, str]) -> Iterator[str]:
        """Once for each key that two devices show: the line for the owner."""
        if not self._refused:
            return
        by_key = {c.key: c for c in connections(self.database).values()}
        for key, refused in list(self._refused.items()):
            found = by_key.get(key)
            if found is None or found.status != ONLINE or found.seen is None or found.seen <= refused + 1.0:
                # One that SuperLink gave up at the end of its patience looks as if it had been there until then.
                continue
            del self._refused[key]
            if found.since is not None and found.since > refused:
                continue  # the one that was refused got in, when the one before no longer counted
            name = names.get(key, f"node {found.node_id}")
            line = (
                f"{name}: two devices hold its key, and the second is shut out; is one the copy of the other's card? "
                f"Give the second a key of its own: bouquet keys add OTHER-NAME."
            )
            if line not in self.said:
                self.said.add(line)
                yield line

    def same_name(self, nodes: Mapping[int, str]) -> Iterator[tuple[int, str, str]]:
        """Node, name and line for each node that is connected beside another of its name, once for each."""
        every = connections(self.database)
        by_name: dict[str, list[Connection]] = {}
        for node, name in nodes.items():
            if (found := every.get(node)) is not None and found.status == ONLINE and found.since is not None:
                by_name.setdefault(name, []).append(found)
        for name, nodes_of_name in by_name.items():
            nodes_of_name.sort(key=lambda connection: connection.since or 0.0)
            for older, newer in itertools.pairwise(nodes_of_name):
                if older.seen is None or newer.since is None or older.seen <= newer.since + 1.0:
                    continue
                line = (
                    f"{name}: two devices say that they are it, and one of them is left out; is one the copy of the "
                    "other's card? Delete the second one's state folder and start it with a --name of its own."
                )
                if f"{older.node_id} {newer.node_id}" not in self.said:
                    self.said.add(f"{older.node_id} {newer.node_id}")
                    yield older.node_id, name, line


def _seconds(iso: str | None) -> float | None:
    if not iso:
        return None
    try:
        return datetime.fromisoformat(iso).timestamp()
    except ValueError:
        return None
