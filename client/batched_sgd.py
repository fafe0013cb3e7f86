"""Local SGD of many models at once: their parameters stacked, each step one batched step (a simulation's clients).

Each model takes the steps of `client.local_sgd.train` on the same mini-batches, which its own generator draws; the
results differ by the order of the sums alone. `torch.vmap` over `torch.func.functional_call` turns a layer's n products
into one batched product: most of a small model's step on a CPU is the overhead of its many operations, and a GPU needs
large ones. A model that holds more than parameters (batch normalisation), draws random numbers (dropout) or is not made
of PyTorch's own modules is not trained so: `why_not`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd

from client.local_sgd import check_finite, mini_batches
from client.objective import LinearTerm, ProximalTerm
from client.together import Task, Trained
from common.errors import BouquetError
from common.layout import Vector

# Bytes of parameters that are trained together on a CPU: with momentum and gradients they stay in a core's cache.
CPU_BYTES = 2**20
_PYTORCH = ("torch", "torchvision")


def why_not(task: Task) -> str:
    """Why a model cannot be trained together with others like it; empty where it can."""
    model = task.model
    if others := {type(m).__name__ for m in model.modules() if type(m).__module__.split(".")[0] not in _PYTORCH}:
        return f"it has modules of its own ({', '.join(sorted(others))})"
    if any(isinstance(module, _DropoutNd) and module.p > 0 for module in model.modules()):
        return "it has dropout, whose random numbers are each client's own"
    parameters = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if rest := [name for name in model.state_dict() if name not in parameters]:
        return f"{rest[0]!r} is no parameter of its own that is trained, as with batch normalisation"
    if strange := [term for term in task.terms if not isinstance(term, ProximalTerm | LinearTerm)]:
        return f"its objective has a term of its own ({strange[0]!r})"
    try:
        stacked = {name: p.detach().expand(2, *p.shape) for name, p in model.named_parameters()}
        with torch.no_grad():
            _outputs(model, stacked, task.x[:1].expand(2, 1, *task.x.shape[1:]))
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return str(error).strip().partition("\n")[0]
    return ""


def train_many(tasks: Sequence[Task]) -> list[Trained | BouquetError]:
    """Train each task's model; for one whose loss is no longer finite the error that `client.local_sgd` raises.

    All tasks are of one architecture, for which `why_not` found nothing.
    """
    results: dict[int, Trained | BouquetError] = {}
    plans = [_Plan.of(task) for task in tasks]
    # Clients with as many steps go together, so that few of them wait for the longest.
    order = sorted(range(len(tasks)), key=lambda i: (_key(tasks[i]), -len(plans[i].steps), plans[i].widest))
    for _, alike in groupby(order, key=lambda i: _key(tasks[i])):
        for part in _parts(list(alike), tasks[order[0]]):
            found = _train([tasks[i] for i in part], [plans[i] for i in part])
            results.update(zip(part, found, strict=True))
    return [results[i] for i in range(len(tasks))]


@dataclass(frozen=True)
class _Plan:
    """The mini-batches of all epochs of a client, and how many there are in an epoch."""

    steps: list[Tensor]
    in_epoch: int

    @classmethod
    def of(cls, task: Task) -> _Plan:
        options = task.options
        epochs = [
            list(mini_batches(len(task.y), options.batch_size, task.generator)) for _ in range(options.local_epochs)
        ]
        return cls([batch for epoch in epochs for batch in epoch], len(epochs[0]))

    @property
    def widest(self) -> int:
        return max(len(step) for step in self.steps)


def _key(task: Task) -> tuple[str, ...]:
    """Tasks that train the same parameters can go together."""
    return () if task.trained is None else ("", *sorted(task.trained))


def _parts(alike: list[int], task: Task) -> Iterator[list[int]]:
    at_once = len(alike)
    if task.x.device.type == "cpu":
        at_once = max(1, min(at_once, CPU_BYTES // (4 * max(1, task.layout.dim))))
    for start in range(0, len(alike), at_once):
        yield alike[start : start + at_once]


def _train(tasks: Sequence[Task], plans: Sequence[_Plan]) -> list[Trained | BouquetError]:
    """Train models whose plans have ever fewer steps."""
    first, device = tasks[0], tasks[0].x.device
    optimiser = _Optimiser(tasks)
    offsets = np.cumsum([0, *(len(task.y) for task in tasks[:-1])])
    x, y = torch.cat([task.x for task in tasks]), torch.cat([task.y for task in tasks])
    losses = []  # of each step, those of the models that take it
    for step in range(len(plans[0].steps)):
        batches = [plan.steps[step] for plan in plans if len(plan.steps) > step]
        count, width = len(batches), max(len(batch) for batch in batches)
        chosen, shares = torch.zeros(count, width, dtype=torch.int64), torch.zeros(count, width)
        for row, batch in enumerate(batches):
            chosen[row, : len(batch)] = batch + offsets[row]
            shares[row, : len(batch)] = 1 / len(batch)
        flat = chosen.flatten().to(device)
        parameters = optimiser.leaves(count)
        logits = _outputs(first.model, parameters, x[flat].unflatten(0, (count, width)))
        each = F.cross_entropy(logits.flatten(0, 1), y[flat], reduction="none").view(count, width)
        loss = (each * shares.to(device)).sum(dim=1)
        optimiser.step(torch.autograd.grad(loss.sum(), [parameters[name] for name in optimiser.names]))
        losses.append(loss.detach())
    measured = [step.tolist() for step in losses]
    models = optimiser.models()
    results: list[Trained | BouquetError] = []
    for row, (task, plan) in enumerate(zip(tasks, plans, strict=True)):
        totals = [measured[step][row] * len(batch) for step, batch in enumerate(plan.steps)]
        epochs = [sum(totals[i : i + plan.in_epoch]) / len(task.y) for i in range(0, len(totals), plan.in_epoch)]
        try:
            for mean in epochs:
                check_finite(mean, task.options)
            results.append((models[row], epochs[-1]))
        except BouquetError as error:
            results.append(error)
    return results


def _outputs(model: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    """Logits (n, samples, classes) of n models, whose parameters are stacked, each on its own samples."""

    def one(own: dict[str, Tensor], batch: Tensor) -> Tensor:
        outputs: Tensor = torch.func.functional_call(model, own, (batch,))
        return outputs

    found: Tensor = torch.vmap(one)(parameters, x)
    return found


class _Optimiser:
    """SGD of stacked parameters as `client.local_sgd.sgd_step` takes it, with options and terms of each model's own."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.layout, device = tasks[0].layout, tasks[0].x.device
        trained = tasks[0].trained
        starts = [task.layout.unflatten(task.start) for task in tasks]
        self.values = {
            spec.name: torch.as_tensor(np.stack([start[spec.name] for start in starts])).to(device)
            for spec in self.layout.tensors
        }
        self.names = [name for name in self.values if trained is None or name in trained]
        self.momentum = [torch.zeros_like(self.values[name]) for name in self.names]
        self._terms = [_Pull.of([task.terms for task in tasks], name, self.values[name]) for name in self.names]

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, device=device)

        options = [task.options for task in tasks]
        self._rates = column([o.learning_rate for o in options])
        self._momenta = column([o.momentum for o in options])
        self._decays = column([o.weight_decay for o in options]) if any(o.weight_decay for o in options) else None
        limits = [o.max_gradient_norm for o in options]
        no_limit = float("inf")
        self._limits = column([no_limit if m is None else m for m in limits]) if any(limits) else None

    def leaves(self, count: int) -> dict[str, Tensor]:
        """The first ``count`` models' parameters; those that are trained take gradients."""
        leaves = {name: value[:count].detach() for name, value in self.values.items()}
        for name in self.names:
            leaves[name].requires_grad_()
        return leaves

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """One step of the models that have gradients, the first ones."""
        count = len(gradients[0])
        found = []
        for name, gradient, pull in zip(self.names, gradients, self._terms, strict=True):
            found.append(gradient if pull is None else pull.add(gradient, self.values[name]))
        shares = None
        if self._limits is not None:
            norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in found])
            norm = torch.linalg.vector_norm(norms, dim=0)
            shares = (self._limits[:count] / (norm + 1e-6)).clamp(max=1.0)  # as clip_grad_norm_ does
        for name, gradient, buffer in zip(self.names, found, self.momentum, strict=True):
            value, moved = self.values[name][:count], buffer[:count]
            moved.mul_(_like(self._momenta[:count], moved))
            if shares is None:
                moved.add_(gradient)
            else:
                moved.addcmul_(gradient, _like(shares, gradient))
            if self._decays is not None:
                moved.addcmul_(value, _like(self._decays[:count], value))
            value.addcmul_(moved, _like(self._rates[:count], moved), value=-1)

    def models(self) -> list[Vector]:
        """Each model (d,)."""
        arrays = {name: value.cpu().numpy() for name, value in self.values.items()}
        count = len(next(iter(arrays.values())))
        return [self.layout.flatten({name: array[row] for name, array in arrays.items()}) for row in range(count)]


@dataclass(frozen=True)
class _Pull:
    """The gradient of the models' terms in one parameter, w ↦ weights · w + offsets, all linear in it."""

    weights: Tensor  # (n,)
    offsets: Tensor

    @classmethod
    def of(cls, terms: Sequence[Sequence[Any]], name: str, value: Tensor) -> _Pull | None:
        """None where no model has a term in this parameter."""
        weights, offsets, found = torch.zeros(len(terms), device=value.device), torch.zeros_like(value), False
        for row, own in enumerate(terms):
            for term in own:
                if isinstance(term, ProximalTerm) and name in term.anchor:
                    weights[row] += term.weight
                    offsets[row] -= term.weight * term.anchor[name]
                    found = True
                elif isinstance(term, LinearTerm) and name in term.direction:
                    offsets[row] += term.direction[name]
                    found = True
        return cls(weights, offsets) if found else None

    def add(self, gradient: Tensor, values: Tensor) -> Tensor:
        """The gradient with the terms' own."""
        count = len(gradient)
        return gradient + self.offsets[:count] + _like(self.weights[:count], gradient) * values[:count]


def _like(column: Tensor, tensor: Tensor) -> Tensor:
    """A number a model (n,) in the shape that multiplies a stacked parameter."""
    return column.view(-1, *[1] * (tensor.ndim - 1))
