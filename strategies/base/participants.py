"""The part of every method that knows which devices can take part: who they are, what they can do, if they may work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from bouquet.common.errors import BouquetError
from bouquet.common.protocol.capabilities import TRAINING, cannot_work
from bouquet.strategies.base.filters.initial import InitialModel
from bouquet.strategies.base.method import State
from bouquet.strategies.base.nodes import wait_for_nodes
from bouquet.strategies.base.round import Receiver


@dataclass(eq=False, repr=False)
class Participants(Receiver[State]):
    """The part of `bouquet.strategies.base.strategy.MethodStrategy` that asks nodes who they are before a round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tags: frozenset[str] = frozenset()  # of which devices must have one, for a server that chooses by them
        self._early_identification: list[Message] = []  # what was asked and said of who they are, before the round
        self._initial: ArrayRecord | None = None

    def who_can(self, grid: Grid, connected: Sequence[int], again: bool = False, all_: bool = False) -> dict[str, int]:
        """Client → node for the connected nodes that can work now; asks those that are new, or due again.

        The others, whose owners have conditions, are then in ``train_round.not_now``. For a server, before a round;
        ``again`` for the same one. ``all_``: also those with conditions that could work when they were asked last.
        """
        due = self._due(connected, self.train_round.number + 1)
        if unknown := self._nodes.to_ask(due, who_can=all_, again=again):
            self._early_identification += self._identify(grid, unknown)
        self.train_round.not_now = self._nodes.not_now(due)
        return self._nodes.among(connected)

    def _due(self, connected: Sequence[int], round_: int) -> list[int]:
        """Those that are not left out of a round: all others would wait for what they say of themselves, too."""
        return [n for n in connected if self.exclusion.reason(self._nodes.name_of(n), round_) is None]

    def have_tags(self, nodes: Iterable[int]) -> None:
        """Nodes that said one of the `tags` before the server was restarted; they may be too busy to say it again."""
        self._nodes.inside |= set(nodes)

    def others(self, connected: Sequence[int]) -> dict[int, str]:
        """Node → why it takes no part, for the connected nodes that have none of the `tags`."""
        return self._nodes.others(connected)

    def _available(self, grid: Grid, needed: int, some: bool) -> dict[str, int]:
        """Client → node for the nodes that can work, after waiting for enough connected ones, in order of client.

        Where only ``some`` of them are chosen, those whose owners have conditions are asked before.
        """
        connected = wait_for_nodes(grid, max(self.min_available_nodes, needed), self.wait_timeout)
        if unknown := self._nodes.to_ask(self._due(connected, self._now.number), some):
            self.train_round.identification += self._identify(grid, unknown)
        if self._nodes.borrowing and self._initial is not None and not self.filter_of(InitialModel):
            self.filters.append(InitialModel(self._nodes.borrowing, self._initial))
        self._now.failures |= self._nodes.refusals(connected)
        self._now.not_now |= self._nodes.not_now(connected)
        if lacking := self._nodes.all_lack():
            raise BouquetError(cannot_work(type(self).__name__, self._needs(), lacking))
        return self._nodes.among(connected)

    def _needs(self) -> Mapping[str, str]:
        if not self.budget:
            return self.device_needs()
        return {TRAINING: "each device is told its steps (train.budget).", **self.device_needs()}

    def _identify(self, grid: Grid, unknown: Sequence[int]) -> list[Message]:
        """Learn who the nodes are; what was asked and said for that."""
        self._nodes.needs, self._nodes.tags = frozenset(self._needs()), self.tags
        if not (self.identify or self._nodes.needs or self.tags):
            self._nodes.clients.update({node: f"node-{node}" for node in unknown})
            self._nodes.refusing.clear()  # where nothing else is asked, the next round's message asks
            for node in unknown:
                self._nodes.resting.pop(node, None)
            return []
        if self.names is not None:
            # Whom the server knows by its key takes part, also where it is slow to answer.
            names = {node: self.names(node, None) for node in unknown}
            self._nodes.clients.update({node: name for node, name in names.items() if name is not None})
        shares = {node: self.exclusion.share(self._nodes.name_of(node)) for node in unknown}
        patience = replace(self.round_patience, shares=shares)
        return self._nodes.ask(grid, unknown, self.names, patience, self.round_timeout)
