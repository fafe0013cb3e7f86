"""Testing a model on the device's data: scores and losses, in batches that fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bouquet.client.training.pauses import pause
from bouquet.common.data.scaling import Scaling
from bouquet.common.errors import BouquetError
from bouquet.common.metrics import accuracy, macro_f1
from bouquet.common.settings.sections import TaskSettings
from bouquet.common.task.task import Classification, Task

TEST_BATCH = 512
_TEST_VALUES = TEST_BATCH * 3 * 32 * 32  # of the samples that are tested at once: photos take more memory than digits


@dataclass(frozen=True)
class Scores:
    """A model's mean loss and its task's score on some samples.

    Where the task has classes: also the macro F1, and of each class how many samples there are and were found. Where it
    has none: the best score of what is foretold without a model, and how that is done.
    """

    loss: float
    score: float
    examples: int
    f1: float | None = None
    of_class: tuple[int, ...] = ()
    found_of_class: tuple[int, ...] = ()
    naive: float | None = None


@dataclass(frozen=True, eq=False)
class Scorer:
    """What a model's outputs are worth: by the task, in the targets' own units (``scaling``).

    ``naive`` (k, n, targets) are forecasts of the n test samples without a model, in these units.
    """

    task: Task
    scaling: Scaling | None = None
    naive: NDArray[Any] | None = None

    def loss(self, outputs: Tensor, y: Tensor) -> float:
        """The mean loss; one that overflows or is no number counts as the largest float."""
        return float(_finite(self.task.loss(outputs, y)))

    def errors(self, outputs: Tensor, y: Tensor) -> Tensor:
        """What each sample (n,) is wrong by."""
        if self.scaling is None:
            return self.task.errors(outputs, y)
        return self.task.errors(self.scaling.undone(outputs), self.scaling.undone(y))

    def scores(self, outputs: Tensor, y: Tensor) -> Scores:
        """Those of outputs (n, outputs)."""
        loss = self.loss(outputs, y)
        if not self.task.has_classes:
            score = self.task.value(float(_finite(self.errors(outputs, y).mean())))
            return Scores(loss, score, len(y), naive=self._naive(y))
        truth, predicted = y.cpu().numpy(), outputs.argmax(dim=1).cpu().numpy()
        # The data loaders refuse a device without test samples, so neither is None.
        classes = outputs.shape[1]
        there, right = (
            tuple(np.bincount(labels, minlength=classes).tolist()) for labels in (truth, truth[truth == predicted])
        )
        f1 = macro_f1(truth, predicted, classes) or 0.0
        return Scores(loss, accuracy(truth, predicted) or 0.0, len(y), f1, there, right)

    def _naive(self, y: Tensor) -> float | None:
        """The best score of the forecasts without a model; None where these samples have none."""
        if self.naive is None or self.naive.shape[1] != len(y):
            return None
        truth = y if self.scaling is None else self.scaling.undone(y)
        each = (self.task.errors(torch.as_tensor(n, dtype=truth.dtype).to(truth.device), truth) for n in self.naive)
        return self.task.score.best([self.task.value(float(one.mean())) for one in each])


@torch.no_grad()
def predict(model: nn.Module, x: Tensor) -> Tensor:
    """Outputs (N, classes or targets), without gradients and in evaluation mode."""
    if model.training:  # to go through all modules takes as long as to test a small model on a few samples
        model.eval()
    outputs = []
    for part in x.split(together(x)):
        pause()
        outputs.append(model(part))
    return torch.cat(outputs)


def together(x: Tensor) -> int:
    """How many of these samples (n, *shape) go through a model at once where nothing is learned."""
    return max(1, min(TEST_BATCH, _TEST_VALUES // max(1, x[:1].numel())))


CLASSES = Scorer(Classification(TaskSettings()))


def test(model: nn.Module, x: Tensor, y: Tensor, scorer: Scorer = CLASSES) -> Scores:  # noqa: PT028  no test of ours
    """Test a model; a loss that overflows or is no number counts as the largest float."""
    return scorer.scores(predict(model, x), y)


def mean_loss(model: nn.Module, x: Tensor, y: Tensor, scorer: Scorer = CLASSES) -> float:
    """The mean loss as the model is used, neither weighted nor augmented."""
    return scorer.loss(predict(model, x), y)


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
