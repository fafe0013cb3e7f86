"""DC-PFL on a device: rounds in which slow layers stay here (section IV), and split trials (section III-C).

**Layers.** Layers that are not in the message are the device's own, from the round before. They count only if they
descend from the whole model that the server believes the device was last sent; a device that was restored from a
backup, or lost its state, says so, and neither trains nor keeps anything until it is sent the whole model.

**A trial** takes two messages. The first brings the models of the old and of the new structure; both are trained and
kept, and their losses go up; of a model that diverges, that it did. The second says which structure won; its model
becomes the device's own and goes up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Message

from bouquet.client.rounds.session import Session
from bouquet.client.rounds.start_model import compose
from bouquet.client.state.device_state import PERSONAL, Kept
from bouquet.common import protocol
from bouquet.common.errors import BouquetError, NotNow
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import Received
from bouquet.strategies.dcpfl import DIVERGED, LOSS_NEW, LOSS_OLD, NEW, TAKE, WHOLE_ROUND

TRIED = "tried"  # a fact: the slots whose models a trial has trained; one that diverged is not among them
_METRICS = {PERSONAL: "metrics-old", NEW: "metrics-new"}  # facts: what the second reply reports, by slot


def chooses(received: Received) -> bool:
    """In a trial: whether its models diverge on the data decides what goes up."""
    return TAKE in received.config or NEW in received.models


def train(session: Session) -> Message:
    """Answer a train message: of a trial the first one or the second, or that of a round without one."""
    if TAKE in session.received.config:
        return _take(session)
    return _try_both(session) if NEW in session.received.models else _layer_wise(session)


def evaluate(session: Session) -> Message:
    """Answer an evaluate message: test the model that the device would use; without its own layers it has none."""
    kept = session.recall()
    if _has_lost(session, kept):
        raise BouquetError(
            "This device no longer has the layers that stay on it between full rounds, so it has no model to test; "
            "it will be sent the whole model in the next round of training."
        )
    return session.reply_evaluation(compose(session.received, kept, session.initial, session.layout)[0])


# --- layers ----------------------------------------------------------------------------------------------------------


def _layer_wise(session: Session) -> Message:
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


# --- a trial ---------------------------------------------------------------------------------------------------------


def _try_both(session: Session) -> Message:
    """Train the models of both structures and keep them; report the loss of each afterwards.

    It is that on the training data, as in the paper, or on what the instruction has held out of them. Raises
    `BouquetError` when both models diverge, which says nothing about the structures.
    """
    session.report_start(session.whole(protocol.ARRAYS))
    started = dict(session.metrics)
    sent = {PERSONAL: session.whole(protocol.ARRAYS), NEW: session.whole(NEW)}
    trained: dict[str, tuple[Vector, float, dict[str, float]]] = {}
    reasons: list[BouquetError] = []
    for slot, model in sent.items():
        try:
            trained[slot] = _trained(session, model)
        except NotNow:  # its owner ends the work: that says nothing of the structure
            raise
        except BouquetError as error:
            reasons.append(error)
    if not trained:
        raise reasons[0]
    session.keep(
        # Of an old structure that diverges, the device keeps what it was sent.
        trained[PERSONAL][0] if PERSONAL in trained else sent[PERSONAL],
        slots={NEW: session.layout.unflatten(trained[NEW][0])} if NEW in trained else None,
        facts={
            WHOLE_ROUND: session.received.round,
            TRIED: sorted(trained),
            **{_METRICS[slot]: started | metrics for slot, (_, _, metrics) in trained.items()},
        },
    )
    old, new = (trained[slot][1] if slot in trained else DIVERGED for slot in (PERSONAL, NEW))
    session.metrics = started | {LOSS_OLD: old, LOSS_NEW: new}
    return session.reply()


def _trained(session: Session, model: Vector) -> tuple[Vector, float, dict[str, float]]:
    """A model after local training, the loss it is judged by, and the metrics to report if it is taken.

    Raises `BouquetError` when it diverges, in training or by its last step.
    """
    session.metrics = {}
    trained, loss = session.train(model)
    if not np.isfinite(trained).all():
        raise BouquetError("Local training diverged: the trained model holds values that are not finite.")
    session.report_trained(trained, loss)
    return trained, session.mean_loss(trained), session.metrics


def _take(session: Session) -> Message:
    """Make the chosen structure's model the device's own and send it; nothing is trained or tested again."""
    kept = session.node.state.recall(session.run, session.received.round + 1)
    if kept is None or kept.round != session.received.round or TRIED not in kept.facts:
        raise BouquetError(
            f"This device no longer has the models that it trained for the trial of round {session.received.round}."
        )
    slot = NEW if session.received.config[TAKE] else PERSONAL
    if slot not in kept.facts[TRIED]:
        raise BouquetError(f"The model that won the trial of round {session.received.round} diverged on this device.")
    taken = session.layout.flatten(kept.slots[slot])
    session.metrics |= kept.facts[_METRICS[slot]]
    session.keep(taken, facts={WHOLE_ROUND: session.received.round})
    return session.reply(taken, base=NEW if slot == NEW else protocol.ARRAYS)
