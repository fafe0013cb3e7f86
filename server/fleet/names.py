"""What each device is called, as the service knows it.

With keys a device is what its certificate is called and nothing else. Without keys it is what it calls itself when
it is asked.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bouquet.common import protocol
from bouquet.common.system.files import write_json
from bouquet.common.texts import tags_of
from bouquet.common.trust.code import DISTRIBUTION
from bouquet.server.run_folder import NAMES
from bouquet.server.service.devices import Device
from bouquet.server.service.grid import FleetGrid

DUPLICATE_SECONDS = 90.0  # after which a connection whose device is gone is known to be lost


def registered_names(folder: Path) -> list[str]:
    """The devices whose certificates lie in a folder."""
    with contextlib.suppress(OSError):
        return sorted(name.removesuffix(".crt") for name in os.listdir(folder) if name.endswith(".crt"))
    return []


@dataclass
class Names:
    """What each node is called in a run.

    Without keys a device has one name in a run, the one it began with: with another ``--name`` it is the device it was.
    The names are kept in the run folder, so that a run that goes on knows them; one that is not ``resumed`` begins
    without. Who only looks (``keeps`` is false) writes nothing. ``notices`` collects what a device's owner should be
    told, by node. ``tags`` are those of which a device of this run must have one, none where it need not. ``fleet`` is
    the running service's grid, ``service`` its folder.
    """

    folder: Path
    fleet: FleetGrid | None = None
    registered: Path | None = None
    resumed: bool = True
    keeps: bool = True
    tags: frozenset[str] = frozenset()
    service: Path | None = None
    devices: dict[str, dict[str, Any]] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    notices: dict[int, str] = field(default_factory=dict)
    _duplicates: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        if not self.resumed:
            return
        with contextlib.suppress(OSError, ValueError):
            self.devices = json.loads((self.folder / NAMES).read_text(encoding="utf-8"))

    def __call__(self, node: int, said: Mapping[str, Any] | None = None) -> str | None:
        """The name of a node; None where it has not said who it is.

        ``said`` is what it says of itself, where it has said anything. With keys that is never a name.
        """
        if self.registered is not None:
            name = self._by_certificate(node)
            if name is not None and said:
                self._note_said(node, said)
            return name
        if said and set(said) != {protocol.RELEASE}:  # that alone, of a device that refuses the code
            self._by_word(node, said)
        return self.nodes.get(node)

    def other_releases(self, there: Collection[str]) -> dict[str, str]:
        """The release that is installed on each of the devices ``there`` where it is not the one of this server."""
        own = importlib.metadata.version(DISTRIBUTION)
        releases = {name: release for name in there if (release := self.release(name)) not in (None, own)}
        return {name: release for name, release in sorted(releases.items()) if release}

    def removed(self) -> set[str]:
        """The devices of this run that their owner has removed since."""
        if self.registered is None:
            return set()
        return {str(device["name"]) for device in self.devices.values()} - {*registered_names(self.registered)}

    def duplicates(self) -> Iterator[tuple[int, str]]:
        """Without keys: node and line, once, for each that is connected while another of its name is."""
        if self.fleet is None or self.registered is not None:
            return
        by_name: dict[str, list[Device]] = {}
        for device in self.fleet.devices():
            if device.stream is not None and (name := self.nodes.get(device.node)) is not None:
                by_name.setdefault(name, []).append(device)
        for name, alike in by_name.items():
            alike.sort(key=lambda device: device.since)
            for older, newer in itertools.pairwise(alike):
                if time.time() - newer.since > DUPLICATE_SECONDS and (older.node, newer.node) not in self._duplicates:
                    self._duplicates.add((older.node, newer.node))
                    yield (
                        older.node,
                        f"{name}: two devices say that they are it, and one of them is left out; is one the copy of "
                        "the other's card? Delete the second one's state folder and start it with a --name of its own.",
                    )

    def release(self, name: str) -> str | None:
        """The release of Bouquet that a device said is installed on it."""
        releases = [d.get(protocol.RELEASE) for d in self.devices.values() if d["name"] == name]
        return next((release for release in releases if release), None)

    def tags_of(self, name: str) -> frozenset[str] | None:
        """The tags that a device said it has; None where it has not spoken."""
        tags = [d[protocol.TAGS] for d in self.devices.values() if d["name"] == name and protocol.TAGS in d]
        return tags_of(tags[-1]) if tags else None

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

    def _by_certificate(self, node: int) -> str | None:
        if node not in self.nodes and self.fleet is not None:
            for device in self.fleet.devices():
                if device.name is not None and device.node not in self.nodes:
                    self.nodes[device.node] = device.name
                    self.devices.setdefault(device.name, {"name": device.name})
                    if tags := tags_of(list(device.hello.tags)):
                        self.devices[device.name][protocol.TAGS] = sorted(tags)
            self._write()
        return self.nodes.get(node)

    def _by_word(self, node: int, said: Mapping[str, Any]) -> None:
        name = str(said.get(protocol.CLIENT_ID) or f"node-{node}")
        identity = str(said.get(protocol.DEVICE_ID) or name)
        name = self._settle(node, identity, name)
        self._note_said(node, said)

    def _settle(self, node: int, identity: str, name: str) -> str:
        known = self.devices.get(identity)
        if known is None:
            taken = {device["name"] for device in self.devices.values()}
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

    def _note_said(self, node: int, said: Mapping[str, Any]) -> None:
        """Note the release and the tags of a device that was asked who it is."""
        name, release = self.nodes.get(node), said.get(protocol.RELEASE)
        if not release:
            return
        facts: dict[str, Any] = {protocol.RELEASE: str(release)}
        if protocol.DEVICE_ID in said:  # who refuses the code says its release alone
            facts[protocol.TAGS] = sorted(tags_of(said.get(protocol.TAGS)))
        for device in self.devices.values():
            if device["name"] == name and not facts.items() <= device.items():
                device |= facts
                self._write()

    def _write(self) -> None:
        if self.keeps:
            write_json(self.folder / NAMES, self.devices)
