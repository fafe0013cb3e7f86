"""FedRep's device: it trains its head with the body fixed, then the body with its head fixed, and sends the body.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning. ICML
2021, Algorithm 1.
"""

from __future__ import annotations

from flwr.app import Message

from client.procedures import config, standard
from client.rounds.session import Session
from strategies.fedrep.wire import BODY_EPOCHS, HEAD_EPOCHS

evaluate = standard.evaluate


def train(session: Session) -> Message:
    """Answer a train message. The body φ is the layers that are asked for, the head h_i the others."""
    body = session.received.upload
    head = [layer for layer in session.layout.layers if layer not in body]
    head_epochs, body_epochs = (config.count(session.received, key) for key in (HEAD_EPOCHS, BODY_EPOCHS))
    start = session.start()
    session.report_start(start)
    with_head, _ = session.train(start, layers=head, local_epochs=head_epochs, stream="head")
    trained, loss = session.train(with_head, session.proximal_terms(), layers=body, local_epochs=body_epochs)
    session.report_trained(trained, loss)
    session.keep(trained)
    return session.reply(trained)
