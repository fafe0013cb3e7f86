"""Ditto's device: it trains the global model for the others, and its personal model, held near it, for itself.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021, Algorithm 1.
"""

from __future__ import annotations

from flwr.app import Message

from bouquet.client.procedures import standard
from bouquet.client.rounds.session import Session
from bouquet.common.protocol import ARRAYS

evaluate = standard.evaluate


def train(session: Session) -> Message:
    """Answer a train message: test the personal model, train both, keep the personal one, send the global one."""
    received = session.whole(ARRAYS)
    personal = session.start()
    session.report_start(personal)
    shared, _ = session.train(received)
    personal, loss = session.train(personal, session.proximal_terms())
    session.report_trained(personal, loss)
    session.keep(personal)
    return session.reply(shared, from_received=True)
