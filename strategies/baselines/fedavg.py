"""The methods of one global model that need nothing special of a device: FedAvg and FedProx.

FedAvg: McMahan, Moore, Ramage, Hampson, y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017. https://arxiv.org/abs/1602.05629 FedAvg's mean is summed as Flower sums it.
FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020.
https://arxiv.org/abs/1812.06127
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import Instruction
from bouquet.common.protocol.offers import TERMS
from bouquet.strategies.base.method import one_model
from bouquet.strategies.base.options import Weight
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


@dataclass(eq=False, repr=False)
class FedProx(FedAvg):
    """Flower's `FedProx`: FedAvg whose devices are held near the global model.

    The term (μ/2)·‖w − w_t‖², which Flower only announces to the device as ``proximal-mu``, is our client's.

    Parameters
    ----------
    proximal_mu : float, default 0.01
        μ; the device minimises its loss + (μ/2)·‖w − w_t‖².
    **sampling
        See `bouquet.strategies.base.sampling.Sampling`.
    """

    proximal_mu: Weight = 0.01

    def device_needs(self) -> Mapping[str, str]:
        """For μ."""
        if not self.proximal_mu:
            return {}
        return {TERMS: f"proximal_mu = {self.proximal_mu:g}; with 0 it is FedAvg."}

    def plan(self, state: GlobalState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """The global model and μ, under the key of Flower's FedProx."""
        config = {"proximal-mu": self.proximal_mu}
        return {client: one_model(state.centers[0], config=config) for client in clients}


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
