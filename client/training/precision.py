"""Mixed precision in local training (``train.mixed_precision``): the forward pass and the loss in 16 bits, on CUDA.

The model, its gradients as the step takes them, the step and all that leaves the device stay in 32 bits. With float16
the loss is multiplied before the backward pass, so that small gradients do not become zero, and the gradients divided
by as much afterwards (Micikevicius et al. 2018, Mixed Precision Training, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from bouquet.common.errors import BouquetError

SCALE = 2.0**10  # to begin with; each message begins anew, and a step at too large a one is lost
GROWS_AFTER = 200  # steps of finite gradients


@dataclass(frozen=True)
class Precision:
    """What the forward pass and the loss are computed in: None, 32 bits; else a type of 16 bits on this device."""

    reduced: torch.dtype | None = None
    device: str = "cuda"

    @classmethod
    def of(cls, mixed: bool, device: torch.device) -> Precision:
        """As the settings have it: on CUDA bfloat16 where the GPU computes in it, else float16; elsewhere 32 bits."""
        if not mixed or device.type != "cuda":
            return FULL
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return cls(torch.bfloat16 if has_bfloat16 else torch.float16, device.type)

    def forward(self) -> AbstractContextManager[object]:
        """Where the forward pass and the loss belong."""
        return nullcontext() if self.reduced is None else torch.autocast(self.device, self.reduced)

    def scaling(self) -> LossScale | None:
        """For the backward passes of one training: float16 needs it, with its least number of 6e-8."""
        return LossScale() if self.reduced is torch.float16 else None

    @property
    def note(self) -> str:
        """What a device's log says of it."""
        if self.reduced is None:
            return "Mixed precision: train.mixed_precision changes nothing here, where there is no CUDA."
        return f"Mixed precision: local training computes in {str(self.reduced).removeprefix('torch.')}."


FULL = Precision()


class LossScale:
    """What float16's loss is multiplied by: halved where a gradient overflows, doubled after many that do not."""

    def __init__(self) -> None:
        self.scale = SCALE
        self._good = 0

    def backward(self, total: Tensor, parameters: Sequence[Tensor]) -> bool:
        """Gradients of ``total``; False where they overflow, and the step is to be left out.

        Raises `BouquetError` where they overflow unscaled, too.
        """
        (total * self.scale).backward()
        gradients = [p.grad for p in parameters if p.grad is not None]
        norms = torch._foreach_norm(gradients, math.inf)
        if bool(torch.isfinite(torch.stack([norm.float() for norm in norms])).all()):
            torch._foreach_mul_(gradients, 1 / self.scale)
            self._good += 1
            if self._good % GROWS_AFTER == 0:
                self.scale *= 2
            return True
        self._good = 0
        self.scale /= 2
        if self.scale < 1:
            raise BouquetError(
                "Local training diverged (gradients that float16 cannot hold); lower train.learning_rate or set "
                "train.mixed_precision = false."
            )
        return False
