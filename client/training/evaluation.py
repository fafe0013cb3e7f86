"""Testing a model on the device's data: scores and losses, in batches that fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from client.training.pauses import pause
from common.errors import BouquetError
from common.metrics import accuracy, macro_f1

TEST_BATCH = 512
_TEST_VALUES = TEST_BATCH * 3 * 32 * 32  # of the samples that are tested at once: photos take more memory than digits


@dataclass(frozen=True)
class Scores:
    """A model's mean loss, accuracy and macro F1 on some samples; of each class, how many there are and were found."""

    loss: float
    accuracy: float
    f1: float
    examples: int
    of_class: tuple[int, ...] = ()
    found_of_class: tuple[int, ...] = ()


@torch.no_grad()
def predict(model: nn.Module, x: Tensor) -> Tensor:
    """Logits (N, classes), without gradients and in evaluation mode."""
    if model.training:  # to go through all modules takes as long as to test a small model on a few samples
        model.eval()
    found = []
    for part in x.split(together(x)):
        pause()
        found.append(model(part))
    return torch.cat(found)


def together(x: Tensor) -> int:
    """How many of these samples (n, *shape) go through a model at once where nothing is learned."""
    return max(1, min(TEST_BATCH, _TEST_VALUES // max(1, x[:1].numel())))


def mixed(logits: Sequence[Tensor]) -> Tensor:
    """Logits (N, classes) whose probabilities are the mean of those of several models' (N, classes)."""
    return torch.stack([one.float().softmax(dim=-1) for one in logits]).mean(dim=0).log()


def test(model: nn.Module, x: Tensor, y: Tensor) -> Scores:
    """Test a model; a loss that overflows or is no number counts as the largest float."""
    return scores(predict(model, x), y)


def scores(logits: Tensor, y: Tensor) -> Scores:
    """Those of logits (N, classes)."""
    loss = float(_finite(F.cross_entropy(logits, y)))
    truth, found = y.cpu().numpy(), logits.argmax(dim=1).cpu().numpy()
    # The data loaders refuse a device without test samples, so neither is None.
    classes = logits.shape[1]
    by_class = (tuple(np.bincount(labels, minlength=classes).tolist()) for labels in (truth, truth[truth == found]))
    return Scores(loss, accuracy(truth, found) or 0.0, macro_f1(truth, found, classes) or 0.0, len(y), *by_class)


def mean_loss(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Mean cross-entropy."""
    return float(_finite(F.cross_entropy(predict(model, x), y)))


def finite_losses(losses: Mapping[int, float]) -> dict[int, float]:
    """The losses of the clusters that a device may choose, by cluster: those that are finite.

    Raises `BouquetError` where none is.
    """
    usable = {cluster: loss for cluster, loss in losses.items() if np.isfinite(loss)}
    if not usable:
        raise BouquetError(
            "The models of all clusters have diverged (no loss is finite); lower train.learning_rate or set "
            "train.max_gradient_norm."
        )
    return usable


def _finite(loss: Tensor) -> Tensor:
    """A loss that overflows, or is no number, as the largest float: metrics must be finite, and it is no good one."""
    return torch.nan_to_num(loss, nan=torch.finfo(loss.dtype).max)
