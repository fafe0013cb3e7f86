"""The standard round: take the model, test it, train it, test it again, keep it, send what was asked for."""

from __future__ import annotations

from flwr.app import Message

from bouquet.client.rounds.session import Session
from bouquet.common.parameters.layout import Vector


def train(session: Session) -> Message:
    """Answer a train message."""
    return session.reply(local_round(session))


def local_round(session: Session) -> Vector:
    """All of a round but the reply: the model that the device trained and kept."""
    start = session.start()
    session.report_start(start)
    trained, loss = session.train(start, session.proximal_terms())
    session.report_trained(trained, loss)
    session.keep(trained)
    return trained


def evaluate(session: Session) -> Message:
    """Answer an evaluate message: test the model that the device would use."""
    return session.reply_evaluation(session.start())
