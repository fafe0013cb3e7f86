"""The model on this device, as the settings name it, and what of it the server sent once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bouquet.client.context import ClientContext
from bouquet.client.state.device_state import DeviceState
from bouquet.client.training.transforms import standardising
from bouquet.common.model.build import initial_model, state_arrays, state_vector
from bouquet.common.model.card import ModelCard
from bouquet.common.model.freezing import frozen_names, load_trained, trained_state
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import Backbone, ProtocolError
from bouquet.common.protocol.error_replies import LostBackboneError
from bouquet.common.settings import Settings
from bouquet.common.torchvision_compat import TORCHVISION


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
    def begin(cls, node: ClientContext, device: torch.device) -> Built:
        """What a message is read with; in a simulation the model of all messages where that can be."""
        shared = one_for_all(node.settings, device) if node.is_simulated else None
        return shared or cls.of(node.settings)

    def with_backbone(self, backbone: Backbone | None, node: ClientContext, device: torch.device, run: str) -> Built:
        """The model with frozen layers and starting weights (`put_in`), from the message or as the device kept them."""
        if self.is_shared and backbone is None:
            return self
        # `load` does not overwrite frozen layers: in a model that other messages share, they would stay for those, too.
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


DIGEST = re.compile(r"[0-9a-f]{1,64}")


def put_in(model: nn.Module, backbone: Backbone | None, state: DeviceState, run: str) -> None:
    """Put what the message holds, or the device kept, into the model; what the message holds is kept.

    Raises `LostBackboneError` where it is neither here nor there, and `ProtocolError`, naming the tensor, for what does
    not fit the model.
    """
    frozen = frozen_names(model)
    if backbone is None:
        if frozen:
            raise ProtocolError(
                "The server sends no frozen layers, and this run has some (model.frozen): install the same release of "
                "Bouquet at both ends."
            )
        return
    if not DIGEST.fullmatch(backbone.digest):  # it becomes the name of a file
        raise ProtocolError(f"The backbone's digest {backbone.digest[:80]!r} is none.")
    arrays = backbone.arrays if backbone.arrays is not None else state.recall_backbone(run, backbone.digest)
    if arrays is None:
        raise LostBackboneError(
            "This device no longer has the part of the model that it is sent once (frozen layers, starting weights); "
            "it will be sent it again in the next round."
        )
    _check(arrays, model.state_dict(), frozen)
    if backbone.arrays is not None:
        state.keep_backbone(run, backbone.digest, arrays)
    model.load_state_dict({name: torch.as_tensor(array) for name, array in arrays.items()}, strict=False)


def _check(arrays: Mapping[str, NDArray[Any]], own: Mapping[str, torch.Tensor], frozen: frozenset[str]) -> None:
    if missing := sorted(frozen - set(arrays)):
        raise ProtocolError(f"The frozen tensor {missing[0]!r} is missing ({len(missing)} of {len(frozen)} are).")
    for name, array in arrays.items():
        if name not in own:
            raise ProtocolError(f"Tensor {name!r}, sent as a part that stays, is not in this device's model.")
        if array.shape != tuple(own[name].shape):
            raise ProtocolError(f"Tensor {name!r} has shape {array.shape}, expected {tuple(own[name].shape)}.")
        if array.dtype.kind not in "fiub" or not np.isfinite(array).all():
            raise ProtocolError(f"Tensor {name!r}, sent as a part that stays, holds values that are no finite numbers.")
