"""Two devices that are taken for one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from server.fleet.superlink_db import ONLINE, Connection, connections


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
