"""Per-FedAvg: a global model from which a gradient step on a device's own data leads to a good model for it.

Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach. NeurIPS 2020. https://arxiv.org/abs/2002.07948

Algorithm 1, in the first-order approximation (FO) of section 5. Where it differs: β is ``train.learning_rate``, with
the momentum of the settings as for every method here (the paper has none: ``train.momentum = 0``); a round has
``train.local_epochs`` epochs of meta-steps, where the paper has τ steps. The two mini-batches of a step are
independent, as in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from bouquet.common.protocol import Instruction, Scalar
from bouquet.common.protocol.capabilities import TRAINING
from bouquet.strategies.base.method import one_model
from bouquet.strategies.base.options import Above0
from bouquet.strategies.baselines.fedavg import FedDist, GlobalState
from bouquet.strategies.perfedavg import ADAPTATION_RATE, ADAPTATION_STEPS, PROCEDURE


@dataclass(eq=False, repr=False)
class PerFedAvg(FedDist):
    """Minimises the mean over the devices of f_i(w − α ∇f_i(w)) (Eq. 3); all devices weigh alike.

    What leaves a device in a round: the global model after its meta-steps, its number of samples, its losses and
    accuracies. What it is sent: the global model. It is tested with that model adapted by gradient steps on all of its
    training data, and what it keeps for itself is the model of its meta-steps, adapted. A step costs as much as two of
    FedAvg's.

    Parameters
    ----------
    adaptation_rate : float, default 0.01
        α.
    """

    tested_model = "received, then adapted by gradient steps"
    trainings = "2"
    takes_steps = False  # its meta-steps are more than local SGD's

    adaptation_rate: Above0 = 0.01
    step_size = 1.0  # the server takes the plain mean
    adaptation_steps: ClassVar[int] = 1  # gradient steps of adaptation before a test; 1 in the paper

    def device_needs(self) -> Mapping[str, str]:
        """For the meta-gradients."""
        return {TRAINING: "a step is along a meta-gradient."}

    def plan(self, state: GlobalState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """The global model, and how to adapt it."""
        config: dict[str, Scalar] = {ADAPTATION_RATE: self.adaptation_rate, ADAPTATION_STEPS: self.adaptation_steps}
        return {client: one_model(state.centers[0], procedure=PROCEDURE, config=config) for client in clients}
