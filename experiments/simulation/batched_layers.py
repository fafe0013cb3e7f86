"""The gradients of many models at once that are sequences of linear layers and ReLU, written out.

Of a mini-batch of B samples a linear layer's gradient is a product δᵀa, whose factors have B rows. It need not be made:
its norm is that of two B × B products, and `torch.baddbmm` adds it to where it belongs in one pass. Automatic
differentiation would write it, as large as the layer, and read it several times. All models have a row in each tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


class Gradient(Protocol):
    """The gradients of a parameter that n models have stacked, (n, …)."""

    def whole(self) -> Tensor:
        """Themselves."""

    def squares(self) -> Tensor:
        """The squared norm (n,) of each."""

    def add_to(self, target: Tensor, keep: float, by: float, shares: Tensor | None) -> None:
        """target ← keep · target + by · shares · gradients, for one number (n,) a model; None: all 1."""


@dataclass(frozen=True)
class Whole:
    """Gradients (n, …) as they are."""

    values: Tensor

    def whole(self) -> Tensor:
        """See `Gradient`."""
        return self.values

    def squares(self) -> Tensor:
        """See `Gradient`."""
        return torch.linalg.vector_norm(self.values, dim=tuple(range(1, self.values.ndim))).square()

    def add_to(self, target: Tensor, keep: float, by: float, shares: Tensor | None) -> None:
        """See `Gradient`; in as few passes as can be, because reading and writing is what takes time."""
        if keep != 1.0:
            target.mul_(keep)
        if shares is None:
            target.add_(self.values, alpha=by)
        else:
            target.addcmul_(self.values, like(shares, self.values), value=by)


@dataclass(frozen=True)
class Product:
    """Gradients leftᵀ · right (n, o, i) of left (n, B, o) and right (n, B, i)."""

    left: Tensor
    right: Tensor

    def whole(self) -> Tensor:
        """See `Gradient`."""
        return torch.bmm(self.left.mT, self.right)

    def squares(self) -> Tensor:
        """See `Gradient`: ‖LᵀR‖² = Σ (LLᵀ ∘ RRᵀ), which rounding can bring below 0."""
        gram = torch.bmm(self.left, self.left.mT).mul_(torch.bmm(self.right, self.right.mT))
        return gram.sum(dim=(1, 2)).clamp_(min=0.0)

    def add_to(self, target: Tensor, keep: float, by: float, shares: Tensor | None) -> None:
        """See `Gradient`."""
        left = self.left if shares is None else self.left * like(shares, self.left)
        target.baddbmm_(left.mT, self.right, beta=keep, alpha=by)


class Layers:
    """What a sequence of flattening, linear layers and ReLU does, and its gradients, of n models."""

    def __init__(self, model: nn.Sequential) -> None:
        self._hooks = list(model._forward_pre_hooks.values())
        self._model = model
        self._named = [(name, type(layer)) for name, layer in model.named_children()]
        self._first = next(place for place, (_, kind) in enumerate(self._named) if kind is nn.Linear)

    @classmethod
    def of(cls, model: nn.Module) -> Layers | None:
        """None for any other model. Hooks of the whole model (bytes are standardised in one) run as they would."""
        if type(model) is not nn.Sequential or not all(_is_plain(layer) for layer in model):
            return None
        return cls(model) if any(type(layer) is nn.Linear for layer in model) else None

    def step(
        self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor, shares: Tensor
    ) -> tuple[Tensor, dict[str, Gradient]]:
        """Loss (n,) and gradients by name of mini-batches (n, B, …), labels (n, B), each counted by its share (n, B).

        ``parameters`` are stacked (n, …).
        """
        for hook in self._hooks:
            changed = hook(self._model, (x,))
            x = x if changed is None else changed[0]
        inputs = []
        for name, kind in self._named:
            inputs.append(x)
            if kind is nn.Flatten:
                x = x.flatten(2)
            elif kind is nn.ReLU:
                x = x.relu()
            else:
                x = _linear(parameters, name, x)
        logs, labels = torch.log_softmax(x, dim=2), y[..., None]
        loss = -(logs.gather(2, labels).squeeze(2) * shares).sum(dim=1)
        delta = logs.exp_().scatter_add_(2, labels, torch.full_like(labels, -1.0, dtype=logs.dtype))
        return loss, dict(self._backwards(parameters, inputs, delta.mul_(shares[..., None])))

    def _backwards(
        self, parameters: Mapping[str, Tensor], inputs: list[Tensor], delta: Tensor
    ) -> Iterator[tuple[str, Gradient]]:
        """The gradients, from that of the outputs (n, B, classes), down to the first layer that has parameters."""
        for place in reversed(range(self._first, len(inputs))):
            name, kind = self._named[place]
            if kind is nn.ReLU:
                delta = torch.ops.aten.threshold_backward(delta, inputs[place], 0)  # in one pass, and no mask
            elif kind is nn.Linear:
                yield f"{name}.weight", Product(delta, inputs[place])
                if f"{name}.bias" in parameters:
                    yield f"{name}.bias", Whole(delta.sum(dim=1))
                if place > self._first:
                    delta = torch.bmm(delta, parameters[f"{name}.weight"])


def like(column: Tensor, tensor: Tensor) -> Tensor:
    """A number a model (n,) in the shape that multiplies a stacked parameter."""
    return column.view(-1, *[1] * (tensor.ndim - 1))


def _linear(parameters: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    weight, bias = parameters[f"{name}.weight"].mT, parameters.get(f"{name}.bias")
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias[:, None], x, weight)


def _is_plain(layer: nn.Module) -> bool:
    flattens_all = type(layer) is not nn.Flatten or (layer.start_dim, layer.end_dim) == (1, -1)
    plain = type(layer) in (nn.Flatten, nn.Linear, nn.ReLU)
    return plain and flattens_all and not layer._forward_hooks and not layer._forward_pre_hooks
