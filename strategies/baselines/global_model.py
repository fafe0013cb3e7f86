"""What the baselines of one global model share: it goes to everybody, and moves towards the mean of what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import Instruction
from bouquet.strategies.base.method import one_model
from bouquet.strategies.base.options import Weighting
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.baselines.fedavg import GlobalState
from bouquet.strategies.mathematics.aggregation import reptile_step


class GlobalModel(MethodStrategy[GlobalState]):
    """One model w for all, moved by ``step_size`` of the way to the mean of the clients' models.

    Methods whose clients do something else than FedAvg's override `plan`. ``weighting`` says whether all clients weigh
    alike in the mean or by their number of samples.
    """

    state_class = GlobalState
    takes_late_replies = True
    step_size: float = 1.0
    weighting: Weighting = "uniform"

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> GlobalState:
        """The initial model."""
        return GlobalState(initial[None, :].copy(), [])

    def plan(self, state: GlobalState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """The global model to everybody."""
        return {client: one_model(state.centers[0]) for client in clients}

    def update(self, state: GlobalState, round_: int, replies: Replies) -> GlobalState:
        """The step towards the mean of the replies; what is no parameter is taken from the mean as it is."""
        weights = replies.num_examples if self.weighting == "examples" else None
        mean = self.aggregation.center(replies.W, weights)
        moved = reptile_step(state.centers[0], mean, self.step_size)
        # A part of a step would leave a counter between two numbers, and one beyond the mean a variance below 0.
        center = np.where(replies.layout.parameter_columns, moved, mean[0])
        return GlobalState(center[None, :], sorted({*state.clients, *replies.clients}))
