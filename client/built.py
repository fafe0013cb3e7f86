"""A device's model in PyTorch, which flat vectors are put into and taken out of.

A device builds it for each message. A simulation answers thousands of messages in one process, and fills one model anew
for each of them: nothing may be left in it of the client before, so this is done with Bouquet's and torchvision's
models only, all of whose state is in their ``state_dict``. A model of the user's own may keep more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor, nn

from client.backbone import put_in
from client.node import Node
from client.samples import standardising
from common.freezing import frozen_names, load_trained, trained_state
from common.initial import initial_model, state_arrays, state_vector
from common.layout import ParameterLayout, Vector
from common.model_card import ModelCard
from common.protocol import Backbone
from common.settings import Settings
from common.torchvision_ops import TORCHVISION


@dataclass(frozen=True)
class Built:
    """The model as it was initialised, the layout of what is trained of it, and that as a vector (d,)."""

    model: nn.Module
    layout: ParameterLayout
    initial: Vector
    is_known: bool  # nothing but its ``state_dict`` makes it what it is
    is_shared: bool = False  # by all messages of this process

    @classmethod
    def of(cls, settings: Settings) -> Built:
        """Build what the settings name. Raises `BouquetError` for what does not fit."""
        model, name = initial_model(settings, tried=False), settings.model.name
        return cls(model, *state_vector(model), ":" not in name or name.startswith(TORCHVISION))

    @classmethod
    def begin(cls, node: Node, device: torch.device) -> Built:
        """What a message is read with; in a simulation the model of all messages where that can be."""
        shared = one_for_all(node.settings, device) if node.is_simulated else None
        return shared or cls.of(node.settings)

    def with_backbone(self, backbone: Backbone | None, node: Node, device: torch.device, run: str) -> Built:
        """What the message is worked with, with what it holds, or the device kept, beside what travels (`put_in`)."""
        if self.is_shared and backbone is None:
            return self
        # What does not travel is no part of a vector, and would stay behind in a model that others use too.
        own = Built.of(node.settings) if self.is_shared else self
        put_in(own.model, backbone, node.state, run)
        return replace(own, initial=own.vector()).on(device, node.settings)

    def on(self, device: torch.device, settings: Settings) -> Built:
        """Ready for use on this device: it standardises samples of bytes, and lies as the processor likes images."""
        self.model.register_forward_pre_hook(standardising(ModelCard.of(settings)), prepend=True)
        # Convolution and pooling of images run faster so on a CPU; layout and values of what is sent stay the same.
        model = nn.utils.convert_conv2d_weight_memory_format(self.model.to(device), torch.channels_last)
        return replace(self, model=model)

    def load(self, vector: Vector) -> nn.Module:
        """Put a flat vector (d,) into the model."""
        tensors = {name: torch.as_tensor(array) for name, array in self.layout.unflatten(vector).items()}
        if not self.is_known:
            load_trained(self.model, tensors)
            return self.model
        with torch.no_grad():
            for name, own in self._own.items():
                own.copy_(tensors[name])
        return self.model

    def vector(self) -> Vector:
        """What is trained of the model as a flat vector (d,). Raises `LayoutError` for values that are not finite."""
        return self.layout.flatten(state_arrays(self._own if self.is_known else trained_state(self.model)))

    @cached_property
    def _own(self) -> dict[str, Tensor]:
        """The tensors that `load_trained` fills, listed once: to walk through the modules takes longer than to fill."""
        return trained_state(self.model)


@lru_cache(maxsize=1)
def one_for_all(settings: Settings, device: torch.device) -> Built | None:
    """One model for all messages of a process; None where each needs its own: of the user's, or with frozen layers."""
    built = Built.of(settings)
    if not built.is_known or frozen_names(built.model):
        return None
    return replace(built.on(device, settings), is_shared=True)
