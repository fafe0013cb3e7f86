"""Local SGD of many models at once: their parameters stacked, each step one batched step (a simulation's clients).

Each model takes the steps of `client.local_sgd.train` on the same mini-batches, which its own generator draws; the
results differ by the order of the sums alone. `torch.vmap` over `torch.func.functional_call` turns n products of a
layer into one batched product: most of a small model's step on a CPU is the overhead of its many operations, and a GPU
needs large ones. A model that holds more than parameters (batch normalisation), draws random numbers (dropout) or is
not made of PyTorch's own modules is not trained so: `why_not`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
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

from client.local_sgd import check_finite, mini_batches
from client.objective import LinearTerm, ProximalTerm
from client.together import Task, Trained
from common.errors import BouquetError

# Bytes of parameters that are trained together on a CPU: more of them no longer fit into its cache.
CPU_BYTES = 2**22
_PYTORCH = ("torch", "torchvision")
Outputs = Callable[[dict[str, Tensor], Tensor], Tensor]


def why_not(task: Task) -> str:
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


def knows_terms(task: Task) -> bool:
    """Whether the terms of a task's objective are known by their gradient: else that task is trained by itself."""
    return all(isinstance(term, ProximalTerm | LinearTerm) for term in task.terms)


def train_many(tasks: Sequence[Task], threads: int = 1) -> list[Trained | BouquetError]:
    """Train each task's model; for one whose loss is no longer finite the error that `client.local_sgd` raises.

    All tasks are of one architecture, for which `why_not` found nothing, with terms that `knows_terms` knows. On a CPU
    they are divided into parts, which ``threads`` threads train.
    """
    results: dict[int, Trained | BouquetError] = {}
    plans = [_Plan.of(task) for task in tasks]
    # Clients with as many steps go together, so that few of them wait for the longest.
    order = sorted(range(len(tasks)), key=lambda i: (_key(tasks[i]), -len(plans[i].sizes), plans[i].batches.shape[1]))
    alike = (list(group) for _, group in groupby(order, key=lambda i: _key(tasks[i])))
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
    def of(cls, task: Task) -> _Plan:
        options, epochs = task.options, range(task.options.local_epochs)
        batches = [b for _ in epochs for b in mini_batches(len(task.y), options.batch_size, task.generator)]
        return cls(pad_sequence(batches, batch_first=True), [len(b) for b in batches], len(batches) // len(epochs))


def _key(task: Task) -> tuple[Any, ...]:
    """Tasks that train the same parameters in the same way can go together."""
    options = replace(task.options, local_epochs=1, max_gradient_norm=task.options.max_gradient_norm or 0.0)
    return (() if task.trained is None else tuple(sorted(task.trained)), task.trained is None, *astuple(options))


def _parts(alike: list[int], task: Task, threads: int) -> Iterator[list[int]]:
    at_once = len(alike)
    if task.x.device.type == "cpu":
        at_once = max(1, min(-(-at_once // threads), CPU_BYTES // (4 * max(1, task.layout.dim))))
    for start in range(0, len(alike), at_once):
        yield alike[start : start + at_once]


def _train(tasks: Sequence[Task], plans: Sequence[_Plan]) -> list[Trained | BouquetError]:
    """Train models of which the later ones take no more steps than those before them."""
    # A copy of its own: tasks may share a model, and `torch.func.functional_call` exchanges its parameters meanwhile.
    model, device = copy.deepcopy(tasks[0].model).train(), tasks[0].x.device
    optimiser, outputs = _Optimiser(tasks), _layers_of(model) or partial(_outputs, model)
    x, y = torch.cat([task.x for task in tasks]), torch.cat([task.y for task in tasks])
    chosen, shares = (tensor.to(device) for tensor in _schedule(tasks, plans))
    losses = []  # of each step, those of the models that take it
    for step in range(len(plans[0].sizes)):
        sizes = [plan.sizes[step] for plan in plans if len(plan.sizes) > step]
        count, width = len(sizes), max(sizes)
        samples = chosen[step, :count, :width].flatten()
        parameters = optimiser.leaves(count)
        logits = outputs(parameters, x.index_select(0, samples).unflatten(0, (count, width)))
        each = F.cross_entropy(logits.flatten(0, 1), y[samples], reduction="none").view(count, width)
        loss = (each * shares[step, :count, :width]).sum(dim=1)
        optimiser.step(torch.autograd.grad(loss.sum(), [parameters[name] for name in optimiser.names]))
        losses.append(loss.detach())
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


def _schedule(tasks: Sequence[Task], plans: Sequence[_Plan]) -> tuple[Tensor, Tensor]:
    """Which samples, of all tasks' put together, each model takes in each step, and by which share each counts.

    Both (steps, n, samples), with shares of 0 where a model has a smaller mini-batch than others.
    """
    shape = (len(plans[0].sizes), len(plans), max(plan.batches.shape[1] for plan in plans))
    chosen, shares = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape)
    first = 0
    for row, (task, plan) in enumerate(zip(tasks, plans, strict=True)):
        steps, width = plan.batches.shape
        sizes = torch.tensor(plan.sizes)[:, None]
        chosen[:steps, row, :width] = plan.batches + first
        shares[:steps, row, :width] = (torch.arange(width) < sizes) / sizes
        first += len(task.y)
    return chosen, shares


def _layers_of(model: nn.Module) -> Outputs | None:
    """`_outputs` of a model that is a sequence of flattening, linear layers and ReLU; None for any other.

    What `torch.vmap` adds to each of its steps takes as long as a small layer's product. Hooks of the whole model
    (bytes are standardised in one) run as they would; a layer with one of its own is left to `_outputs`.
    """
    if type(model) is not nn.Sequential or not all(_is_plain(layer) for layer in model):
        return None
    named = [(name, type(layer)) for name, layer in model.named_children()]

    def outputs(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        for hook in model._forward_pre_hooks.values():
            changed = hook(model, (x,))
            x = x if changed is None else changed[0]
        for name, kind in named:
            x = _STACKED[kind](parameters, name, x)
        return x

    return outputs


def _is_plain(layer: nn.Module) -> bool:
    flattens_all = type(layer) is not nn.Flatten or (layer.start_dim, layer.end_dim) == (1, -1)
    return type(layer) in _STACKED and flattens_all and not layer._forward_hooks and not layer._forward_pre_hooks


def _linear(parameters: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    weight, bias = parameters[f"{name}.weight"].transpose(1, 2), parameters.get(f"{name}.bias")
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias[:, None], x, weight)


# How the layers of n models, whose parameters are stacked, act on samples (n, samples, …).
_STACKED: dict[type[nn.Module], Callable[[dict[str, Tensor], str, Tensor], Tensor]] = {
    nn.Flatten: lambda _parameters, _name, x: x.flatten(2),
    nn.Linear: _linear,
    nn.ReLU: lambda _parameters, _name, x: x.relu(),
}


def _outputs(model: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    """Logits (n, samples, classes) of n models, whose parameters are stacked, each on its own samples."""

    def one(own: dict[str, Tensor], batch: Tensor) -> Tensor:
        outputs: Tensor = torch.func.functional_call(model, own, (batch,))
        return outputs

    found: Tensor = torch.vmap(one)(parameters, x)
    return found


class _Optimiser:
    """SGD of stacked parameters as `client.local_sgd.sgd_step` takes it; tasks have options in common, not terms."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.options = tasks[0].options
        trained, device = tasks[0].trained, tasks[0].x.device
        starts = [task.layout.unflatten(task.start) for task in tasks]
        self.values = {
            spec.name: torch.as_tensor(np.stack([start[spec.name] for start in starts])).to(device)
            for spec in tasks[0].layout.tensors
        }
        self.names = [name for name in self.values if trained is None or name in trained]
        self._momentum: dict[str, Tensor] = {}
        self._laid_out = False
        terms = [task.terms for task in tasks]
        self._pulls = {name: _Pull.of(terms, name, self.values[name]) for name in self.names}

    def leaves(self, count: int) -> dict[str, Tensor]:
        """The first ``count`` models' parameters; those that are trained take gradients."""
        leaves = {name: value[:count].detach() for name, value in self.values.items()}
        for name in self.names:
            leaves[name].requires_grad_()
        return leaves

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """One step of the models that have gradients, the first ones; the gradients are overwritten."""
        options, count = self.options, len(gradients[0])
        found = dict(zip(self.names, gradients, strict=True))
        if not self._laid_out:
            self._lay_out_like(found)
        for name, gradient in found.items():
            if (pull := self._pulls[name]) is not None:
                pull.add_to(gradient, self.values[name])
        shares = None if options.max_gradient_norm is None else _shares(list(found.values()), options.max_gradient_norm)
        for name, gradient in found.items():
            value = self.values[name][:count]
            if options.weight_decay or options.momentum:
                # In one pass with the step where there is neither: most of a step's time goes into reading and writing.
                gradient = gradient if shares is None else gradient.mul_(_like(shares, gradient))
                self._step_with_memory(name, value, gradient)
            elif shares is None:
                value.sub_(gradient, alpha=options.learning_rate)
            else:
                value.addcmul_(gradient, _like(shares, gradient), value=-options.learning_rate)

    def _step_with_memory(self, name: str, value: Tensor, gradient: Tensor) -> None:
        options = self.options
        if options.weight_decay:
            gradient.add_(value, alpha=options.weight_decay)
        if options.momentum and name in self._momentum:
            moved = self._momentum[name][: len(gradient)]
            gradient = torch.add(gradient, moved, alpha=options.momentum, out=moved)
        elif options.momentum:
            self._momentum[name] = gradient
        value.sub_(gradient, alpha=options.learning_rate)

    def _lay_out_like(self, gradients: Mapping[str, Tensor]) -> None:
        """Parameters in the order in memory that their gradients have: a step is then a pass from front to back."""
        for name, gradient in gradients.items():
            self.values[name] = torch.empty_like(gradient).copy_(self.values[name])
        self._laid_out = True

    def models(self) -> list[dict[str, NDArray[Any]]]:
        """Each model's tensors by name."""
        arrays = {name: value.cpu().numpy() for name, value in self.values.items()}
        count = len(next(iter(arrays.values())))
        return [{name: array[row] for name, array in arrays.items()} for row in range(count)]


def _shares(gradients: Sequence[Tensor], limit: float) -> Tensor:
    """What is left (n,) of each model's gradient at a norm of at most ``limit``, as `clip_grad_norm_` has it."""
    norms = [torch.linalg.vector_norm(g, dim=tuple(range(1, g.ndim))) for g in gradients]
    return (limit / (torch.linalg.vector_norm(torch.stack(norms), dim=0) + 1e-6)).clamp(max=1.0)


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

    def add_to(self, gradient: Tensor, values: Tensor) -> None:
        """Add the terms' own gradient."""
        count = len(gradient)
        gradient.add_(self.offsets[:count]).add_(_like(self.weights[:count], gradient) * values[:count])


def _like(column: Tensor, tensor: Tensor) -> Tensor:
    """A number a model (n,) in the shape that multiplies a stacked parameter."""
    return column.view(-1, *[1] * (tensor.ndim - 1))
