"""Anchored: clusters as anchors of personal models. Bouquet's own method.

It joins two methods. FeSEM (Long et al. 2023, https://arxiv.org/abs/2108.08647) finds K centers by the devices' models.
Ditto (Li et al. 2021, https://arxiv.org/abs/2012.04221) gives every device a personal model that is held near the
global one; here it is held near the center of its cluster. A device that resembles others learns from them more than
from all; one that resembles nobody still has its own model, and is no worse off in a cluster that does not suit it than
with Ditto. With one cluster it is like Ditto, but that the global model is a plain mean, whose devices are held by
FeSEM's proximal weight. With a strong pull it is FeSEM.

The number of clusters is found as FeSEM's is: one center serves all until the devices' updates show groups.

Others that join clusters and personal models, such as MAPPER, APFL, FedSoft and CGPFL, weigh models or cluster copies
that follow them. Here the models that are clustered are trained on the data, as FeSEM's are, and nothing that follows
the personal model is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bouquet.common.protocol import Instruction
from bouquet.common.protocol.capabilities import LAYERS, TERMS
from bouquet.strategies.anchored import ANCHOR_WEIGHT, PROCEDURE
from bouquet.strategies.base.options import Weight, Weighting
from bouquet.strategies.fesem.state import FeSEMState
from bouquet.strategies.fesem.strategy import FeSEM

_WHY = "beside the model of all there is a personal one, held near it."


@dataclass(eq=False, repr=False)
class Anchored(FeSEM):
    """FeSEM for the centers C_k, and F(v) + (λ/2)·‖v − C_{r_i}‖² minimised by each device for its own model v.

    What leaves a device in a round: its cluster's center as it trained it, its number of samples, and the losses and
    accuracies of its personal model. The personal model never leaves the device, which is tested with it. What it is
    sent: its cluster's center, from which the personal model begins on a device that has none. A round costs a device
    two trainings, as Ditto's does.

    Parameters
    ----------
    num_clusters : int | "auto", default "auto"
        K; ``"auto"`` finds it.
    anchor_weight : float, default 1.0
        λ; 0 trains every device alone beside FeSEM.
    """

    tested_model = "personal"
    trainings = "2"

    anchor_weight: Weight = 1.0
    # Of FeSEM, and no options here.
    proximal_weight: float = field(default=0.001, init=False)
    weighted_loss: bool = field(default=False, init=False)
    weighting: Weighting | None = field(default=None, init=False)

    def device_needs(self) -> Mapping[str, str]:
        """For the personal model."""
        return {**super().device_needs(), LAYERS: _WHY, TERMS: _WHY}

    def plan(self, state: FeSEMState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """FeSEM's plan, of which the model is also the anchor of the personal one."""
        return {
            client: replace(
                instruction,
                start="personal",
                procedure=PROCEDURE,
                newcomer=client not in state.assignment,
                config={**instruction.config, ANCHOR_WEIGHT: self.anchor_weight},
            )
            for client, instruction in super().plan(state, round_, clients).items()
        }
