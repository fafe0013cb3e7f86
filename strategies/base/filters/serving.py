"""The server's end of ``[personal] serve = "auto"``: which model the fleet does better with, and telling it.

Each reply says by how much more the mixture errs on a part of the device's data than the received model
(`bouquet.common.model_selection.REPORT`). A device's sum over rounds, in which older ones count less and less, is its
vote, of at most `MOST_OF_ONE` sample: no device outvotes others by its size, or by lying. Where the votes of those that
do not lie sum to v, more than v that lie can make it the other model. What was counted of the models of other clusters
is forgotten when their number changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bouquet.common.model_selection import MIXTURE, RECEIVED, SERVE, reported
from bouquet.common.protocol import ClientReply
from bouquet.strategies.base.filters.filter import Filter, OutgoingInstruction

KEPT_OF_ROUND = 0.9  # what a round's counts weigh in the next one
MOST_OF_ONE = 1.0
_MOST_AT_ONCE, _FORGOTTEN = 100.0, 1e-3


class FleetVote(Filter):
    """The devices' sums by client; ``count_clusters`` says how many models the fleet has."""

    key = "_serving"

    def __init__(self, count_clusters: Callable[[], int] = lambda: 1) -> None:
        self.count_clusters, self.clusters, self.round = count_clusters, 0, 0
        self.sums: dict[str, float] = {}
        self._counted: set[str] = set()  # in this round: a device may have several messages in it
        self._told: str | None = None  # the choice, until somebody counts again

    @property
    def choice(self) -> str:
        """The received model where the fleet does at least as well with it; the mixture before a device has counted."""
        votes = [max(-MOST_OF_ONE, min(MOST_OF_ONE, one)) for one in self.sums.values()]
        return RECEIVED if votes and math.fsum(votes) >= 0 else MIXTURE  # exact: replies come in any order

    def begin(self, round_: int) -> None:
        """What was counted before weighs less; in a round that is begun again it does so already."""
        if round_ == self.round:
            return
        self.round, self._told, self._counted = round_, None, set()
        before, self.clusters = self.clusters, self.count_clusters()
        aged = {client: KEPT_OF_ROUND * one for client, one in self.sums.items() if self.clusters == before}
        # A sum of 0 is a vote, too: it says that the models do as well.
        self.sums = {client: one for client, one in aged.items() if one == 0 or abs(one) > _FORGOTTEN}

    def outgoing(self, message: OutgoingInstruction) -> OutgoingInstruction:
        """With what the fleet is to serve; not to train in the first round, whose model is untrained."""
        if self.round < 2 and message.is_train:
            return message
        self._told = self._told or self.choice
        config = {**message.instruction.config, SERVE: self._told}
        return replace(message, instruction=replace(message.instruction, config=config))

    def incoming(self, reply: ClientReply) -> ClientReply:
        """Add what it counted, once in a round."""
        if (vote := reported(reply.config)) is not None and reply.client not in self._counted:
            self._counted.add(reply.client)
            vote = max(-_MOST_AT_ONCE, min(_MOST_AT_ONCE, vote / 100))
            self.sums[reply.client] = self.sums.get(reply.client, 0.0) + vote
            self._told = None
        return reply

    def dump(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """For a checkpoint: no arrays, and the sums of so many clusters."""
        return {}, {"clusters": self.clusters, "sums": dict(sorted(self.sums.items()))}

    def load(self, arrays: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        """Continue from what `dump` gave."""
        self.clusters, self.sums, self._told = rest["clusters"], dict(rest["sums"]), None
