"""The methods of one global model that need nothing special of a device: FedAvg, FedProx, FedSGD, FedDist and FedDWS.

FedAvg, FedSGD: McMahan, Moore, Ramage, Hampson, y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017. https://arxiv.org/abs/1602.05629 FedAvg's mean is summed as Flower sums it.
FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020.
https://arxiv.org/abs/1812.06127
FedDist, FedDWS: Reptile's step towards the clients' models, as the FeSEM paper compares with it. Nichol, Achiam,
Schulman: On First-Order Meta-Learning Algorithms. 2018, Algorithm 2. https://arxiv.org/abs/1803.02999 Long et al.:
Multi-Center Federated Learning. 2023, section 5 ("FedDist: we adapt a distance based objective function in Reptile
meta-learning to a federated setting"; FedDWS weighs by data size) and Eq. 3, 4. https://arxiv.org/abs/2108.08647
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import Instruction
from bouquet.common.protocol.capabilities import TERMS, TRAINING
from bouquet.strategies.base.method import one_model
from bouquet.strategies.base.options import Weight, Weighting
from bouquet.strategies.base.replies import Matrix, Replies
from bouquet.strategies.base.strategy import MethodStrategy

ALL_SAMPLES = 2**31 - 1  # B = ∞, as a batch size that Flower's records can hold


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
    takes_steps = True

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


class FedSGD(FedAvg):
    """FedAvg with one epoch (E = 1) of one batch (B = ∞): centralised gradient descent, a step a round.

    ``train.local_epochs``, ``train.batch_size`` and ``train.momentum`` are without effect; ``train.learning_rate`` is
    η. The paper's devices send their gradients, and the server takes the step. Here they send the model after the step,
    w_t − η ∇F_k(w_t); the mean of those, weighted by n_k, is the server's step to the last digits. A model with batch
    normalisation learns its running statistics that way, which a gradient does not hold.

    One step a round is little: give it more rounds, or a larger η, than the methods with local epochs. The batch holds
    all of a device's samples, and so must its memory.
    """

    takes_steps = False
    takes_late_replies = False  # a step of the model before would not be one of this model's gradient
    trainings = "a step on all samples"

    def device_needs(self) -> Mapping[str, str]:
        """For the one step."""
        return {TRAINING: "a round is one step on all samples."}

    def plan(self, state: GlobalState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """The global model, to be trained for one step."""
        config = {"local-epochs": 1, "batch-size": ALL_SAMPLES, "momentum": 0.0}
        return {client: one_model(state.centers[0], config=config) for client in clients}


class FedDist(FedAvg):
    """The global model moves by ε of the way to the mean of the clients' models, its nearest point in L2 (Eq. 3).

    The FeSEM paper names no step size. Reptile lets it fall linearly from 1 to 0 over the run; 0.5 is the mean of that,
    and needs no knowledge of how long the run will be.
    """

    step_size: ClassVar[float] = 0.5  # ε of Reptile
    weighting: ClassVar[Weighting] = "uniform"

    def update(self, state: GlobalState, round_: int, replies: Replies) -> GlobalState:
        """The step towards the mean of the replies; what is no parameter is taken from the mean as it is."""
        weights = replies.num_examples if self.weighting == "examples" else None
        mean = self.aggregation.center(replies.W, weights)
        start = state.centers[0].astype(np.float64)
        moved = (start + self.step_size * (mean[0] - start)).astype(np.float32)
        # A part of a step would leave a counter between two numbers, and one beyond the mean a variance below 0.
        center = np.where(replies.layout.parameter_columns, moved, mean[0])
        return GlobalState(center[None, :], sorted({*state.clients, *replies.clients}))


class FedDWS(FedDist):
    """FedDist whose mean weighs clients by their numbers of samples. With a whole step it would be FedAvg."""

    weighting = "examples"


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
