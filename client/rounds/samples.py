"""A device's samples in one message: what is trained on, what is held out of it, and what is tested on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bouquet.common.errors import BouquetError
from bouquet.common.model_selection import FOLDS

if TYPE_CHECKING:
    from bouquet.client.data.loading import ClientData

Samples = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class RoundSamples:
    """Samples and labels on the device's accelerator: to train on, with those that are held out, and to test on."""

    all_train: Samples
    test: Samples
    seed: int
    in_order: bool = False
    kept_as: str = ""  # see `ClientData`

    @classmethod
    def of(cls, data: ClientData, device: torch.device, seed: int) -> RoundSamples:
        """Those of a device; which of them are held out is drawn from ``seed``."""
        parts = (data.train_x, data.train_y, data.test_x, data.test_y)
        train_x, train_y, test_x, test_y = (torch.as_tensor(part).to(device) for part in parts)
        return cls((train_x, train_y), (test_x, test_y), seed, data.in_order, data.kept_as)

    def untrained(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Names of the classes of which there is no sample to train on."""
        counts = torch.bincount(self.all_train[1].cpu(), minlength=len(classes)).tolist()
        return tuple(name for name, count in zip(classes, counts, strict=True) if not count)

    def split(self, fraction: float) -> tuple[Samples, Samples]:
        """Training data without, and of, the part that is held out: the same in every round, so never trained on.

        A random one, or the newest of samples in the order of their time, which may overlap. A larger part holds all of
        a smaller one. Raises `BouquetError` where nothing is left to train on.
        """
        x, y = self.all_train
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(self.seed))
        if self.in_order:
            order = torch.arange(len(y) - 1, -1, -1)
        held, rest = order.tensor_split([max(1, round(fraction * len(y)))])
        if not len(rest):
            raise BouquetError(
                f"A validation_fraction of {fraction} holds out all of this device's {len(y)} "
                "training samples; lower it, or give the device more data."
            )
        return (x[rest], y[rest]), (x[held], y[held])

    def fold(self, of: Samples, round_: int) -> tuple[Samples, Samples]:
        """Samples without, and of, the part that is kept out in this round: one of `FOLDS`, at least a sample.

        A random one, or some that follow one another in time. Of a single sample nothing is kept out.
        """
        x, y = of
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(self.seed))
        if self.in_order:
            order = torch.arange(len(y))
        folds = order.tensor_split(min(FOLDS, len(y)))
        kept = folds[round_ % len(folds)] if len(folds) > 1 else order[:0]
        is_rest = torch.ones(len(y), dtype=torch.bool)
        is_rest[kept] = False
        rest, kept = is_rest.nonzero()[:, 0].to(y.device), kept.to(y.device)
        return (x[rest], y[rest]), (x[kept], y[kept])
