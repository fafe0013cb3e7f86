"""The anchored method's device: it trains its cluster's center for the others, and its own model, held near it.

Ditto's device (Li et al. 2021, Algorithm 1) with a cluster's center in the place of the global model. Each of the two
models has a proximal term of its own: FeSEM's for the center, the anchor's for the personal model.
"""

from __future__ import annotations

from flwr.app import Message

from bouquet.client.procedures import config, standard
from bouquet.client.rounds.session import Session
from bouquet.client.training.objective import ProximalTerm
from bouquet.common.protocol import ARRAYS
from bouquet.strategies.anchored import ANCHOR_WEIGHT

evaluate = standard.evaluate


def train(session: Session) -> Message:
    """Answer a train message: test the personal model, train both, keep the personal one, send the center."""
    center = session.whole(ARRAYS)
    weight = config.number(session.received, ANCHOR_WEIGHT)
    personal = session.start()
    session.report_start(personal)
    shared, _ = session.train(center, session.proximal_terms())
    anchor = ProximalTerm(session.tensors(session.received.models[ARRAYS]), weight)
    personal, loss = session.train(personal, [anchor])
    session.report_trained(personal, loss)
    session.keep(personal)
    return session.reply(shared, from_received=True)
