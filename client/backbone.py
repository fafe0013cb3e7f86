"""The device's part of the model that is sent once: frozen layers, and starting weights of layers that never travel.

It lies in the state folder as a file of its own, under its digest, so that a round writes only what it trained. A
device that lost it says so, sits the round out, and is sent it again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client.state import DeviceState
from common.freezing import frozen_names
from common.protocol import Backbone, ProtocolError
from common.refusals import LostBackboneError

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
