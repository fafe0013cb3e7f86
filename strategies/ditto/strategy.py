"""Ditto: FedAvg for the global model, and a personal model on every device, held near it.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021.
https://arxiv.org/abs/2012.04221

Algorithm 1. The paper's devices choose λ on validation samples, and take 1 where they have too few; here it is 1 for
all. Both models train for the same number of epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bouquet.common.protocol import ARRAYS, Instruction, Proximal
from bouquet.common.protocol.capabilities import LAYERS, TERMS
from bouquet.strategies.base.method import one_model
from bouquet.strategies.base.options import Weight
from bouquet.strategies.baselines.fedavg import FedAvg, GlobalState

_WHY = "beside the model of all there is a personal one, held near it."


@dataclass(eq=False, repr=False)
class Ditto(FedAvg):
    """FedAvg for the global model w, and F(v) + (λ/2)·‖v − w‖² minimised by each device for its own model v.

    What leaves a device in a round: the global model as it trained it, its number of samples, and the losses and
    accuracies of its personal model. The personal model never leaves the device, which is tested with it. What it is
    sent: the global model w, from which the personal one begins on a device that has none.

    Parameters
    ----------
    proximal_weight : float, default 1.0
        λ; 0 trains every device alone beside FedAvg.
    """

    tested_model = "personal"
    trainings = "2"
    proximal_weight: Weight = 1.0

    def device_needs(self) -> Mapping[str, str]:
        """For the personal model."""
        return {LAYERS: _WHY, TERMS: _WHY}

    def plan(self, state: GlobalState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """The global model, which is also the anchor of the personal one."""
        proximal = (Proximal(ARRAYS, self.proximal_weight),)
        return {
            client: one_model(
                state.centers[0],
                start="personal",
                procedure="ditto",
                proximal=proximal,
                newcomer=client not in state.clients,
            )
            for client in clients
        }
