"""Who is there: waiting for devices before a round, and what they and the status file are told of each other."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from logging import WARNING
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from bouquet.common import protocol
from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings
from bouquet.server.fleet.names import Names
from bouquet.server.record.status import WAITING, Progress
from bouquet.server.run.stop import check_stop
from bouquet.strategies.base.strategy import MethodStrategy

NOTICE_SECONDS = 600.0
LOOK_SECONDS = 0.2
PAUSE_FOR_LOOK = 100  # seconds for each that a look takes: of thousands of devices it takes a while


class Attendance:
    """The connected devices of a run. Without ``names`` (a simulation) they are known by their nodes' numbers."""

    def __init__(
        self, grid: Grid, settings: Settings, strategy: MethodStrategy[Any], names: Names | None, status: Progress
    ) -> None:
        self.grid, self.settings, self.strategy = grid, settings, strategy
        self.names, self.status = names, status
        self._excluded: dict[int, str] = {}  # node → why it takes no part, as it knows already

    def look_around(self) -> dict[str, Any]:
        """Before a round: who is connected, for the status; devices are told what their owners should know."""
        there = self.look()
        if self.names is not None:
            notices = dict(self.names.notices)
            self.names.notices.clear()
            self.notify(notices | dict(self.names.duplicates()))
        return there

    def notify(self, notices: Mapping[int, str]) -> None:
        """Have devices say something to their owners, by node."""
        for node, line in notices.items():
            log(WARNING, "%s", line)
            content = RecordDict({protocol.CONFIG: ConfigRecord({protocol.TEXT: line})})
            notice = Message(content, dst_node_id=node, message_type=protocol.NOTICE, ttl=NOTICE_SECONDS)
            self.grid.push_messages([notice])

    def connected(self) -> tuple[list[int], dict[int, str]]:
        """All nodes, and those that have no tag of this run, with the reason, which they are told."""
        nodes = list(self.grid.get_node_ids())
        if not self.strategy.tags:
            return nodes, {}
        if self.names is not None:
            self.strategy.have_tags(filter(self.names.has_tag, nodes))
        self.strategy.who_can(self.grid, nodes, again=True)  # those that refuse are left to the round
        others = self.strategy.others(nodes)
        self.notify(dict(others.items() - self._excluded.items()))
        self._excluded = others
        return nodes, others

    def pass_over_removed(self, failures: dict[str, str]) -> None:
        """A device whose key its owner removed is away because of that, and has not failed."""
        for client in self.names.removed() if self.names and failures else ():
            failures.pop(client, None)

    def look(self) -> dict[str, Any]:
        """Who is connected, who is missing, and who does not work now."""
        resting = self.strategy.train_round.not_now.items()
        nodes = list(self.grid.get_node_ids())
        return {
            **self.status.look(nodes, self.strategy.others(nodes)),
            "not_now": {client: {"reason": rest.reason, "until": round(rest.until)} for client, rest in resting},
        }

    def wait_for_owners(self, done: int) -> None:
        """Wait until the owners of ``server.min_clients`` devices let them work, or of all that are connected if fewer.

        There is no time limit: a device that works at night only is expected back at night. ``done`` rounds are over.
        """
        if self.names is None:  # in a simulation nobody has such an owner
            return
        least, endless = self.settings.server.min_clients, self.settings.run.is_endless
        for look in itertools.count():
            able = self.strategy.who_can(self.grid, [*self.grid.get_node_ids()], look > 0, all_=endless and not look)
            if len(able) >= (least if endless else min(least, len(able) + len(self.strategy.train_round.not_now))):
                return
            self.status.say(WAITING, **self.look())
            check_stop(self.status.path.parent, done)
            time.sleep(LOOK_SECONDS)

    def pause(self, seconds: float, done: int) -> None:
        """Wait so long, or until a device works that does not now; ``done`` rounds are over."""
        if not seconds:
            return
        deadline, there = time.monotonic() + seconds, self.strategy.who_can(self.grid, [*self.grid.get_node_ids()])
        while time.monotonic() < deadline:
            self.status.say(WAITING, **self.look())
            check_stop(self.status.path.parent, done)
            time.sleep(LOOK_SECONDS)
            if self.strategy.who_can(self.grid, [*self.grid.get_node_ids()], again=True).keys() - there:
                return

    def wait_for_clients(self, needed: int, done: int) -> None:
        """Wait for so many nodes: for ``server.min_clients`` at first, later for any. ``done`` rounds are behind."""
        server = self.settings.server
        deadline = time.monotonic() + (math.inf if done and self.settings.run.is_endless else server.wait_for_clients)
        while True:
            began = time.monotonic()
            every, others = self.connected()
            nodes = [node for node in every if node not in others]
            if len(nodes) >= needed:
                return
            present = self.status.waiting(every, others)
            check_stop(self.status.path.parent, done)
            now = time.monotonic()
            if now >= deadline:
                break
            time.sleep(max(LOOK_SECONDS, min(PAUSE_FOR_LOOK * (now - began), deadline - now)))
        patience = f"{server.wait_for_clients:.0f} s"
        if done and not nodes:
            raise BouquetError(
                f"After round {done} no client was connected any more, and none came back within {patience} "
                f"(server.wait_for_clients). The last checkpoint is kept: --resume goes on from there. {present}"
            )
        raise BouquetError(
            f"Only {len(nodes)} of {needed} clients (server.min_clients) connected within {patience}: look at the "
            f"clients' logs, and at the address and port they use. {present}"
        )
