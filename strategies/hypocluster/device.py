"""HypCluster's device: it takes the model with the least loss on all of its training data, and trains it.

Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization with Applications to Federated Learning. 2020.
"""

from __future__ import annotations

from flwr.app import Message

from bouquet.client.procedures.choose import choose, chooses, evaluate
from bouquet.client.rounds.session import Session
from bouquet.common.protocol.names import CENTER

__all__ = ["chooses", "evaluate", "train"]


def train(session: Session) -> Message:
    """Answer a train message."""
    chosen, center = choose(session)
    session.report_start(center)
    trained, loss = session.train(center)
    session.report_trained(trained, loss)
    session.keep(trained)
    return session.reply(trained, base=f"{CENTER}{chosen}")
