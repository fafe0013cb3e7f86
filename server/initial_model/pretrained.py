"""Starting weights from a file: what fits the model by name and shape is taken, and the head replaced where it must be.

A file is data, never code: safetensors, or PyTorch's ``.pt`` and ``.pth`` read with ``weights_only=True``, which
refuses pickled objects.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from bouquet.common.errors import BouquetError
from bouquet.common.model.freezing import head_layer
from bouquet.common.model.torchvision_models import AUXILIARY

SUFFIXES = (".safetensors", ".pt", ".pth")
_INSIDE = ("state_dict", "model_state_dict", "model")  # under which training scripts commonly keep it


@dataclass(frozen=True)
class WeightsFile:
    """The tensors of a file by name, and which file it was."""

    name: str
    sha256: str
    tensors: Mapping[str, Tensor]


def read_weights(path: Path) -> WeightsFile:
    """Read a file of weights. Raises `BouquetError`, naming the key and the file, for what is none."""
    said = f"Setting model.weights = {str(path)!r}"
    if path.suffix not in SUFFIXES:
        raise BouquetError(f"{said}: the name ends in none of {', '.join(SUFFIXES)}.")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BouquetError(f"{said}: the file cannot be read: {error.strerror}.") from None
    try:
        tensors = load_safetensors(content) if path.suffix == SUFFIXES[0] else _state_dict(content)
    except (SafetensorError, ValueError) as error:
        raise BouquetError(f"{said}: this is no file of weights ({error}).") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, AttributeError, KeyError, ImportError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise BouquetError(
            f"{said}: it holds something else than tensors by name ({reason}), and Bouquet runs no code from a file. "
            "Write one with torch.save(model.state_dict(), FILE) or safetensors."
        ) from None
    if not tensors:
        raise BouquetError(f"{said}: it holds no tensors.")
    return WeightsFile(path.name, hashlib.sha256(content).hexdigest(), tensors)


def take_weights(model: nn.Module, weights: WeightsFile) -> list[str]:
    """Put the file's tensors into the model, and return the names of those that were taken.

    The head, the last layer with parameters, stays as it is where it has another number of outputs in the file, or is
    not there. Raises `BouquetError`, naming the tensor and both shapes, for everything else that does not fit.
    """
    own, given = model.state_dict(), dict(weights.tensors)
    head = f"{head_layer(model)}."
    for name in [name for name in given if name not in own and name.startswith(AUXILIARY)]:
        del given[name]  # of classifiers that Bouquet builds torchvision's models without
    of_head = [name for name in own if name.startswith(head)]
    if any(name not in given or _other_classes(own[name], given[name]) for name in of_head):
        for name in of_head:
            given.pop(name, None)
    else:
        of_head = []
    said = f"The weights in {weights.name} do not fit the model"
    if missing := [name for name in own if name not in given and name not in of_head]:
        raise BouquetError(
            f"{said}: {missing[0]!r} {tuple(own[missing[0]].shape)} is not among them ({len(missing)} of the model's "
            f"{len(own)} tensors are not); the file begins with {', '.join(map(repr, list(weights.tensors)[:3]))}."
        )
    for name, tensor in given.items():
        if name not in own:
            raise BouquetError(f"{said}: the model has no {name!r} {tuple(tensor.shape)}.")
        if tensor.shape != own[name].shape:
            raise BouquetError(
                f"{said}: {name!r} has shape {tuple(tensor.shape)} in the file and {tuple(own[name].shape)} in the "
                "model."
            )
        if tensor.is_floating_point() != own[name].is_floating_point() or tensor.is_complex():
            raise BouquetError(f"{said}: {name!r} holds {tensor.dtype} in the file and {own[name].dtype} in the model.")
        if not torch.isfinite(tensor.float()).all():
            raise BouquetError(f"{said}: {name!r} holds values that are not finite.")
    with torch.no_grad():
        for name, tensor in given.items():
            own[name].copy_(tensor)
    return [name for name in own if name in given]


def _other_classes(own: Tensor, given: Tensor) -> bool:
    """Whether two tensors of a head differ in the number of outputs alone, the first dimension."""
    return own.shape[:1] != given.shape[:1] and own.shape[1:] == given.shape[1:] and own.dim() > 0


def _state_dict(file: bytes) -> dict[str, Tensor]:
    """Raises what `torch.load` raises, and `ValueError` for contents that are no tensors by name."""
    content: Any = torch.load(BytesIO(file), map_location="cpu", weights_only=True)
    for key in _INSIDE:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise ValueError("it holds no tensors by name")
    return {str(name): tensor.detach() for name, tensor in content.items()}
