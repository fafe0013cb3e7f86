"""What a reply says of a device: of its scores and its classes."""

from __future__ import annotations

from bouquet.client.context import ClientContext
from bouquet.client.node_config import REPORT_CLASSES
from bouquet.client.owner.sensors import Sensors
from bouquet.client.training.evaluation import Scores
from bouquet.common import protocol
from bouquet.common.task.score import Score
from bouquet.common.texts import MOST_TAGS


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


def said_of_data(node: ClientContext) -> dict[str, protocol.Scalar]:
    """What is odd about the data, and folders of photos that are no class of the run's; not in a private run."""
    if node.settings.privacy.is_on:  # before the data are looked at: that they fail must not show either
        return {}
    said = {protocol.UNKNOWN_CLASSES: node.data.unknown_classes, protocol.DATA_WARNINGS: node.data_warnings}
    return {key: list(texts[:MOST_TAGS]) for key, texts in said.items() if texts}


def machine_metrics(sensors: Sensors) -> dict[str, float]:
    """What a device's machine tells of itself, for its owner to see on the page; empty where it tells nothing."""
    readings = {protocol.TEMPERATURE: sensors.temperature(), protocol.BATTERY: sensors.battery()}
    return {name: value for name, value in readings.items() if value is not None}


def metrics_that_leave(metrics: dict[str, float], node: ClientContext) -> dict[str, float]:
    """The metrics of a reply; where they are withheld, those that do not depend on the device's data."""
    if not node.settings.privacy.withholds:
        return metrics
    kept = {name: metrics[name] for name in (protocol.GROUP, protocol.STATE_LOST) if name in metrics}
    return {**kept, protocol.NUM_EXAMPLES: 1}
