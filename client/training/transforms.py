"""What becomes of samples on their way into the model: bytes standardised, and in training augmented and weighted.

Augmentation is torchvision's (``torchvision.transforms.v2``), a sample at a time, because a transform draws once for
all images that it is given together. It draws from PyTorch's global generator, which a session seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bouquet.common.errors import BouquetError
from bouquet.common.model.card import ModelCard
from bouquet.common.torchvision_compat import import_torchvision

SHIFT = 8  # an eighth of a side is what "crop" shifts by, at most
COLOUR = 0.2  # "color" multiplies brightness, contrast and saturation by 0.8 to 1.2
Augment = Callable[[Tensor], Tensor]


def standardising(card: ModelCard) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...] | None]:
    """A hook before a model's forward: samples of bytes become what the card says, others are taken as they are.

    So bytes stay bytes until a mini-batch of them is used: photos in float32 would take four times the memory.
    """

    def hook(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        x = inputs[0]
        if x.dtype != torch.uint8:
            return None
        # To the bit what `bouquet.common.model.card.standardise_bytes` gives, which would not pass through
        # `torch.vmap`.
        mean, std = _channels(card.mean, x), _channels(card.std, x)
        return ((x.float() / 255 - mean) / std, *inputs[1:])

    return hook


def augmentation(names: Sequence[str], card: ModelCard, x: Tensor, raw_floats: bool) -> Augment | None:
    """The transforms of these names for samples like ``x`` (n, *shape); None where there are none.

    Floats were standardised as ``card`` says, and are so again afterwards; with ``raw_floats`` they were prepared by
    their owner, and "color", which needs to know black and white, is refused. Raises `BouquetError` for samples that
    are no images.
    """
    if not names:
        return None
    shape = tuple(x.shape[1:])
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise BouquetError(
            f"Setting train.augment = {list(names)}: samples of shape {shape} are no images (1 or 3 channels, height, "
            "width); leave it empty."
        )
    is_bytes = x.dtype == torch.uint8
    if "color" in names and raw_floats and not is_bytes:
        raise BouquetError(
            "Setting train.augment: 'color' needs images as bytes (uint8, 0 to 255), and this device's .npz holds "
            "floats, of which nobody knows what is black and what white; leave 'color' out."
        )
    transform = _transform(names, shape)
    if is_bytes or "color" not in names:
        return lambda batch: torch.stack([transform(image) for image in batch])
    mean, std = _channels(card.mean, x), _channels(card.std, x)

    def of_floats(batch: Tensor) -> Tensor:
        images = (batch * std + mean).clamp(0, 1)
        return (torch.stack([transform(image) for image in images]) - mean) / std

    return of_floats


def class_weights(labels: NDArray[np.int64], num_classes: int) -> NDArray[np.float32]:
    """w_c = n / (C n_c) of each class (num_classes,), where C classes are among the n labels; 0 of those that are not.

    All classes that are there then weigh the same together, n / C, and the samples' mean weight is 1.
    """
    counts = np.bincount(labels, minlength=num_classes)
    there = counts > 0
    weights = np.zeros(num_classes, dtype=np.float32)
    weights[there] = len(labels) / (there.sum() * counts[there])
    return weights


def _channels(values: tuple[float, ...], x: Tensor) -> Tensor:
    """A value for each channel, or one for all, to be combined with samples like ``x``."""
    return torch.tensor(values, device=x.device).reshape(1, -1, *(1 for _ in x.shape[2:]))


def _transform(names: Sequence[str], shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    import_torchvision()
    from torchvision.transforms import v2

    _, height, width = shape
    steps: list[nn.Module] = []
    if "crop" in names:
        padding = [max(1, width // SHIFT), max(1, height // SHIFT)]
        steps.append(v2.RandomCrop((height, width), padding=padding, padding_mode="reflect"))
    if "flip" in names:
        steps.append(v2.RandomHorizontalFlip())
    if "color" in names:
        steps.append(v2.ColorJitter(brightness=COLOUR, contrast=COLOUR, saturation=COLOUR))
    composed: Callable[[Tensor], Tensor] = v2.Compose(steps)
    return composed
