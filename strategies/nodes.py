"""Waiting for nodes to connect, and asking them who they are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from logging import INFO

from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from common import protocol
from common.errors import BouquetError
from strategies.exchange import Patience, exchange

IDENTIFY_TIMEOUT = 120.0  # seconds; a node that does not say who it is sits the round out


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
