"""What a reply says of a device: of its scores and classes, and of its model what the instruction asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flwr.app import Message

from client.context import ClientContext
from client.node_config import REPORT_CLASSES
from client.training.evaluation import Scores
from common import protocol
from common.parameters.layout import Vector
from common.protocol.compressed import reply_config
from common.task.score import Score

if TYPE_CHECKING:
    from client.rounds.session import Session


def score_metrics(scores: Scores, score: Score) -> dict[str, float]:
    """A model's test scores under their names on the wire."""
    optional = {protocol.F1: scores.f1, protocol.NAIVE: scores.naive}
    return {
        score.key: scores.score,
        **{name: value for name, value in optional.items() if value is not None},
        protocol.TEST_LOSS: scores.loss,
        protocol.TEST_EXAMPLES: scores.examples,
    }


def class_counts(node: ClientContext, scores: Scores) -> dict[str, protocol.Scalar]:
    """Samples of each class, and how many were tested and found, where the owner lets the device say so."""
    # Counts are exact, and no noise is on them: never in a private run.
    if not node.config.get(REPORT_CLASSES) or node.settings.privacy.is_on or not node.task.has_classes:
        return {}
    return {
        protocol.CLASS_SAMPLES: list(node.data.samples_by_class()),
        protocol.CLASS_TESTED: list(scores.of_class),
        protocol.CLASS_FOUND: list(scores.found_of_class),
    }


def told(session: Session) -> dict[str, float]:
    """The metrics that leave; of those that are withheld, what does not depend on the device's data."""
    metrics = session.metrics
    if not session.node.settings.privacy.withholds:
        return metrics
    kept = {name: metrics[name] for name in (protocol.GROUP, protocol.STATE_LOST) if name in metrics}
    return {**kept, protocol.NUM_EXAMPLES: 1}


def train_reply(
    session: Session,
    trained: Vector | None,
    config: Mapping[str, protocol.Scalar],
    is_model: bool,
    from_received: bool,
    base: str,
) -> Message:
    """The reply to a train message (`Session.reply`): released, packed, and with what else it has to say."""
    received, arrays = session.received, None
    config = {**config, **session.observer.on_reply(trained if is_model else None), **session.by_class}
    if trained is not None and received.upload:
        trained = session.release(trained, base if is_model else None, received.upload)
    if session.private is not None:
        config |= session.private.remember(received, session.initial)
    if received.unpacked is not None:
        seed = session.node.seed(received.round)
        packed, copies = session.copies.answer(session.run, received, trained, is_model, seed, from_received)
        config |= reply_config(session.layout, packed, copies)
    elif trained is not None and received.upload:
        arrays = protocol.to_record(session.layout, trained, received.upload, received.joined)
    return protocol.reply(session.message, session.node.client, told(session), arrays, config)
