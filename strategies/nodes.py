"""Which client each node is: waiting for nodes to connect, asking them who they are, and knowing it afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import INFO
from typing import Any

from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from common import protocol
from common.errors import BouquetError
from strategies.exchange import Patience, exchange

IDENTIFY_TIMEOUT = 120.0  # seconds; a node that does not say who it is sits the round out
# What the server calls a node, given what it says of itself, if anything; None where it cannot tell (yet).
NameOf = Callable[[int, Mapping[str, Any] | None], str | None]


@dataclass
class Nodes:
    """Every node that was ever seen, with its client.

    A device that comes back under a new node id is the client it was. ``refusing`` are nodes that did not run the app:
    they are asked again who they are, because another release may be installed there by then.
    """

    clients: dict[int, str] = field(default_factory=dict)
    refusing: set[int] = field(default_factory=set)

    def unknown(self, connected: Sequence[int]) -> list[int]:
        """Those that are to be asked who they are."""
        return [node for node in connected if node not in self.clients or node in self.refusing]

    def among(self, connected: Sequence[int]) -> dict[str, int]:
        """Client → node for the connected ones, in order of client.

        A device's old node, which may still count as connected for a while, comes earlier and gives way.
        """
        there = set(connected)
        nodes = {client: node for node, client in self.clients.items() if node in there}
        return dict(sorted(nodes.items()))

    def learn(self, asked: Sequence[int], answers: Sequence[Message], names: NameOf | None) -> None:
        """Take in what nodes said of themselves. A stock ClientApp answers with an error and is known by its node."""
        self.refusing -= set(asked)
        for answer in answers:
            node, about = answer.metadata.src_node_id, protocol.about(answer)
            known = names(node, about) if names else None
            if answer.has_error() and protocol.RELEASE in about:
                self.refusing.add(node)
            self.clients[node] = known or protocol.client_id(answer)

    def name(self, message: Message, names: NameOf | None) -> str:
        """The client that replied: as the server knows its node, else as it calls itself, which is remembered."""
        node = message.metadata.src_node_id
        if names is not None and (known := names(node, None)) is not None:
            self.clients[node] = known
            return known
        if message.has_content() and protocol.CLIENT in message.content:
            self.clients[node] = protocol.client_id(message)
        return self.clients.get(node) or protocol.client_id(message)


def wait_for_nodes(grid: Grid, minimum: int, timeout: float) -> list[int]:
    """The nodes that are connected, once they are ``minimum``. Raises `BouquetError` after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    last_count = -1
    while len(node_ids := list(grid.get_node_ids())) < minimum:
        if time.monotonic() >= deadline:
            raise BouquetError(
                f"Only {len(node_ids)} of the {minimum} nodes that a round needs are connected after {timeout:.0f} s."
            )
        if len(node_ids) != last_count:
            log(INFO, "waiting for nodes: %s connected, %s needed", len(node_ids), minimum)
            last_count = len(node_ids)
        time.sleep(0.5)
    return node_ids


def ask_who(grid: Grid, nodes: Sequence[int], patience: Patience, ttl: float) -> tuple[list[Message], list[Message]]:
    """Ask nodes who they are: the questions, and the answers of those that gave one."""
    questions = [Message(RecordDict(), dst_node_id=node, message_type=protocol.IDENTIFY, ttl=ttl) for node in nodes]
    answers, _ = exchange(grid, questions, replace(patience, timeout=min(ttl, IDENTIFY_TIMEOUT)))
    return questions, answers
