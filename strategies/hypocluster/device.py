"""HypCluster's device: it takes the model with the least loss on all of its training data, and trains it.

Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization with Applications to Federated Learning. 2020.
"""

from __future__ import annotations

from flwr.app import Message

from bouquet.client.rounds.session import Session
from bouquet.client.training import evaluation
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import Received
from bouquet.strategies.hypocluster.wire import CHOSEN, LOSS_GAP, center_record, offered


def chooses(received: Received) -> bool:
    """Always, by its losses."""
    return True


def train(session: Session) -> Message:
    """Answer a train message."""
    chosen, center = _choose(session)
    session.report_start(center)
    trained, loss = session.train(center)
    session.report_trained(trained, loss)
    session.keep(trained)
    session.metrics[CHOSEN] = chosen
    return session.reply(trained, base=center_record(chosen))


def evaluate(session: Session) -> Message:
    """Answer an evaluate message: the choice is by training data here too."""
    chosen, center = _choose(session)
    session.metrics[CHOSEN] = chosen
    return session.reply_evaluation(center)


def _choose(session: Session) -> tuple[int, Vector]:
    """The cluster with the least loss, of equals the first, and its model; one whose loss is not finite is not taken.

    In evaluation mode: the loss is to say how well a model fits, and dropout or the statistics of a batch would not.
    """
    centers = {k: session.whole(center_record(k)) for k in offered(session.received)}
    losses = {k: session.training_loss(center) for k, center in centers.items()}
    usable = evaluation.finite_losses(losses)
    session.metrics[LOSS_GAP] = max(usable.values()) - min(usable.values())
    chosen = min(usable, key=lambda k: usable[k])
    return chosen, centers[chosen]
