"""FedPer: the base layers are averaged, the personal layers stay on the device.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers. 2019.
https://arxiv.org/abs/1912.00818
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import ARRAYS, Instruction, Payload
from bouquet.common.protocol.capabilities import LAYERS
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.baselines.fedavg import GlobalState


@dataclass(eq=False, repr=False)
class FedPer(MethodStrategy[GlobalState]):
    """One base for all, W_B, averaged by number of samples; personal layers W_P on each device (Algorithms 1 and 2).

    What leaves a device in a round: the base layers as it trained them, its number of samples, its losses and
    accuracies. What it is sent: the mean base layers. Personal layers travel in neither direction: a device begins with
    those of the initial model, which it builds from the run's seed, and one that lost its own begins with them again.

    Parameters
    ----------
    personal_layers : int | tuple[str, ...], default 1
        K_P, so many layers at the output, or the names of the layers.
    """

    state_class = GlobalState
    takes_late_replies = True
    takes_steps = True
    tested_model = "personal: the received base below its own layers"
    models_on_devices_only = True

    personal_layers: int | tuple[str, ...] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.personal_layers or (isinstance(self.personal_layers, int) and self.personal_layers < 0):
            raise BouquetError(
                f"personal_layers = {self.personal_layers!r}: a whole number from 1, or names of layers; without "
                "personal layers, take 'fedavg'."
            )

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> GlobalState:
        """The initial model. Raises `BouquetError` when it has no such layers, or no others."""
        self._base(layout)
        return GlobalState(initial[None, :].copy(), [])

    def plan(self, state: GlobalState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """The base layers to everybody, and nothing else back."""
        assert self.layout is not None
        base = self._base(self.layout)
        payload = Payload(state.centers[0], base)
        return {
            client: Instruction({ARRAYS: payload}, upload=base, newcomer=client not in state.clients)
            for client in clients
        }

    def update(self, state: GlobalState, round_: int, replies: Replies) -> GlobalState:
        """W_B as the mean of the clients', weighted by γ_j = n_j / Σ n."""
        columns = replies.layout.columns(self._base(replies.layout))
        together = [0] * len(replies)
        centers = state.centers.copy()
        # Of whole rows, which are zero in personal layers: an aggregation knows the columns of a whole model.
        centers[:, columns] = self.aggregation.cluster_means(replies.W, together, 1, replies.num_examples)[:, columns]
        return GlobalState(centers, sorted({*state.clients, *replies.clients}))

    def device_needs(self) -> Mapping[str, str]:
        """For the personal layers."""
        return {LAYERS: "personal layers never leave the device."}

    def _base(self, layout: ParameterLayout) -> tuple[str, ...]:
        layers = layout.layers
        if isinstance(self.personal_layers, int):
            base = layers[: max(0, len(layers) - self.personal_layers)]
        else:
            personal = layout.check_layers(self.personal_layers)
            base = tuple(layer for layer in layers if layer not in personal)
        if not base:
            raise BouquetError(
                f"personal_layers = {self.personal_layers!r} leaves no layer to share; the model has {len(layers)}: "
                f"{', '.join(layers)}."
            )
        return base
