"""FedRep: a common body (representation), and on each device a head of its own, trained one after the other.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning. ICML
2021. https://arxiv.org/abs/2102.07078

Algorithm 1. The head's ten epochs and the body's one are our defaults, not taken from the paper. Where it differs:
bodies are weighed by number of samples, as in FedPer; a plain mean is the same where devices hold equally many. The
head's test follows its training of the round before, with the newest body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from common.protocol import Instruction, Scalar
from common.protocol.offers import TRAINING
from strategies.base.options import Count
from strategies.baselines.fedper import FedPer, FedPerState
from strategies.fedrep.wire import BODY_EPOCHS, HEAD_EPOCHS, PROCEDURE


@dataclass(eq=False, repr=False)
class FedRep(FedPer):
    """FedPer whose devices train the head h_i first, with the body φ fixed, then the body, with the head fixed.

    What leaves a device in a round: the body as it trained it, its number of samples, its losses and accuracies. What
    it is sent: the mean body. Its head travels in neither direction.

    Parameters
    ----------
    personal_layers : int | tuple[str, ...], default 1
        The head, so many layers at the output, or the names of the layers.
    head_epochs : int, default 10
        τ, epochs of training the head in a round.
    body_epochs : int, default 1
        Epochs of training the body. ``train.local_epochs`` is without effect.
    **sampling
        See `strategies.base.sampling.Sampling`.
    """

    tested_model = "personal: the received body below its own head"

    head_epochs: Count = 10
    body_epochs: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trainings = f"{self.head_epochs} epochs of the head, {self.body_epochs} of the body"

    def device_needs(self) -> Mapping[str, str]:
        """For head and body."""
        return {**super().device_needs(), TRAINING: "the head is trained first, then the body."}

    def plan(self, state: FedPerState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """The body to everybody, and how long each part is to be trained."""
        config: dict[str, Scalar] = {HEAD_EPOCHS: self.head_epochs, BODY_EPOCHS: self.body_epochs}
        planned = super().plan(state, round_, clients)
        return {client: replace(asked, procedure=PROCEDURE, config=config) for client, asked in planned.items()}
