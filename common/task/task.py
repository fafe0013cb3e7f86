"""What is learned: what targets look like, the loss, the score, and how several models speak as one.

A task is one class: `Classification`, `Regression`, `Forecast`, `Anomaly`. One's own is a class that is derived from
`Regression` or `Forecast`, named as ``package.module:Class`` in ``[task] kind`` (docs/own-task.md). PyTorch is
imported where it is used: who only reads a record needs no more of a task than its score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from bouquet.common.errors import BouquetError
from bouquet.common.plugins import load_object
from bouquet.common.task.score import ACCURACY, Score

if TYPE_CHECKING:
    from torch import Tensor

    from bouquet.common.settings import Settings
    from bouquet.common.settings.sections import TaskSettings


class Task:
    """A supervised task; outputs are (n, number of outputs), targets what the subclass says."""

    score: Score
    has_classes: ClassVar[bool] = False
    is_forecast: ClassVar[bool] = False
    reconstructs: ClassVar[bool] = False

    def __init__(self, settings: TaskSettings) -> None:
        self.settings = settings

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What training minimises: the mean over a mini-batch, a scalar, of targets as they are standardised."""
        raise NotImplementedError

    def errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What each sample is wrong by, (n,), of outputs and targets in the targets' own units; less is better."""
        raise NotImplementedError

    def value(self, mean_error: float) -> float:
        """The score, of the mean of the `errors`."""
        return mean_error

    def together(self, outputs: Sequence[Tensor]) -> Tensor:
        """What several models (each n, outputs) say as one."""
        raise NotImplementedError


class Classification(Task):
    """Labels (n,) from 0, outputs are logits; the cross-entropy, the share of samples whose class is the likeliest."""

    score = ACCURACY
    has_classes = True

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, targets)

    def errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """1 where another class is the most probable one."""
        return (outputs.argmax(dim=1) != targets).double()

    def value(self, mean_error: float) -> float:
        """The accuracy."""
        return 1 - mean_error

    def together(self, outputs: Sequence[Tensor]) -> Tensor:
        """Logits whose probabilities are the mean of the models'."""
        import torch

        return torch.stack([one.float().softmax(dim=-1) for one in outputs]).mean(dim=0).log()


class Regression(Task):
    """Numbers (n, targets); Huber's loss of the standardised targets, the mean absolute error in their units.

    Huber's loss (Robust Estimation of a Location Parameter, 1964) is quadratic up to one standard deviation and linear
    beyond, so that a sensor's outliers do not lead.
    """

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        self.score = Score("mae", "MAE", settings.unit, higher_is_better=False)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Huber's."""
        from torch.nn.functional import huber_loss

        return huber_loss(outputs, targets)

    def errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The absolute error, the mean over the targets."""
        return (outputs - targets).abs().double().mean(dim=1)

    def together(self, outputs: Sequence[Tensor]) -> Tensor:
        """The mean."""
        import torch

        return torch.stack([one.float() for one in outputs]).mean(dim=0)


class Forecast(Regression):
    """Numbers some steps after the window that they are foretold from; as `Regression`, otherwise."""

    is_forecast = True


class Anomaly(Regression):
    """Windows that are reconstructed: the targets are the inputs, standardised; the score is how far off that is.

    A model with a narrow layer learns what is usual, and errs where something is not (Hawkins et al., Outlier
    Detection Using Replicator Neural Networks, 2002).
    """

    is_forecast = True
    reconstructs = True

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        self.score = Score("mae", "reconstruction error", "deviations", higher_is_better=False)


TASKS: dict[str, Callable[[TaskSettings], Task]] = {
    "classification": Classification,
    "regression": Regression,
    "forecast": Forecast,
    "anomaly": Anomaly,
}


def task_of(settings: Settings) -> Task:
    """The task of a run. Raises `BouquetError`, naming it, for one's own that cannot be imported or is no `Task`."""
    return make_task(settings.task)


def has_own_units(settings: Settings) -> bool:
    """Whether a model tells numbers, or is fed columns, that each device scales by its own data."""
    return bool(settings.table.inputs) or not task_of(settings).has_classes


@lru_cache(maxsize=8)
def make_task(settings: TaskSettings) -> Task:
    """The task that the settings name."""
    kind = settings.kind
    if kind in TASKS:
        return TASKS[kind](settings)
    factory = load_object(kind, "Task")
    if not (isinstance(factory, type) and issubclass(factory, Task)):
        raise BouquetError(f"Setting task.kind = {kind!r} is no class derived from bouquet.common.task.task.Task.")
    if issubclass(factory, Classification):  # whose loss and accuracy are worked out in several places
        raise BouquetError(
            f"Setting task.kind = {kind!r} is derived from Classification, whose loss and score are its own: derive it "
            "from Regression or Forecast; train.class_weights is for classes of which there are few."
        )
    return factory(settings)
