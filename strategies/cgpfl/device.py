"""CGPFL's device: its personal model follows its data, held near a context; the context follows the personal model.

Tang, Guo, Guo: Personalized Federated Learning with Contextualized Generalization. IJCAI 2022, Algorithm 1.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Message

from bouquet.client.procedures import config, standard
from bouquet.client.rounds.session import Session
from bouquet.client.training.objective import ProximalTerm
from bouquet.client.training.sgd import sgd_options
from bouquet.common.protocol import ARRAYS, Payload, ProtocolError
from bouquet.strategies.cgpfl import CONTEXT_STEP, PERSONAL_STEPS

evaluate = standard.evaluate


def train(session: Session) -> Message:
    """Answer a train message: test the personal model θ, descend the envelope, keep θ, send the context ω.

    For each mini-batch some gradient steps on its loss + (λ/2)·‖θ − ω‖², then ω ← ω − η λ (ω − θ).
    """
    context = session.whole(ARRAYS)
    steps, share = config.count(session.received, PERSONAL_STEPS), config.number(session.received, CONTEXT_STEP)
    if not 0 < share <= 1:
        raise ProtocolError(f"{CONTEXT_STEP} is {share}; it must be above 0, at most 1.")
    personal = session.start()
    session.report_start(personal)
    options = sgd_options(session.received.config, session.node.settings.train)
    weight = sum(term.weight for term in session.received.proximal)
    x, y = session.train_data
    loss = float("nan")
    for epoch in range(options.local_epochs):
        losses = []
        for number, batch in enumerate(session.batches(len(y), options.batch_size, f"epoch-{epoch}")):
            term = ProximalTerm(session.tensors(Payload(context)), weight)
            personal, batch_loss = session.train(
                personal,
                [term],
                data=(x[batch], y[batch]),
                stream=f"epoch-{epoch}-{number}",
                local_epochs=steps,
                batch_size=len(batch),
            )
            context = (context - np.float32(share) * (context - personal)).astype(np.float32)
            losses.append(batch_loss * len(batch))
        loss = sum(losses) / len(y)
    session.report_trained(personal, loss)
    session.keep(personal)
    return session.reply(context, from_received=True)
