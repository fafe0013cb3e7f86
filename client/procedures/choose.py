"""The device says which of the clusters' models fits its data: that with the least loss on all of its training data."""

from __future__ import annotations

from flwr.app import Message

from bouquet.client.rounds.session import Session
from bouquet.client.training import evaluation
from bouquet.common.compression.delta import MOST_MODELS
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import NUM_EXAMPLES, ProtocolError, Received
from bouquet.common.protocol.names import CENTER, CHOSEN, LOSS_GAP


def chooses(received: Received) -> bool:
    """Always, by its losses."""
    return True


def train(session: Session) -> Message:
    """Answer a train message, without training."""
    choose(session)
    session.metrics[NUM_EXAMPLES] = 1  # it uploads nothing that is weighed
    return session.reply()


def evaluate(session: Session) -> Message:
    """Answer an evaluate message: test the model that it chose."""
    return session.reply_evaluation(choose(session)[1])


def choose(session: Session) -> tuple[int, Vector]:
    """The cluster with the least loss, of equals the first, and its model; one whose loss is not finite is not taken.

    In evaluation mode: the loss is to say how well a model fits, and dropout or the statistics of a batch would not.
    The reply will report the choice.
    """
    centers = {k: session.whole(f"{CENTER}{k}") for k in _offered(session.received)}
    losses = {k: session.training_loss(center) for k, center in centers.items()}
    usable = evaluation.finite_losses(losses)
    chosen = min(usable, key=lambda k: usable[k])
    session.metrics |= {CHOSEN: chosen, LOSS_GAP: max(usable.values()) - usable[chosen]}
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
