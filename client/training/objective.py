"""The terms of a device's objective beside the loss on its data, as pieces that add up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Term = Callable[[nn.Module], Tensor]


@dataclass(frozen=True, eq=False)
class ProximalTerm:
    """The term (weight / 2) · ‖w − anchor‖² over the parameters that the anchor holds.

    FedProx (Li et al. 2020, Eq. 2) with the anchor w_t; Eq. 7 of FeSEM with weight 2λ/m; two of them, with a center
    and a global embedding, make Eq. 3 of FedAC. Buffers are no parameters and take no part.
    """

    anchor: Mapping[str, Tensor]
    weight: float

    def __call__(self, model: nn.Module) -> Tensor:
        """The term at the model's parameters."""
        anchor = self.anchor
        distances = [(p - anchor[name]).square().sum() for name, p in model.named_parameters() if name in anchor]
        return 0.5 * self.weight * torch.stack(distances).sum()


@dataclass(frozen=True, eq=False)
class LinearTerm:
    """The term ⟨direction, w⟩ over the parameters it holds: ``direction`` is added to their gradient (FedDANE)."""

    direction: Mapping[str, Tensor]

    def __call__(self, model: nn.Module) -> Tensor:
        """The term at the model's parameters."""
        direction = self.direction
        products = [(p * direction[name]).sum() for name, p in model.named_parameters() if name in direction]
        return torch.stack(products).sum()


def objective(model: nn.Module, loss: Tensor, terms: Sequence[Term]) -> Tensor:
    """The loss plus every term."""
    total = loss
    for term in terms:
        total = total + term(model)
    return total
