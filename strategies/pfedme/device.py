"""pFedMe's device: proximal solves for its personal model θ_i, and after each a step of its copy of the global one.

Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020, Algorithm 1.
"""

from __future__ import annotations

import torch
from flwr.app import Message
from torch import Tensor

from client.procedures import config, standard
from client.rounds.session import Session
from client.training import sgd
from client.training.objective import ProximalTerm, objective
from common.model.freezing import training_mode
from common.parameters.layout import Vector
from common.protocol import ARRAYS
from strategies.pfedme.wire import INNER_STEPS, OUTER_RATE, PROXIMAL_WEIGHT

evaluate = standard.evaluate


def train(session: Session) -> Message:
    """Answer a train message: test the personal model, train both, keep the personal one, send the other."""
    received = session.whole(ARRAYS)
    personal = session.start()
    session.report_start(personal)
    shared, personal, loss = solve(session, received)
    session.report_trained(personal, loss)
    session.keep(personal)
    return session.reply(shared, from_received=True)


def solve(session: Session, start: Vector) -> tuple[Vector, Vector, float]:
    """The local rounds: w_{i,R}, θ_i of the last of them, and the mean loss of the θ_i over the last epoch.

    A local round is a mini-batch D: K gradient steps on f(θ, D) + (λ/2)·‖θ − w‖² give θ̃, from the θ̃ of the round
    before, then w ← w − η λ (w − θ̃), a step along the gradient of the Moreau envelope. Buffers go with θ̃.
    """
    weight, rate = (config.number(session.received, key) for key in (PROXIMAL_WEIGHT, OUTER_RATE))
    steps = config.count(session.received, INNER_STEPS)
    alpha = session.options().learning_rate
    # θ ← (θ − α ∇f(θ) + α λ w) / (1 + α λ): the pull is solved exactly, so that no λ is too stiff for α.
    options = session.options(momentum=0.0, learning_rate=alpha / (1 + alpha * weight))
    model = session.load(start)
    parameters, (x, y) = list(model.parameters()), session.train_data
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    w: dict[str, Tensor] = {name: p.detach().clone() for name, p in trainable.items()}
    near_w = ProximalTerm(w, weight)
    generator, mean = session.generator(), float("nan")
    training_mode(model)
    with session.seeded():
        for _ in range(options.local_epochs):
            total = 0.0
            for batch in sgd.mini_batches(len(y), options.batch_size, generator):
                loss = torch.zeros(())
                for _ in range(steps):
                    loss = session.loss_of(model, x[batch], y[batch])
                    model.zero_grad(set_to_none=True)
                    objective(model, loss, [near_w]).backward()
                    sgd.sgd_step(parameters, sgd.no_momentum(parameters), options)
                for name, parameter in trainable.items():
                    w[name] -= rate * weight * (w[name] - parameter.detach())
                total += loss.item() * len(batch)
            mean = total / len(y)
            sgd.check_finite(mean, options)
    personal = session.built.vector()
    with torch.no_grad():
        for name, parameter in trainable.items():
            parameter.copy_(w[name])
    return session.built.vector(), personal, mean
