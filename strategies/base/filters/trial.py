"""The models that are on trial go out beside those that devices train (`bouquet.strategies.base.groups.Trial`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from bouquet.common.protocol import RIVAL, Payload
from bouquet.strategies.base.filters.filter import Filter, Outgoing

if TYPE_CHECKING:
    from bouquet.strategies.base.groups import Groups  # whose import is SciPy's


class Rivals(Filter):
    """``groups`` gives what knows which model a client is to judge in this round; None before the first round."""

    def __init__(self, groups: Callable[[], Groups | None]) -> None:
        self.groups = groups

    def outgoing(self, message: Outgoing) -> Outgoing:
        """With the model that the client is to judge."""
        groups = self.groups() if message.is_train else None
        if groups is None or (rival := groups.model_for(message.client)) is None:
            return message
        models = {**message.instruction.models, RIVAL: Payload(rival)}
        return replace(message, instruction=replace(message.instruction, models=models))
