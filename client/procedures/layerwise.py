"""A round in which the slow layers stay on the device (DC-PFL, section IV), or all layers do (a group of one).

Layers that are not in the message are the device's own, from the round before. They count only if they descend from
the whole model that the server believes the device was last sent; a device that was restored from a backup, or lost its
state, says so, and neither trains nor keeps anything until it is sent the whole model.
"""

from __future__ import annotations

from typing import Any

from flwr.app import Message

from client.session import Session, compose
from client.state import Kept
from common import protocol
from common.errors import BouquetError
from common.trial import WHOLE_ROUND


def train(session: Session) -> Message:
    """Answer a train message."""
    kept = session.recall()
    start, _ = compose(session.received, kept, session.initial, session.layout)
    lost = _has_lost(session, kept)
    session.metrics[protocol.STATE_LOST] = int(lost)
    if lost:
        # The layers that were asked for, untrained: a reply without them would be refused, and its metric with it.
        session.metrics[protocol.NUM_EXAMPLES] = len(session.train_data[1])
        return session.reply(start)
    session.report_start(start)
    trained, loss = session.train(start, session.proximal_terms())
    session.report_trained(trained, loss)
    session.keep(trained, facts={WHOLE_ROUND: _whole_round(session, kept)})
    return session.reply(trained)


def evaluate(session: Session) -> Message:
    """Answer an evaluate message: test the model that the device would use; without its own layers it has none."""
    kept = session.node.state.recall(session.run, session.received.round + 1)
    if _has_lost(session, kept):
        raise BouquetError(
            "This device no longer has the layers that stay on it between full rounds, so it has no model to test; "
            "it will be sent the whole model in the next round of training."
        )
    return session.reply_evaluation(compose(session.received, kept, session.initial, session.layout)[0])


def _is_whole(session: Session) -> bool:
    payload = session.received.models.get(protocol.ARRAYS)
    return payload is not None and payload.layers == session.layout.layers


def _has_lost(session: Session, kept: Kept | None) -> bool:
    """Whether the message relies on layers that this device does not have."""
    if _is_whole(session):
        return False
    if kept is None:
        return True
    expected = session.received.config.get(WHOLE_ROUND)
    return expected is not None and kept.facts.get(WHOLE_ROUND) != expected


def _whole_round(session: Session, kept: Kept | None) -> Any:
    return session.received.round if _is_whole(session) or kept is None else kept.facts.get(WHOLE_ROUND)
