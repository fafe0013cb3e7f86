"""A split trial (DC-PFL, section III-C): two group models are trained, and only the better structure's goes up.

It takes two messages. The first brings the models of the old and of the new structure; both are trained and kept, and
their losses go up. The second says which structure won; its model becomes the device's own and goes up.
"""

from __future__ import annotations

from flwr.app import Message

from client import local_sgd
from client.procedures import layerwise
from client.session import Session
from client.state import PERSONAL
from common import protocol
from common.errors import BouquetError
from common.layout import Vector
from common.trial import LOSS_NEW, LOSS_OLD, NEW, TAKE, WHOLE_ROUND

_METRICS = {PERSONAL: "metrics-old", NEW: "metrics-new"}  # facts: what the second reply reports, by slot

evaluate = layerwise.evaluate


def train(session: Session) -> Message:
    """Answer a train message: the first one, or the second."""
    return _take(session) if TAKE in session.received.config else _try_both(session)


def _try_both(session: Session) -> Message:
    """Train the models of both structures and keep them; report the loss of each afterwards.

    It is that on the training data, as in the paper, or on what the instruction has held out of them.
    """
    session.report_start(session.whole(protocol.ARRAYS))
    started = dict(session.metrics)
    old, loss_old, metrics_old = _trained(session, session.whole(protocol.ARRAYS))
    new, loss_new, metrics_new = _trained(session, session.whole(NEW))
    session.keep(
        old,
        slots={NEW: session.layout.unflatten(new)},
        facts={
            WHOLE_ROUND: session.received.round,
            _METRICS[PERSONAL]: started | metrics_old,
            _METRICS[NEW]: started | metrics_new,
        },
    )
    session.metrics = started | {LOSS_OLD: loss_old, LOSS_NEW: loss_new}
    return session.reply()


def _trained(session: Session, model: Vector) -> tuple[Vector, float, dict[str, float]]:
    """A model after local training, the loss it is judged by, and the metrics to report if it is taken."""
    session.metrics = {}
    trained, loss = session.train(model)
    session.report_trained(trained, loss)
    return trained, local_sgd.mean_loss(session.load(trained), *session.judging_data), session.metrics


def _take(session: Session) -> Message:
    """Make the chosen structure's model the device's own and send it; nothing is trained or tested again."""
    kept = session.node.state.recall(session.run, session.received.round + 1)
    if kept is None or kept.round != session.received.round or NEW not in kept.slots:
        raise BouquetError(
            f"This device no longer has the models that it trained for the trial of round {session.received.round}."
        )
    slot = NEW if session.received.config[TAKE] else PERSONAL
    taken = session.layout.flatten(kept.slots[slot])
    session.metrics |= kept.facts[_METRICS[slot]]
    session.keep(taken, facts={WHOLE_ROUND: session.received.round})
    return session.reply(taken)
