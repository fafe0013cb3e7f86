"""Whether a mini-batch fits into the device's memory, before the kernel ends the process that tries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bouquet.common.errors import BouquetError
from bouquet.common.system.resources import available_bytes

LARGE = 3 * 64 * 64  # values of a sample from which on it is asked: digits fit everywhere


def kept_bytes(model: nn.Module, sample: Tensor) -> int:
    """Bytes that a step of training keeps for one sample (1, *shape), at least, until its gradient is there.

    Those of what layers with parameters put out where a gradient passes: with frozen layers before the first that
    trains, theirs are not kept. Activations come on top, and what the gradient itself takes.
    """
    total = 0

    def count(_module: nn.Module, _inputs: Any, output: Any) -> None:
        nonlocal total
        if isinstance(output, Tensor) and output.requires_grad:
            total += output.numel() * output.element_size()

    owners = [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
    handles = [module.register_forward_hook(count) for module in owners]
    try:
        with torch.enable_grad():
            model.eval()(sample)
    finally:
        for handle in handles:
            handle.remove()
    return total


def check_fits(model: nn.Module, x: Tensor, batch_size: int) -> None:
    """Raise `BouquetError`, with a size that may do, where a mini-batch of these samples (n, *shape) cannot fit.

    Asked of large samples on a CPU. What passes may still be too much: ``bouquet check`` measures it.
    """
    if x.device.type != "cpu" or x[:1].numel() < LARGE:
        return
    available, size = available_bytes(swap=True), min(batch_size, len(x))
    if available is None or size * (each := kept_bytes(model, x[:1])) <= available:
        return
    raise BouquetError(
        f"A mini-batch of {size} needs more than {size * each // 10**6} MB in training, and this device has "
        f"{available // 10**6} MB available: lower train.batch_size (to {max(1, available // (2 * each))} or less), "
        "freeze layers (model.frozen), or take smaller images or a smaller model."
    )
