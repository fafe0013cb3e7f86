"""FedAvg in Flower's arithmetic, behind the same checks, record and checkpoint as every other strategy.

McMahan, Moore, Ramage, Hampson, y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized Data.
AISTATS 2017. https://arxiv.org/abs/1602.05629 The mean is summed as Flower sums it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import Instruction
from bouquet.strategies.base.method import one_model
from bouquet.strategies.base.replies import Matrix, Replies
from bouquet.strategies.base.strategy import MethodStrategy


@dataclass(frozen=True)
class GlobalState:
    """One model for all."""

    centers: Matrix  # (1, d)
    clients: list[str]

    @property
    def assignment(self) -> dict[str, int]:
        """Everybody is in the one cluster."""
        return dict.fromkeys(self.clients, 0)


class FedAvg(MethodStrategy[GlobalState]):
    """One model, the mean of the clients' weighted by their number of samples."""

    state_class = GlobalState
    takes_late_replies = True

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> GlobalState:
        """The initial model."""
        return GlobalState(initial[None, :].copy(), [])

    def plan(self, state: GlobalState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """The global model to everybody."""
        return {client: one_model(state.centers[0]) for client in clients}

    def update(self, state: GlobalState, round_: int, replies: Replies) -> GlobalState:
        """The mean of the replies that passed the checks; another one where a server asks for it."""
        clients = sorted({*state.clients, *replies.clients})
        if self.aggregation.rule != "mean":
            return GlobalState(self.aggregation.center(replies.W), clients)
        weights = self.aggregation.weights(replies.num_examples).tolist()
        return GlobalState(flower_mean(replies, weights)[None, :], clients)


def flower_mean(replies: Replies, weights: Sequence[int]) -> Vector:
    """The weighted mean (d,) of the replies' models in Flower's arithmetic, on which published tables depend.

    Summed in float32, in order of the replies, as in Flower's `aggregate_arrayrecords`.
    """
    total = sum(weights)
    shares = (reply.vector * (weight / total) for reply, weight in zip(replies.received, weights, strict=True))
    mean = next(shares)
    for share in shares:
        mean += share
    return mean
