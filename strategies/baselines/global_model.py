"""What the baselines of one global model share: it goes to everybody, and moves towards the mean of what comes back."""

from __future__ import annotations

import numpy as np

from bouquet.strategies.base.options import Weighting
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.baselines.fedavg import FedAvg, GlobalState
from bouquet.strategies.mathematics.aggregation import reptile_step


class GlobalModel(FedAvg):
    """One model w for all, moved by ``step_size`` of the way to the mean of the clients' models.

    Methods whose clients do something else than FedAvg's override `plan`. ``weighting`` says whether all clients weigh
    alike in the mean or by their number of samples.
    """

    step_size: float = 1.0
    weighting: Weighting = "uniform"

    def update(self, state: GlobalState, round_: int, replies: Replies) -> GlobalState:
        """The step towards the mean of the replies; what is no parameter is taken from the mean as it is."""
        weights = replies.num_examples if self.weighting == "examples" else None
        mean = self.aggregation.center(replies.W, weights)
        moved = reptile_step(state.centers[0], mean, self.step_size)
        # A part of a step would leave a counter between two numbers, and one beyond the mean a variance below 0.
        center = np.where(replies.layout.parameter_columns, moved, mean[0])
        return GlobalState(center[None, :], sorted({*state.clients, *replies.clients}))
