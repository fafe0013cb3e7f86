"""The standard round of a device that replies with its model's p numbers and keeps the model to itself (FedAC).

The map from model to numbers is as large as p models. It is sent once, and kept beside the rounds' files, not in them.
"""

from __future__ import annotations

from flwr.app import Message

from bouquet.client.procedures import standard
from bouquet.client.rounds.session import Session
from bouquet.common import protocol
from bouquet.strategies.fedac.wire import NUMBERS, LowRankMap, read_question

evaluate = standard.evaluate

_MAP = "low-rank-map"


def train(session: Session) -> Message:
    """Answer a train message. A device that does not have the map says that its state is lost, and gives no numbers."""
    version, low_rank = read_question(session.received)
    state = session.node.state
    if low_rank is not None:
        state.keep_aside(session.run, _MAP, version, low_rank._asdict())
    elif (kept := state.recall_aside(session.run, _MAP, version)) is not None:
        low_rank = LowRankMap(**kept)
    trained = standard.local_round(session)
    if low_rank is None:
        session.metrics[protocol.STATE_LOST] = 1
        return session.reply()
    return session.reply(config={NUMBERS: low_rank.reduce(session.release(trained)[None, :])[0].tolist()})
