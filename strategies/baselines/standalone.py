"""Standalone (NoFed): every device trains alone, and no model is sent. The lower line of every comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import Instruction
from bouquet.common.protocol.capabilities import LAYERS
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.base.strategy import MethodStrategy


@dataclass(frozen=True)
class StandaloneState:
    """The server knows the clients; their models never leave them."""

    clients: list[str]


class Standalone(MethodStrategy[StandaloneState]):
    """Each device goes on from its own model and uploads nothing but its metrics. Parameters: `Sampling`."""

    state_class = StandaloneState
    takes_late_replies = True
    tested_model = "its own, which nothing else has touched"
    models_on_devices_only = True

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> StandaloneState:
        """Nobody yet: every device builds the initial model for itself from the seed."""
        return StandaloneState([])

    def plan(self, state: StandaloneState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """Go on alone."""
        return {client: Instruction(start="personal", upload=()) for client in clients}

    def update(self, state: StandaloneState, round_: int, replies: Replies) -> StandaloneState:
        """Only the list of clients grows."""
        return StandaloneState(sorted({*state.clients, *replies.clients}))

    def device_needs(self) -> Mapping[str, str]:
        """For the models."""
        return {LAYERS: "each device goes on from its own model, and is sent none."}

    def assignment(self, state: StandaloneState) -> dict[str, int]:
        """Every client is a cluster of its own."""
        return {client: cluster for cluster, client in enumerate(state.clients)}
