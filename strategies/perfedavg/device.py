"""Per-FedAvg's device: meta-gradient steps on the received model; tested after a step of adaptation.

Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach. NeurIPS 2020, Algorithm 1 and section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.app import Message
from torch import Tensor

from bouquet.client.procedures import config
from bouquet.client.rounds.session import Session
from bouquet.client.training import sgd
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import ARRAYS
from bouquet.strategies.perfedavg import ADAPTATION_RATE, ADAPTATION_STEPS

Parameters = Sequence[Tensor]
GradientAt = Callable[[Parameters, int], Parameters]

_BATCHES = ("adapt", "")  # streams of the mini-batches D and D'


def train(session: Session) -> Message:
    """Answer a train message: test the received model adapted, take meta-steps, keep the result adapted, send it."""
    received = session.whole(ARRAYS)
    session.report_start(adapt(session, received))
    trained, loss = _meta_train(session, received)
    own = adapt(session, trained)
    session.report_trained(own, loss)
    session.keep(own)
    return session.reply(trained)


def evaluate(session: Session) -> Message:
    """Answer an evaluate message: test the received model adapted."""
    return session.reply_evaluation(adapt(session, session.whole(ARRAYS)))


def adapt(session: Session, model: Vector) -> Vector:
    """w − α ∇f(w) on all training data, once or more."""
    rate = np.float32(config.number(session.received, ADAPTATION_RATE))
    for _ in range(config.count(session.received, ADAPTATION_STEPS)):
        model = model - rate * session.gradient(model, stream="adapt")
    return model


def meta_gradient(gradient: GradientAt, w: Parameters, rate: float) -> Parameters:
    """The gradient of f(w − α ∇f(w)) with respect to w, to first order: ∇f(w̃, D') with w̃ = w − α ∇f(w, D).

    ``gradient(v, k)`` is ∇f(v) on the mini-batch D (k = 0) or D' (1); ``rate`` is α.
    """
    return gradient([p - rate * g for p, g in zip(w, gradient(w, 0), strict=True)], 1)


def _meta_train(session: Session, start: Vector) -> tuple[Vector, float]:
    """As many meta-steps as local training has steps: w ← w − β · meta-gradient, and the last epoch's mean f(w̃, D')."""
    received, options = session.received, session.options()
    rate = config.number(received, ADAPTATION_RATE)
    model = session.load(start)
    samples = session.train_data[1]
    parameters = list(model.parameters())
    trainable = [p for p in parameters if p.requires_grad]
    generators = [session.generator(stream) for stream in _BATCHES]
    momentum, mean = sgd.no_momentum(parameters), float("nan")
    for epoch in range(options.local_epochs):
        total = 0.0
        shuffled = [sgd.mini_batches(len(samples), options.batch_size, generator) for generator in generators]
        for step, batches in enumerate(zip(*shuffled, strict=True)):
            gradient = _Gradient(session, trainable, batches, f"{epoch}/{step}")
            w = [p.detach().clone() for p in trainable]
            direction = meta_gradient(gradient, w, rate)
            _put(trainable, w)
            for parameter, along in zip(trainable, direction, strict=True):
                parameter.grad = along
            sgd.sgd_step(parameters, momentum, options)
            total += gradient.losses[1] * len(batches[1])
        mean = total / len(samples)
        sgd.check_finite(mean, options)
    return session.built.vector(), mean


@dataclass
class _Gradient:
    """∇f at some parameters on the mini-batches of one meta-step; ``losses`` are those it met, by mini-batch."""

    session: Session
    trainable: Parameters
    batches: tuple[Tensor, ...]
    place: str  # of the step among all of the round
    losses: dict[int, float] = field(default_factory=dict)

    def __call__(self, values: Parameters, k: int) -> Parameters:
        x, y = self.session.train_data
        _put(self.trainable, values)
        with self.session.seeded(f"{self.place}/{k}"):
            batch, loss_of = self.batches[k], self.session.loss_of
            gradients = sgd.loss_and_gradients(self.session.model, x[batch], y[batch], loss_of)
        self.losses[k] = gradients[0]
        return list(gradients[1].values())


@torch.no_grad()
def _put(parameters: Parameters, values: Parameters) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)
