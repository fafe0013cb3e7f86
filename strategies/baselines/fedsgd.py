"""FedSGD: in each round every device takes one gradient step on all of its data, and the models are averaged.

McMahan, Moore, Ramage, Hampson, y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized Data.
AISTATS 2017, section 2. https://arxiv.org/abs/1602.05629

The paper's devices send their gradients, and the server takes the step. Here they send the model after the step,
w_t − η ∇F_k(w_t); the mean of those, weighted by n_k, is the server's step to the last digits. A model with batch
normalisation learns its running statistics that way, which a gradient does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bouquet.common.protocol import Instruction
from bouquet.common.protocol.offers import TRAINING
from bouquet.strategies.base.method import one_model
from bouquet.strategies.baselines.fedavg import FedAvg, GlobalState

ALL_SAMPLES = 2**31 - 1  # B = ∞, as a batch size that Flower's records can hold


class FedSGD(FedAvg):
    """FedAvg with one epoch (E = 1) of one batch (B = ∞): centralised gradient descent, a step a round.

    ``train.local_epochs``, ``train.batch_size`` and ``train.momentum`` are without effect; ``train.learning_rate`` is
    η. One step a round is little: give it more rounds, or a larger η, than the methods with local epochs. The batch
    holds all of a device's samples, and so must its memory.

    Parameters
    ----------
    **sampling
        See `bouquet.strategies.base.sampling.Sampling`.
    """

    takes_late_replies = False  # a step of the model before would not be one of this model's gradient
    trainings = "a step on all samples"

    def device_needs(self) -> Mapping[str, str]:
        """For the one step."""
        return {TRAINING: "a round is one step on all samples."}

    def plan(self, state: GlobalState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """The global model, to be trained for one step."""
        config = {"local-epochs": 1, "batch-size": ALL_SAMPLES, "momentum": 0.0}
        return {client: one_model(state.centers[0], config=config) for client in clients}
