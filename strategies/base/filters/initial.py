"""The initial model, sent once to devices whose ClientApp cannot build it: those that are another's."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from flwr.app import ArrayRecord

from bouquet.common import protocol
from bouquet.common.protocol import Payload
from bouquet.common.protocol.arrival import Arrival
from bouquet.common.protocol.names import INITIAL
from bouquet.strategies.base.filters.filter import Filter, OutgoingInstruction


class InitialModel(Filter):
    """Sends it with each message to one of ``clients`` until that has answered, and anew to one that has lost it."""

    def __init__(self, clients: Container[str], initial: ArrayRecord) -> None:
        self.clients, self.initial = clients, protocol.from_record(initial)
        self.holders = set[str]()

    def outgoing(self, message: OutgoingInstruction) -> OutgoingInstruction:
        """With the initial model, for one that does not have it."""
        if message.client not in self.clients or message.client in self.holders:
            return message
        sent = Payload(message.layout.flatten(self.initial))
        models = {**message.instruction.models, INITIAL: sent}
        return replace(message, instruction=replace(message.instruction, models=models))

    def answered(self, client: str) -> None:
        """It has kept it."""
        self.holders.add(client)

    def lost(self, client: str, arrival: Arrival) -> None:
        """It may have lost it."""
        self.holders.discard(client)
