"""torchvision's classification models by name: ``torchvision:mobilenet_v3_small``.

Built without weights and without auxiliary classifiers, for as many classes as the data have. Names and shapes of the
parameters are torchvision's own, also for grey images, so that a file of weights fits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bouquet.common.errors import BouquetError
from bouquet.common.nearest import nearest
from bouquet.common.torchvision_compat import TORCHVISION, import_torchvision

Shape = tuple[int, ...]

# Classifiers half way, for training from nothing: GoogLeNet's and Inception's. They would need a loss of their own.
AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")
_WITH_AUXILIARY = ("googlenet", "inception_v3")
_CHANNELS = 3


def torchvision_names() -> list[str]:
    """The classification models that the installed torchvision has."""
    models = import_torchvision().models
    names: list[str] = models.list_models(module=models)
    return names


def build_torchvision(name: str, input_shape: Shape, num_classes: int, tried: bool = True) -> nn.Module:
    """The model behind ``torchvision:NAME``, in training mode.

    Grey images are repeated in all three channels, rather than the first convolution replaced: its shape stays that of
    a file of weights, at the price of two more input planes in one layer.

    ``tried`` runs it once on zeros. Raises `BouquetError` for a name that there is not, with those near it, and for
    images that it does not take.
    """
    short = name.removeprefix(TORCHVISION)
    known = torchvision_names()
    if short not in known:
        raise BouquetError(
            f"Setting model.name = {name!r}: torchvision {import_torchvision().__version__} has no classification "
            f"model {short!r}; {nearest(short, known, 'it has')}."
        )
    if len(input_shape) != 3 or input_shape[0] not in (1, _CHANNELS):
        raise BouquetError(
            f"Input of shape {input_shape} does not fit model {name!r}, which takes images of 1 or {_CHANNELS} "
            "channels: (channels, height, width)."
        )
    if not tried:
        return _built(short, input_shape, num_classes)
    try:
        model = _built(short, input_shape, num_classes)
        _try_out(model, input_shape, num_classes)
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise BouquetError(
            f"Input of shape {input_shape} does not fit model {name!r}: {reason.rstrip('.')}."
        ) from error
    return model.train()


def _built(short: str, input_shape: Shape, num_classes: int) -> nn.Module:
    options: dict[str, Any] = {"num_classes": num_classes}
    if short in _WITH_AUXILIARY:
        options |= {"aux_logits": False, "init_weights": True}
    if short.startswith("vit_"):
        if input_shape[1] != input_shape[2]:
            raise ValueError("vision transformers take square images")
        options["image_size"] = input_shape[1]
    if short.startswith("maxvit_"):
        options["input_size"] = input_shape[1:]
    model: nn.Module = import_torchvision().models.get_model(short, weights=None, **options)
    if input_shape[0] == 1:
        model.register_forward_pre_hook(_repeat_channel)
    return model


def _repeat_channel(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Grey images (n, 1, H, W) as (n, 3, H, W)."""
    return (inputs[0].expand(-1, _CHANNELS, -1, -1), *inputs[1:])


def _try_out(model: nn.Module, input_shape: Shape, num_classes: int) -> None:
    with torch.no_grad():
        output_shape = tuple(model.eval()(torch.zeros(2, *input_shape)).shape)
    if output_shape != (2, num_classes):
        raise ValueError(f"it maps 2 samples to shape {output_shape}, not (2, {num_classes})")
