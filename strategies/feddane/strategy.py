"""FedDANE: devices solve a gradient-corrected proximal problem, for which the mean gradient is gathered first.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: FedDANE: A Federated Newton-Type Method. Asilomar 2019.
https://arxiv.org/abs/2001.01920

Algorithm 2. Where it differs: one sample of devices answers both exchanges of a round, where the paper draws two, so
that a device that just answered is known to be there and the corrections of those that train add up to zero. Devices
are sampled evenly and weighed by their number of samples, where the paper samples by that number and takes plain
means. The mean gradient is of all of a device's data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import ARRAYS, Instruction, Payload, Proximal
from bouquet.common.protocol.capabilities import TRAINING
from bouquet.strategies.base.method import Ask, one_model
from bouquet.strategies.base.replies import Matrix, Replies
from bouquet.strategies.base.sampling import fewest_replies
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.baselines.fedavg import GlobalState
from bouquet.strategies.feddane import GRADIENT, PROCEDURE


@dataclass(frozen=True)
class FedDANEState(GlobalState):
    """The global model, and between the two exchanges of a round g and the devices whose gradients it is made of."""

    gradient: Vector | None = None  # (d,), zero in buffers
    asked: list[str] | None = None


@dataclass(eq=False, repr=False)
class FedDANE(MethodStrategy[FedDANEState]):
    """Each device minimises F_k(w') + ⟨g − ∇F_k(w), w' − w⟩ + (μ/2)·‖w' − w‖², where g is the devices' mean ∇F_k(w).

    What leaves a device in a round: its gradient at the global model, then that model as it trained it; its number of
    samples, its losses and accuracies. What it is sent: the global model twice, and the mean gradient.
    """

    state_class = FedDANEState
    trainings = "1, and 2 passes for gradients"

    proximal_weight: ClassVar[float] = 0.1  # μ

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> FedDANEState:
        """The initial model."""
        return FedDANEState(initial[None, :].copy(), [])

    def needs_exact(self, down: str) -> str:
        """Both exchanges of a round are about one w, and the gradient is no model."""
        if down == "float32":
            return ""
        return (
            "a device computes its gradient at the model of the first exchange again in the second, which a difference "
            "that loses bits would have changed; take 'float32' (wire.up may be any)."
        )

    def prepare(self, state: FedDANEState, round_: int, clients: Sequence[str], ask: Ask) -> FedDANEState:
        """The first exchange: g_t = Σ_k p_k ∇F_k(w), from at least ``min_replies`` devices; else there is none."""
        question = one_model(state.centers[0], procedure=PROCEDURE)
        replies = ask(dict.fromkeys(clients, question))
        if len(replies) < max(1, fewest_replies(self.min_replies, len(clients))):
            return replace(state, gradient=None, asked=[])
        return replace(state, gradient=self._mean(replies)[0], asked=list(replies.clients))

    def device_needs(self) -> Mapping[str, str]:
        """For the gradients."""
        return {TRAINING: "devices first send gradients, which correct the second exchange."}

    def plan(self, state: FedDANEState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """The second exchange: w and g_t, to those that answered in the first; nobody where there is no g_t."""
        if state.gradient is None:
            return {}
        instruction = Instruction(
            {ARRAYS: Payload(state.centers[0]), GRADIENT: Payload(state.gradient)},
            proximal=(Proximal(ARRAYS, self.proximal_weight),),
            procedure=PROCEDURE,
        )
        return {client: instruction for client in clients if client in (state.asked or [])}

    def plan_evaluate(self, state: FedDANEState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """The global model."""
        return {client: one_model(state.centers[0]) for client in clients}

    def update(self, state: FedDANEState, round_: int, replies: Replies) -> FedDANEState:
        """w as the mean of the devices' solutions."""
        return FedDANEState(self._mean(replies), sorted({*state.clients, *replies.clients}))

    def _mean(self, replies: Replies) -> Matrix:
        """The mean of what the devices uploaded, (1, d), weighted by p_k = n_k / Σ n."""
        return self.aggregation.center(replies.W, replies.num_examples)
