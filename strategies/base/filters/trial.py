"""The models that are on trial go out beside those that devices train (`bouquet.strategies.base.groups.Trial`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import RIVAL, Payload
from bouquet.strategies.base.filters.filter import Filter, Outgoing


class Trials(Protocol):
    """`bouquet.strategies.base.groups.Groups`, whose import is SciPy's."""

    def model_for(self, client: str) -> Vector | None:
        """What the client is to judge (d,); None where that is nothing."""
        ...


class Rivals(Filter):
    """``trials`` gives what knows which model (d,) a client is to judge in this round; None before the first round."""

    def __init__(self, trials: Callable[[], Trials | None]) -> None:
        self.trials = trials

    def outgoing(self, message: Outgoing) -> Outgoing:
        """With the model that the client is to judge."""
        trials = self.trials() if message.is_train else None
        if trials is None or (rival := trials.model_for(message.client)) is None:
            return message
        models = {**message.instruction.models, RIVAL: Payload(rival)}
        return replace(message, instruction=replace(message.instruction, models=models))
