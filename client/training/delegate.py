"""Where a session's local training can be taken over, to be done together with that of other clients.

A real device trains alone. A simulation that trains many clients in one batched program
(`bouquet.experiments.simulation.batched_engine`) sets `trainer` while it answers a client's message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bouquet.client.training.objective import Term
from bouquet.client.training.sgd import SGDOptions
from bouquet.common.parameters.layout import ParameterLayout, Vector


@dataclass(frozen=True, eq=False)
class LocalTraining:
    """What local training is asked for: a model (d,), and the data, terms and randomness to train it with."""

    model: nn.Module
    layout: ParameterLayout
    start: Vector
    x: Tensor
    y: Tensor
    options: SGDOptions
    terms: Sequence[Term]
    generator: torch.Generator
    trained: Collection[str] | None = None


Trained = tuple[Vector, float]  # the model (d,), and its mean loss over the last epoch
Trainer = Callable[[LocalTraining], Trained | None]  # None: the session is to train itself

trainer: ContextVar[Trainer | None] = ContextVar("trainer", default=None)
