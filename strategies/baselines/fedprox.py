"""FedProx: FedAvg whose devices are held near the global model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020.
https://arxiv.org/abs/1812.06127 The proximal term (μ/2)·‖w − w_t‖², which Flower only announces to the device as
``proximal-mu``, is our client's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bouquet.common.protocol import Instruction
from bouquet.common.protocol.offers import TERMS
from bouquet.strategies.base.method import one_model
from bouquet.strategies.base.options import Weight
from bouquet.strategies.baselines.fedavg import FedAvg, GlobalState


@dataclass(eq=False, repr=False)
class FedProx(FedAvg):
    """Flower's `FedProx`: FedAvg whose devices are held near the global model.

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
