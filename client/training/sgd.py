"""Local SGD on the device, and the test of a model on the device's data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.sgd import sgd

from bouquet.client.training.objective import Term, objective
from bouquet.client.training.pauses import pause
from bouquet.client.training.precision import FULL, Precision
from bouquet.common.errors import BouquetError
from bouquet.common.model.freezing import training_mode
from bouquet.common.protocol.names import LOCAL_STEPS
from bouquet.common.settings.sections import TrainSettings


@dataclass(frozen=True)
class SGDOptions:
    """Hyper-parameters of local training, as the server sends them."""

    local_epochs: int
    batch_size: int
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    max_gradient_norm: float | None = None
    local_steps: int | None = None  # after which training ends, also within an epoch


def sgd_options(config: Mapping[str, Any], defaults: TrainSettings) -> SGDOptions:
    """Hyper-parameters of local training: what the server sent, else the settings."""

    def value(name: str) -> Any:
        return config.get(name.replace("_", "-"), getattr(defaults, name))

    limit, steps = value("max_gradient_norm"), config.get(LOCAL_STEPS)
    return SGDOptions(
        local_epochs=int(value("local_epochs")),
        batch_size=int(value("batch_size")),
        learning_rate=float(value("learning_rate")),
        momentum=float(value("momentum")),
        weight_decay=float(value("weight_decay")),
        max_gradient_norm=None if limit is None else float(limit),
        local_steps=None if steps is None else max(1, int(steps)),
    )


@dataclass(frozen=True)
class TrainingLoss:
    """The loss of a mini-batch in training: the task's, by default cross-entropy, of the mini-batch's size.

    ``class_weights`` (classes,) weigh each sample by its label: the loss is (1 / |B|) Σ_i w_{y_i} ℓ_i, whose mean over
    all samples is the same, whatever mini-batches they are divided into. ``augment`` changes the samples (n, *shape)
    before the model sees them, and draws from PyTorch's global generator.
    """

    class_weights: Tensor | None = None
    augment: Callable[[Tensor], Tensor] | None = None
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The loss in the mode that the model is in. Raises `BouquetError` as `logits` does."""
        return self.of_logits(logits(model, x if self.augment is None else self.augment(x)), y)

    def of_logits(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of outputs (n, classes or targets)."""
        if self.class_weights is None:
            return self.loss(outputs, y)
        return (F.cross_entropy(outputs, y, reduction="none") * self.class_weights[y]).mean()

    @property
    def as_they_are(self) -> TrainingLoss:
        """The loss of samples that are not augmented: for what compares models or gradients."""
        return replace(self, augment=None)


PLAIN = TrainingLoss()


def choose_device(name: str) -> torch.device:
    """``auto`` takes CUDA where PyTorch has it (a Jetson), else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise BouquetError("train.device = 'cuda', but PyTorch finds no CUDA device here; use 'auto' or 'cpu'.")
    return torch.device(name)


def mini_batches(count: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Indices of one epoch's mini-batches, shuffled.

    A last batch of one sample joins the one before it: batch normalisation cannot train on a single sample.
    """
    order = torch.randperm(count, generator=generator)
    batches = list(order.split(batch_size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    yield from batches


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    options: SGDOptions,
    terms: Sequence[Term],
    generator: torch.Generator,
    trained: Collection[str] | None = None,
    loss_of: TrainingLoss = PLAIN,
    precision: Precision = FULL,
) -> float:
    """Train in place for ``local_epochs`` epochs; returns the mean loss on the data over the last of them.

    ``trained`` names the parameters that are trained, None for all (`only`). Raises `BouquetError` when the loss is no
    longer finite: such a model must not reach the others.
    """
    # Listed once: a walk through the modules at each step takes as long as a small layer's product.
    parameters = list(model.parameters())
    momentum = no_momentum(parameters)
    mean, scaling, left = float("nan"), precision.scaling(), options.local_steps
    with only(model, trained):
        for _ in range(options.local_epochs):
            total, seen, steps = 0.0, 0, 0
            for batch in islice(mini_batches(len(y), options.batch_size, generator), left):
                with precision.forward():
                    loss = loss_of(model, x[batch], y[batch])
                for parameter in parameters:
                    parameter.grad = None
                total_loss = objective(model, loss, terms)
                if scaling is None:
                    total_loss.backward()
                if scaling is None or scaling.backward(total_loss, parameters):
                    sgd_step(parameters, momentum, options)
                total, seen, steps = total + loss.item() * len(batch), seen + len(batch), steps + 1
            mean = total / seen
            check_finite(mean, options)
            if left is not None and not (left := left - steps):
                break
    return mean


def check_finite(loss: float, options: SGDOptions) -> None:
    """Raise `BouquetError`, saying what to do, for a training loss that is not finite."""
    if not np.isfinite(loss):
        raise BouquetError(
            f"Local training diverged (loss {loss}) at learning rate {options.learning_rate}; lower "
            "train.learning_rate or set train.max_gradient_norm."
        )


@contextmanager
def only(model: nn.Module, trained: Collection[str] | None) -> Iterator[None]:
    """Training mode in which only the parameters of these names take gradients; None for all of them.

    A module that owns tensors, none of which is trained, is in evaluation mode: batch normalisation that is frozen
    neither normalises by the mini-batch nor learns its statistics, so that a frozen layer stays as it is to the bit.
    """
    training_mode(model)
    frozen = []
    if trained is not None:
        frozen = [p for name, p in model.named_parameters() if p.requires_grad and name not in trained]
        for prefix, module in model.named_modules():
            own = [name for name, _ in module.named_parameters(prefix, recurse=False)]
            if (own or list(module.buffers(recurse=False))) and not any(name in trained for name in own):
                module.training = False  # not `eval`, which would reach the modules inside
    try:
        for parameter in frozen:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


def no_momentum(parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """What `sgd_step` keeps between steps, at the start."""
    return [None for _ in parameters]


def logits(model: nn.Module, x: Tensor) -> Tensor:
    """The model's outputs (n, classes) on a mini-batch, in the mode that the model is in.

    Raises `BouquetError` where batch normalisation meets a mini-batch of one sample, of which it has no variance.
    """
    pause()
    try:
        outputs: Tensor = model(x)
    except ValueError as error:
        if len(x) == 1 and "more than 1 value per channel" in str(error):
            raise BouquetError(
                "The model's batch normalisation cannot train on a mini-batch of one sample: it needs at least 2 "
                "training samples on the device and train.batch_size from 2, or another normalisation (for resnet18, "
                "model.norm = 'group')."
            ) from None
        raise
    return outputs


@torch.no_grad()
def sgd_step(parameters: Sequence[Tensor], momentum: list[Tensor | None], options: SGDOptions) -> None:
    """One step of PyTorch's SGD along a model's parameters' ``grad``, clipped where ``options`` ask for it.

    ``momentum`` (`no_momentum` at first) holds a buffer for each parameter and is updated.

    The function, not `torch.optim.SGD`: making an optimiser imports PyTorch's compiler, which takes as long as PyTorch
    itself, and on a device every message is a new process.
    """
    if options.max_gradient_norm is not None:
        nn.utils.clip_grad_norm_(parameters, options.max_gradient_norm)
    trained = [(place, p) for place, p in enumerate(parameters) if p.grad is not None]
    buffers = [momentum[place] for place, _ in trained]
    sgd(
        [p for _, p in trained],
        [p.grad for _, p in trained if p.grad is not None],
        buffers,
        lr=options.learning_rate,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
        dampening=0.0,
        nesterov=False,
        maximize=False,
    )
    for (place, _), buffer in zip(trained, buffers, strict=True):
        momentum[place] = buffer


def mean_gradients(model: nn.Module, x: Tensor, y: Tensor, loss_of: TrainingLoss, part_size: int) -> dict[str, Tensor]:
    """The gradient of the training loss by parameter's name, in training mode, of so many samples at a time."""
    gradients: dict[str, Tensor] = {}
    for part_x, part_y in zip(x.split(part_size), y.split(part_size), strict=True):
        for name, part in loss_and_gradients(model, part_x, part_y, loss_of)[1].items():
            share = part * (len(part_y) / len(y))
            gradients[name] = gradients[name] + share if name in gradients else share
    return gradients


def loss_and_gradients(
    model: nn.Module, x: Tensor, y: Tensor, loss_of: TrainingLoss = PLAIN
) -> tuple[float, dict[str, Tensor]]:
    """The training loss, and its gradient by each trainable parameter's name, in training mode."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    loss = loss_of(training_mode(model), x, y)
    gradients = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True, materialize_grads=True)
    return float(loss.detach()), {name: gradient for (name, _), gradient in zip(named, gradients, strict=True)}
