"""What devices are sent once of a model: frozen layers, and starting weights of layers that a method never sends.

Both are constant for a run, so a device keeps them (`bouquet.client.rounds.model`) and later messages name them by
their digest alone. Frozen layers go to everybody. Starting weights that were read from a file go with the first
message, as far as it holds no model of those layers: FedPer's personal layers, or all of them with `standalone`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import Backbone, Instruction
from bouquet.common.protocol.arrival import Arrival
from bouquet.common.protocol.error_replies import says_backbone_is_lost
from bouquet.strategies.base.filters.filter import Filter, OutgoingInstruction

Arrays = Mapping[str, NDArray[Any]]


@dataclass
class Delivery(Filter):
    """The part of the starting model that is sent once, and which clients have it.

    ``frozen`` are frozen tensors by name, ``given`` those of the others that no device can build: read from a file.
    """

    key = "_backbone"

    digest: str
    frozen: Arrays
    given: Arrays = field(default_factory=dict)
    # Of clients that answered in this run: whether they were sent a backbone. The others are sent theirs again.
    served: dict[str, bool] = field(default_factory=dict)
    _planned: dict[str, bool] = field(default_factory=dict)

    def pack(self, layout: ParameterLayout, client: str, instruction: Instruction) -> Backbone | None:
        """What the client's message holds of it; None where the client needs nothing."""
        if client in self.served:
            self._planned[client] = self.served[client]
            return Backbone(self.digest) if self.served[client] else None
        arrays = {**self.frozen, **self._not_sent(layout, instruction)}
        self._planned[client] = bool(arrays)
        return Backbone(self.digest, arrays) if arrays else None

    def outgoing(self, message: OutgoingInstruction) -> OutgoingInstruction:
        """The message with what the client is still to be sent."""
        return replace(message, backbone=self.pack(message.layout, message.client, message.instruction))

    def answered(self, client: str) -> None:
        """The client answered, so it has what it was sent."""
        if client in self._planned:
            self.served[client] = self._planned[client]

    def lost(self, client: str, arrival: Arrival) -> None:
        """Where the client says that it lost its part, send it again."""
        if says_backbone_is_lost(arrival.message):
            self.served.pop(client, None)

    def dump(self) -> tuple[Arrays, dict[str, bool]]:
        """For a checkpoint: no arrays, and which clients have it."""
        return {}, dict(sorted(self.served.items()))

    def load(self, arrays: Arrays, rest: Mapping[str, bool]) -> None:
        """Continue from what `dump` gave."""
        self.served = dict(rest)

    def _not_sent(self, layout: ParameterLayout, instruction: Instruction) -> Arrays:
        if not self.given:
            return {}
        models = [payload for payload in instruction.models.values() if not payload.exact]
        sent: Collection[str] = {
            layer for model in models for layer in (layout.layers if model.layers is None else model.layers)
        }
        names = set(layout.names(layer for layer in layout.layers if layer not in sent))
        return {name: array for name, array in self.given.items() if name in names}
