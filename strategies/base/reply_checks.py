"""What arrives at the server, checked before a method sees it: see `bouquet.common.protocol` for the names.

Each check raises a `BouquetError` that names the tensor or metric and the reason; the caller leaves that client out of
the round, and nothing else is lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord

from bouquet.common.compression.delta import Find
from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import (
    ARRAYS,
    CLASS_FOUND,
    CLASS_SAMPLES,
    CLASS_TESTED,
    CLIENT,
    F1,
    LEFT_OUT,
    NUM_EXAMPLES,
    TEST_EXAMPLES,
    ClientReply,
    ProtocolError,
    check_size,
    compressed,
    read_model,
    refusing,
)
from bouquet.common.protocol.arrival import Arrival
from bouquet.common.protocol.error_replies import cannot_be_read
from bouquet.common.protocol.records import config_of, records_of
from bouquet.common.task.score import ACCURACY
from bouquet.common.texts import MOST_TAGS, MOST_VALUES, plain

# What no honest device sends. A loss that overflowed is reported as the largest float32.
MOST_EXAMPLES = 10**9
LARGEST_METRIC = 1e39
LARGEST_VALUE = 1e9  # of a tensor: running statistics of unscaled inputs are far below
_SHARES = {F1, ACCURACY.key, ACCURACY.trained, ACCURACY.served, ACCURACY.of_method, ACCURACY.validation}
_SHARES |= {ACCURACY.own, ACCURACY.alone, ACCURACY.received}
_COUNTS = {TEST_EXAMPLES, LEFT_OUT}

_TRACEBACKS = ("Traceback (most recent call last)", "ray::")  # of Flower's simulation, which sends the whole


def reported(message: Message) -> str:
    """The reason of a reply that carries an error."""
    reason = str(message.error.reason)
    return plain(reason) if cannot_be_read(message) else told(reason)


def refused(error: BouquetError) -> str:
    """Why a reply is refused, as it stands in the record: it may name a tensor as the device calls it."""
    return plain(str(error))


def told(reason: str) -> str:
    """A reason that a device gave, as it stands in the record: of a traceback the last line, which says what failed."""
    if any(mark in reason for mark in _TRACEBACKS):
        reason = reason.rstrip().rsplit("\n", 1)[-1].removesuffix("'>")
    return plain(f"The device reported: {reason}")


@refusing
def read_reply(
    message: Message | Arrival,
    layout: ParameterLayout,
    upload: Sequence[str] | None = None,
    weighted_by: str = NUM_EXAMPLES,
    arrays_key: str = ARRAYS,
    find: Find | None = None,
) -> ClientReply:
    """Check a train reply at the server: exactly the layers asked for, right shapes, finite, a positive weight.

    ``find`` gives a copy by its digest, in a run that compresses. Raises `BouquetError` with the reason, whatever was
    sent, and takes no more memory for it than some times the layout's; the caller leaves the client out of the round.
    """
    arrival = message if isinstance(message, Arrival) else Arrival.of(message)
    message = arrival.message
    if message.has_error():
        raise ProtocolError(reported(message))
    content = message.content
    check_size(content, layout)
    layers = layout.layers if upload is None else layout.check_layers(upload)
    records, scores = records_of(content, ArrayRecord), records_of(content, MetricRecord)
    # A stock ClientApp may name its only record as it likes.
    named = records.get(arrays_key) or (next(iter(records.values())) if len(records) == 1 else None)
    config = dict(arrival.about)
    unpacked = compressed.from_reply(config, config_of(content, CLIENT), layout, layers, find) if find else None
    vector = read_model(named, layout, layers) if unpacked is None or unpacked.copy is None else unpacked.vector
    _check_values(vector, layout)
    metrics = _metrics(scores)
    weight = _weight(metrics, weighted_by)
    return ClientReply(
        client=arrival.client,
        node=message.metadata.src_node_id,
        vector=vector,
        layers=layers,
        num_examples=weight,
        metrics=metrics,
        config=config,
        holds=unpacked.holds if unpacked else {},
        copy=unpacked.copy if unpacked else None,
    )


def _check_values(vector: Vector, layout: ParameterLayout) -> None:
    if len(vector) and not -LARGEST_VALUE <= vector.min() <= vector.max() <= LARGEST_VALUE:
        worst = int(np.abs(vector).argmax())
        name = next(spec.name for spec in layout.tensors if spec.columns.start <= worst < spec.columns.stop)
        raise ProtocolError(f"Tensor {name!r} holds {vector[worst]:.3g}; values are to be within ±{LARGEST_VALUE:g}.")


def _weight(metrics: Mapping[str, float], weighted_by: str) -> int:
    """The number of samples by which a reply is weighed: whole, from 1, and no more than a device can hold."""
    weight = metrics.get(weighted_by)
    if weight is None or not 1 <= weight <= MOST_EXAMPLES or weight != int(weight):
        raise ProtocolError(
            f"Metric {weighted_by!r} is {'missing' if weight is None else weight}; it must be a whole number from 1 to "
            f"{MOST_EXAMPLES}."
        )
    return int(weight)


@refusing
def read_metrics(message: Message, weighted_by: str = NUM_EXAMPLES) -> dict[str, float]:
    """Check an evaluate reply and return its metrics. Raises `ProtocolError` with the reason."""
    if message.has_error():
        raise ProtocolError(reported(message))
    check_size(message.content, None)
    metrics = _metrics(records_of(message.content, MetricRecord))
    _weight(metrics, weighted_by)
    return metrics


def read_classes(config: Mapping[str, Any], classes: int) -> dict[str, list[float | None]]:
    """``samples`` and ``accuracy`` by class, of a device that reports so many; empty for what cannot be."""
    given: list[Any] = [config.get(name) for name in (CLASS_SAMPLES, CLASS_TESTED, CLASS_FOUND)]
    if not all(isinstance(values, list) and all(type(value) is int for value in values) for values in given):
        return {}
    samples, tested, correct = given
    if not len(samples) == len(tested) == len(correct) == classes:
        return {}
    if not all(0 <= s <= MOST_EXAMPLES and 0 <= f <= t <= MOST_EXAMPLES for s, t, f in zip(*given, strict=True)):
        return {}
    accuracy = [round(f / t, 4) if t else None for t, f in zip(tested, correct, strict=True)]
    return {"samples": list(samples), "accuracy": accuracy}


def read_texts(config: Mapping[str, Any], key: str, longest: int) -> list[str]:
    """A list of what a device says, each text once and at most so long; empty for what cannot be."""
    given = config.get(key)
    texts = given[:MOST_TAGS] if isinstance(given, list) else []
    return sorted({plain(text, longest) for text in texts if isinstance(text, str) and text.strip()})


def _metrics(records: Mapping[str, MetricRecord]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for record in records.values():
        if len(record) > MOST_VALUES:
            raise ProtocolError(f"The reply has {len(record)} metrics; it may have {MOST_VALUES}.")
        for given, value in record.items():
            if isinstance(value, list):
                continue
            name = plain(given)
            if not math.isfinite(value) or abs(value) > LARGEST_METRIC:
                raise ProtocolError(f"Metric {name!r} is {value}.")
            if name in _SHARES and not 0 <= value <= 1:
                raise ProtocolError(f"Metric {name!r} is {value}; it must be from 0 to 1.")
            if name in _COUNTS and not 0 <= value <= MOST_EXAMPLES:
                raise ProtocolError(f"Metric {name!r} is {value}; it must be from 0 to {MOST_EXAMPLES}.")
            metrics[name] = value
    return metrics
