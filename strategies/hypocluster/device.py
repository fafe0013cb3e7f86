"""HypCluster's device: it takes the model with the least loss on all of its training data, and trains it.

Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization with Applications to Federated Learning. 2020.
"""

from __future__ import annotations

from flwr.app import Message

from bouquet.client.rounds.session import Session
from bouquet.client.training import evaluation
from bouquet.common.compression.delta import MOST_MODELS
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import ProtocolError, Received
from bouquet.strategies.hypocluster import CENTER, CHOSEN, LOSS_GAP


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
    return session.reply(trained, base=f"{CENTER}{chosen}")


def evaluate(session: Session) -> Message:
    """Answer an evaluate message: the choice is by training data here too."""
    chosen, center = _choose(session)
    session.metrics[CHOSEN] = chosen
    return session.reply_evaluation(center)


def _choose(session: Session) -> tuple[int, Vector]:
    """The cluster with the least loss, of equals the first, and its model; one whose loss is not finite is not taken.

    In evaluation mode: the loss is to say how well a model fits, and dropout or the statistics of a batch would not.
    """
    centers = {k: session.whole(f"{CENTER}{k}") for k in _offered(session.received)}
    losses = {k: session.training_loss(center) for k, center in centers.items()}
    usable = evaluation.finite_losses(losses)
    session.metrics[LOSS_GAP] = max(usable.values()) - min(usable.values())
    chosen = min(usable, key=lambda k: usable[k])
    return chosen, centers[chosen]


def _offered(received: Received) -> list[int]:
    """The clusters whose models are in the message, in order. Raises `ProtocolError` where there is none."""
    sent = [name for name in received.models if name.startswith(CENTER)]
    numbers = [k for k in range(MOST_MODELS) if f"{CENTER}{k}" in received.models]
    if not numbers or len(numbers) < len(sent):
        raise ProtocolError(
            f"The server asks this device to choose a cluster and sent no models of clusters, but "
            f"{', '.join(received.models) or 'nothing'}."
        )
    return numbers
