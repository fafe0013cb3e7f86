"""The server's end of a canary: a model is first in use where it can be judged, and elsewhere once it has held there.

Each device says after a round whether what it made errs more on its newest test samples than what it has in use: a vote
of 1, 0 or -1, so that no device outvotes others by its size or by lying. Where the votes of those that were sent the
same cluster's model sum to no more than 0, what they made in that round has held, and they are told so in the next
message. A device with too few test samples to judge by itself waits for that (`bouquet.client.rounds.in_use`). If
honest votes sum to v, it takes more than v liars to turn it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bouquet.common.model_selection import HELD, VOTE
from bouquet.common.protocol import ClientReply
from bouquet.strategies.base.filters.filter import Filter, OutgoingInstruction


class Canary(Filter):
    """The votes of a round, and of each client the last round whose model held; ``assignment`` is who is where now."""

    key = "_canary"

    def __init__(self, assignment: Callable[[], Mapping[str, int]]) -> None:
        self.assignment, self.round = assignment, 0
        self.sent: dict[str, int] = {}  # in this round; a client without a cluster was sent that of no other
        self.votes: dict[str, int] = {}
        self.held: dict[str, int] = {}

    def begin(self, round_: int) -> None:
        """Count; a round that is begun again has been counted."""
        if round_ == self.round:
            return
        against = Counter[int]()
        for client, vote in self.votes.items():
            against[self.sent.get(client, -1)] += vote
        for client in self.votes:
            if against[self.sent.get(client, -1)] <= 0:
                self.held[client] = self.round
        self.round, self.sent, self.votes = round_, {}, {}

    def outgoing(self, message: OutgoingInstruction) -> OutgoingInstruction:
        """With the last round whose model held at the client; 0 where none has."""
        if message.is_train:
            self.sent[message.client] = self.assignment().get(message.client, -1)
        config = {**message.instruction.config, HELD: self.held.get(message.client, 0)}
        return replace(message, instruction=replace(message.instruction, config=config))

    def incoming(self, reply: ClientReply) -> ClientReply:
        """Note what it said; one that could not compare, or says nonsense, is for neither."""
        vote = reply.config.get(VOTE)
        if reply.client in self.sent:
            self.votes[reply.client] = vote if isinstance(vote, int) and -1 <= vote <= 1 else 0
        return reply

    def dump(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """For a checkpoint: no arrays."""
        return {}, {name: getattr(self, name) for name in ("round", "sent", "votes", "held")}

    def load(self, arrays: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
        """Continue from what `dump` gave."""
        vars(self).update(rest)
