"""FedBABU's device: it trains the body below the common random head, and fine-tunes what it received for itself.

Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification. ICLR 2022, Algorithm 1 and
section 5.
"""

from __future__ import annotations

from flwr.app import Message

from client.procedures import config
from client.rounds.session import Session
from client.rounds.start_model import compose
from common.parameters.layout import Vector
from strategies.fedbabu.wire import FINE_TUNED, FINE_TUNING_EPOCHS


def train(session: Session) -> Message:
    """Answer a train message: test and keep the received body fine-tuned, train the body, send it."""
    body = session.received.upload
    start = _start(session)
    own, _ = fine_tune(session, start)
    session.report_start(own)
    trained, loss = session.train(start, session.proximal_terms(), layers=body)
    session.report_trained(own, loss)  # what the device has in the end; the trained body's head belongs to nobody
    session.keep(own)
    return session.reply(trained)


def evaluate(session: Session) -> Message:
    """Answer an evaluate message: test the received body fine-tuned."""
    return session.reply_evaluation(fine_tune(session, _start(session))[0])


def fine_tune(session: Session, model: Vector) -> tuple[Vector, float]:
    """Some epochs of local training, of the whole model or of the head; the model and its training loss."""
    epochs = config.count(session.received, FINE_TUNING_EPOCHS)
    what = config.text(session.received, FINE_TUNED, ("all", "head"))
    body = session.received.upload
    head = None if what == "all" else [layer for layer in session.layout.layers if layer not in body]
    return session.train(model, layers=head, local_epochs=epochs, stream="fine-tuning")


def _start(session: Session) -> Vector:
    """The received body below the initial head, which every device builds from the run's seed."""
    return compose(session.received, None, session.initial, session.layout)[0]
