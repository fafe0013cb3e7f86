"""Local SGD of many models at once: their parameters stacked, each step one batched step (a simulation's clients).

Each model takes the steps of `bouquet.client.training.sgd.train` on the same mini-batches, which its own generator
draws; the results differ by the order of the sums alone. n products of a layer become one batched product: most of a
small model's step on a CPU is the overhead of its many operations, and a GPU needs large ones. Linear layers and ReLU
are written out (`bouquet.experiments.simulation.batched_layers`); other models go through `torch.vmap` over
`torch.func.functional_call`. One that holds more than parameters (batch normalisation), draws random numbers (dropout)
or is not made of PyTorch's own modules is not trained so: `why_not`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils.rnn import pad_sequence

from bouquet.client.training.delegate import LocalTraining, Trained
from bouquet.client.training.objective import LinearTerm, ProximalTerm
from bouquet.client.training.sgd import check_finite, mini_batches
from bouquet.common.errors import BouquetError
from bouquet.experiments.simulation.batched_layers import Gradient, Layers, Whole, like

# Bytes of parameters that are trained together on a CPU: more of them no longer fit into its cache.
CPU_BYTES = 2**22
_PYTORCH = ("torch", "torchvision")
# Bytes of samples that are put together for the steps to come.
SAMPLES_BYTES = 2**22
_LEAST_SCALE = 1e-3  # from which on the scale of the momentum is put into its numbers
Gradients = Callable[[Mapping[str, Tensor], Tensor, Tensor, Tensor], tuple[Tensor, dict[str, Gradient]]]


def why_not(task: LocalTraining) -> str:
    """Why a model cannot be trained together with others like it; empty where it can."""
    model = task.model.train()
    if others := {type(m).__name__ for m in model.modules() if type(m).__module__.split(".")[0] not in _PYTORCH}:
        return f"it has modules of its own ({', '.join(sorted(others))})"
    if any(isinstance(module, _DropoutNd) and module.p > 0 for module in model.modules()):
        return "it has dropout, whose random numbers are each client's own"
    parameters = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if rest := [name for name in model.state_dict() if name not in parameters]:
        return f"{rest[0]!r} is no parameter of its own that is trained, as with batch normalisation"
    try:
        stacked = {name: torch.stack([p.detach()] * 2).requires_grad_() for name, p in model.named_parameters()}
        outputs = _outputs(model, stacked, task.x[:1].expand(2, 1, *task.x.shape[1:]))
        torch.autograd.grad(outputs.sum(), list(stacked.values()))
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return str(error).strip().partition("\n")[0]
    return ""


def knows_terms(task: LocalTraining) -> bool:
    """Whether the terms of a task's objective are known by their gradient: else that task is trained by itself."""
    return all(isinstance(term, ProximalTerm | LinearTerm) for term in task.terms)


def train_many(tasks: Sequence[LocalTraining], threads: int = 1) -> list[Trained | BouquetError]:
    """Train each task's model; for one whose loss is no longer finite the error that `client.training.sgd` raises.

    All tasks are of one architecture, for which `why_not` found nothing, with terms that `knows_terms` knows. On a CPU
    they are divided into parts, which ``threads`` threads train.
    """
    results: dict[int, Trained | BouquetError] = {}
    plans = [_Plan.of(task) for task in tasks]
    # Clients with as many steps go together, so that few of them wait for the longest.
    keys = [_key(task) for task in tasks]
    order = sorted(range(len(tasks)), key=lambda i: (keys[i], -len(plans[i].sizes), plans[i].batches.shape[1]))
    alike = (list(group) for _, group in groupby(order, key=keys.__getitem__))
    parts = [part for group in alike for part in _parts(group, tasks[group[0]], threads)]
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        found = pool.map(lambda part: _train([tasks[i] for i in part], [plans[i] for i in part]), parts)
        for part, outcomes in zip(parts, found, strict=True):
            results.update(zip(part, outcomes, strict=True))
    return [results[i] for i in range(len(tasks))]


@dataclass(frozen=True)
class _Plan:
    """A client's mini-batches of all epochs, (steps, samples) filled up with zeros, and their own sizes."""

    batches: Tensor
    sizes: list[int]
    in_epoch: int

    @classmethod
    def of(cls, task: LocalTraining) -> _Plan:
        options, epochs = task.options, range(task.options.local_epochs)
        batches = [b for _ in epochs for b in mini_batches(len(task.y), options.batch_size, task.generator)]
        sizes = [batch.shape[0] for batch in batches]  # `len` of a tensor takes many times as long
        return cls(pad_sequence(batches, batch_first=True), sizes, len(batches) // len(epochs))


def _key(task: LocalTraining) -> tuple[Any, ...]:
    """Tasks that train the same parameters in the same way can go together."""
    options = {**vars(task.options), "local_epochs": 1, "max_gradient_norm": task.options.max_gradient_norm or 0.0}
    return (() if task.trained is None else tuple(sorted(task.trained)), task.trained is None, *options.values())


def _parts(alike: list[int], task: LocalTraining, threads: int) -> Iterator[list[int]]:
    """On a CPU, parts that fit into its cache, as many for each of the threads, and of nearly one size."""
    count = 1
    if task.x.device.type == "cpu":
        most = max(1, CPU_BYTES // (4 * max(1, task.layout.dim)))
        count = threads * -(-len(alike) // (threads * most))
    at_once = -(-len(alike) // count)
    for start in range(0, len(alike), at_once):
        yield alike[start : start + at_once]


def _train(tasks: Sequence[LocalTraining], plans: Sequence[_Plan]) -> list[Trained | BouquetError]:
    """Train models of which the later ones take no more steps than those before them."""
    optimiser = _Optimiser(tasks)
    gradients = _gradients_of(tasks[0].model, optimiser.names)
    losses = []  # of each step, those of the models that take it
    for x, y, shares in _steps(tasks, plans):
        loss, found = gradients(optimiser.first(x.shape[0]), x, y, shares)
        optimiser.step(found, x.shape[0])
        losses.append(loss)
    measured = [step.tolist() for step in losses]
    results: list[Trained | BouquetError] = []
    models = optimiser.models()
    for row, (task, plan, arrays) in enumerate(zip(tasks, plans, models, strict=True)):
        totals = [measured[step][row] * size for step, size in enumerate(plan.sizes)]
        epochs = [sum(totals[i : i + plan.in_epoch]) / len(task.y) for i in range(0, len(totals), plan.in_epoch)]
        try:
            for mean in epochs:
                check_finite(mean, task.options)
            results.append((task.layout.flatten(arrays), epochs[-1]))
        except BouquetError as error:
            results.append(error)
    return results


def _steps(tasks: Sequence[LocalTraining], plans: Sequence[_Plan]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of each step, the mini-batches (m, samples, …) of the m models that take it, their labels, and samples' shares.

    A sample counts by its share: 0 where it only fills up a mini-batch that is smaller than others. The samples of
    several steps are put together at once, as many as fit into the processor's cache.
    """
    width, x = max(plan.batches.shape[1] for plan in plans), tasks[0].x
    at_once = max(1, SAMPLES_BYTES // max(1, len(tasks) * width * x[:1].nbytes))
    chosen = [F.pad(plan.batches, (0, width - plan.batches.shape[1])).to(x.device) for plan in plans]
    sizes = pad_sequence([torch.tensor(plan.sizes) for plan in plans])  # (steps, n), 0 where a model has no more
    every = ((torch.arange(width) < sizes[..., None]) / sizes[..., None].clamp(min=1)).to(x.device)
    counts, widths = (sizes > 0).sum(dim=1).tolist(), sizes.amax(dim=1).tolist()
    room = (len(tasks), at_once, width)
    samples, labels = x.new_empty((*room, *x.shape[1:])), tasks[0].y.new_empty(room)
    for step, (count, size) in enumerate(zip(counts, widths, strict=True)):
        place = step % at_once
        if not place:
            for row, task in enumerate(tasks[:count]):
                part = chosen[row][step : step + at_once]
                for whole, own in ((samples, task.x), (labels, task.y)):
                    torch.index_select(own, 0, part.flatten(), out=whole[row, : part.shape[0]].flatten(0, 1))
        yield samples[:count, place, :size], labels[:count, place, :size], every[step, :count, :size]


def _gradients_of(model: nn.Module, names: Sequence[str]) -> Gradients:
    """Loss and gradients, of the parameters of these names at least, of models of this architecture."""
    if (layers := Layers.of(model)) is not None:
        return layers.step
    # A copy of its own: tasks may share a model, and `torch.func.functional_call` exchanges its parameters meanwhile.
    return partial(_differentiated, copy.deepcopy(model).train(), names)


def _differentiated(
    model: nn.Module, names: Sequence[str], parameters: Mapping[str, Tensor], x: Tensor, y: Tensor, shares: Tensor
) -> tuple[Tensor, dict[str, Gradient]]:
    """As `bouquet.experiments.simulation.batched_layers.Layers.step`, of any model, by automatic differentiation."""
    leaves = {name: value.detach().requires_grad_(name in names) for name, value in parameters.items()}
    each = F.cross_entropy(_outputs(model, leaves, x).flatten(0, 1), y.flatten(), reduction="none")
    loss = (each.view(y.shape) * shares).sum(dim=1)
    found = torch.autograd.grad(loss.sum(), [leaves[name] for name in names])
    return loss.detach(), {name: Whole(gradient) for name, gradient in zip(names, found, strict=True)}


def _outputs(model: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    """Logits (n, samples, classes) of n models, whose parameters are stacked, each on its own samples."""

    def one(own: dict[str, Tensor], batch: Tensor) -> Tensor:
        outputs: Tensor = torch.func.functional_call(model, own, (batch,))
        return outputs

    found: Tensor = torch.vmap(one)(parameters, x)
    return found


class _Optimiser:
    """SGD of stacked parameters as `client.training.sgd.sgd_step` takes it; tasks have options in common, not terms."""

    def __init__(self, tasks: Sequence[LocalTraining]) -> None:
        self.options = tasks[0].options
        trained, device = tasks[0].trained, tasks[0].x.device
        starts = [task.layout.unflatten(task.start) for task in tasks]
        self.values = {
            spec.name: torch.as_tensor(np.stack([start[spec.name] for start in starts])).to(device)
            for spec in tasks[0].layout.tensors
        }
        self.names = [name for name in self.values if trained is None or name in trained]
        # Momentum over `_scale`: a step adds to it, and need not shrink it first, which is a pass of its own.
        self._momentum: dict[str, Tensor] = {}
        self._scale = 1.0
        terms = [task.terms for task in tasks]
        pulls = {name: _Pull.of(terms, name, self.values[name]) for name in self.names}
        self._pulls = {name: pull for name, pull in pulls.items() if pull is not None}

    def first(self, count: int) -> dict[str, Tensor]:
        """The first ``count`` models' parameters."""
        return {name: value[:count] for name, value in self.values.items()}

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Gradient], count: int) -> None:
        """One step of the first ``count`` models; the gradients may be overwritten."""
        options, found = self.options, {name: gradients[name] for name in self.names}
        if not self._momentum:
            self._begin(found)
        for name, pull in self._pulls.items():
            found[name] = Whole(pull.added_to(found[name].whole(), self.values[name]))
        shares = None if options.max_gradient_norm is None else _shares(found.values(), options.max_gradient_norm)
        rate, decay = options.learning_rate, options.weight_decay
        scale = self._shrink(options.momentum) if options.momentum else 1.0
        for name, gradient in found.items():
            value = self.values[name][:count]
            if options.momentum:
                moved = self._momentum[name][:count]
                gradient.add_to(moved, 1.0, 1.0 / scale, shares)
                if decay:
                    moved.add_(value, alpha=decay / scale)
                value.sub_(moved, alpha=rate * scale)
            else:
                gradient.add_to(value, 1.0 - rate * decay, -rate, shares)

    def _shrink(self, momentum: float) -> float:
        """Multiply all momentum by a number, and return the scale that it has now."""
        if self._scale * momentum < _LEAST_SCALE:
            for moved in self._momentum.values():
                moved.mul_(self._scale)
            self._scale = 1.0
        self._scale *= momentum
        return self._scale

    def _begin(self, gradients: Mapping[str, Gradient]) -> None:
        """Have parameters lie in memory like gradients that there are: a step is then a pass from front to back."""
        for name, gradient in gradients.items():
            if isinstance(gradient, Whole):
                self.values[name] = torch.empty_like(gradient.values).copy_(self.values[name])
            self._momentum[name] = torch.zeros_like(self.values[name])

    def models(self) -> list[dict[str, NDArray[Any]]]:
        """Each model's tensors by name."""
        arrays = {name: value.cpu().numpy() for name, value in self.values.items()}
        count = len(next(iter(arrays.values())))
        return [{name: array[row] for name, array in arrays.items()} for row in range(count)]


def _shares(gradients: Iterable[Gradient], limit: float) -> Tensor:
    """What is left (n,) of each model's gradient at a norm of at most ``limit``, as `clip_grad_norm_` has it."""
    norms = torch.stack([gradient.squares() for gradient in gradients]).sum(dim=0).sqrt_()
    return (limit / (norms + 1e-6)).clamp_(max=1.0)


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

    def added_to(self, gradient: Tensor, values: Tensor) -> Tensor:
        """The gradient with the terms' own."""
        count = gradient.shape[0]
        return gradient.add_(self.offsets[:count]).add_(like(self.weights[:count], gradient) * values[:count])
