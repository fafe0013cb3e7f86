"""What each device is called, as the SuperLink authenticated it.

With keys a device is what its key is called and nothing else. Without keys it is what it calls itself when it is asked.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import protocol
from common.errors import BouquetError
from common.system.files import write_json
from common.texts import tags_of
from common.trust.app_bundle import DISTRIBUTION
from common.trust.public_keys import PublicKey, read_public_key
from server.fleet.superlink_db import connections
from server.run_folder import NAMES


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
    should be told, by node. ``tags`` are those of which a device of this run must have one, none where it need not.
    """

    folder: Path
    database: Path | None = None
    registered: Path | None = None
    resumed: bool = True
    keeps: bool = True
    tags: frozenset[str] = frozenset()
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
                self._note_said(node, said)
            return name if said is None else name or f"node-{node}"
        if said and set(said) != {protocol.RELEASE}:  # that alone, of a device that refuses the app
            self._by_word(node, said)
        return self.nodes.get(node)

    def other_releases(self, there: Collection[str]) -> dict[str, str]:
        """The release that is installed on each of the devices ``there`` where it is not the one of this server."""
        own = importlib.metadata.version(DISTRIBUTION)
        found = {name: release for name in there if (release := self.release(name)) not in (None, own)}
        return {name: release for name, release in sorted(found.items()) if release}

    def removed(self) -> set[str]:
        """The devices of this run whose keys their owner has removed since, and replaced by none."""
        if self.registered is None:
            return set()
        there = {key.fingerprint for _, key in registered_keys(self.registered)}
        left = {device["name"] for identity, device in self.devices.items() if identity in there}
        return {str(device["name"]) for device in self.devices.values()} - left

    def release(self, name: str) -> str | None:
        """The release of Bouquet that a device said is installed on it."""
        found = [d.get(protocol.RELEASE) for d in self.devices.values() if d["name"] == name]
        return next((release for release in found if release), None)

    def tags_of(self, name: str) -> frozenset[str] | None:
        """The tags that a device said it has; None where it has not spoken."""
        found = [d[protocol.TAGS] for d in self.devices.values() if d["name"] == name and protocol.TAGS in d]
        return tags_of(found[-1]) if found else None

    def takes(self, name: str) -> bool:
        """Whether a device takes part in this run, as far as its tags are known."""
        if not self.tags:
            return True
        own = self.tags_of(name)
        return own is None or bool(self.tags & own)

    def has_tag(self, node: int) -> bool:
        """Whether a node is of a device that is known to have a tag of this run."""
        name = self(node, None)
        return name is not None and bool(self.tags & (self.tags_of(name) or frozenset()))

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
        self._note_said(node, said)

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

    def _note_said(self, node: int, said: Mapping[str, Any]) -> None:
        """Note the release and the tags of a device that was asked who it is."""
        name, release = self.nodes.get(node), said.get(protocol.RELEASE)
        if not release:
            return
        found: dict[str, Any] = {protocol.RELEASE: str(release)}
        if protocol.DEVICE_ID in said:  # who refuses the app says its release alone
            found[protocol.TAGS] = sorted(tags_of(said.get(protocol.TAGS)))
        for device in self.devices.values():
            if device["name"] == name and not found.items() <= device.items():
                device |= found
                self._write()

    def _write(self) -> None:
        if self.keeps:
            write_json(self.folder / NAMES, self.devices)
