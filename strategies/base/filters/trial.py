"""The models that are on trial go out beside those that devices train (`bouquet.strategies.base.groups.Trial`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import RIVAL, Payload
from bouquet.strategies.base.filters.filter import Filter, OutgoingInstruction


class Rivals(Filter):
    """``model_for`` gives the model (d,) that a client is to judge in this round, or None."""

    def __init__(self, model_for: Callable[[str], Vector | None]) -> None:
        self.model_for = model_for

    def outgoing(self, message: OutgoingInstruction) -> OutgoingInstruction:
        """With the model that the client is to judge."""
        rival = self.model_for(message.client) if message.is_train else None
        if rival is None:
            return message
        models = {**message.instruction.models, RIVAL: Payload(rival)}
        return replace(message, instruction=replace(message.instruction, models=models))
