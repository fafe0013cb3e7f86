"""What the server does about replies that are well-formed and bad: refuse the absurd, limit the large.

The aggregation that a minority cannot move far is `bouquet.strategies.mathematics.robust`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from bouquet.strategies.base.replies import Replies
from bouquet.strategies.mathematics.robust import Aggregation, fences, norm_limits

# An update so many times as large as the round's median is not training. Uneven data make factors of ten to a hundred.
ABSURD_FACTOR = 1000.0
# Nobody weighs more than so many times the median of those it is averaged with, where any protection is set.
MOST_WEIGHT = 3


class Screened(NamedTuple):
    """The replies that count, the clients that were refused and why, and how much of a limited update is left."""

    replies: Replies
    refused: dict[str, str]
    limited: dict[str, float]


@dataclass(frozen=True)
class Protection:
    """How far one client may move the others' models.

    ``aggregation`` says how the members of a cluster become its center. ``limit_norm`` shortens updates to so many
    times the median norm of their cluster's; None leaves them. Where either is set, no weight is more than
    `MOST_WEIGHT` times the median: a limit on norms is of no use while a device sets its own weight. Buffers and
    counters, such as BatchNorm's running statistics, are clipped to the `fences` of all devices'.
    """

    aggregation: Aggregation = field(default_factory=Aggregation)
    limit_norm: float | None = None

    def __post_init__(self) -> None:
        if self.limit_norm is not None or self.aggregation.rule != "mean":
            object.__setattr__(self, "aggregation", replace(self.aggregation, most_weight=MOST_WEIGHT))

    def screen(self, replies: Replies, clusters: Mapping[str, int]) -> Screened:
        """Refuse replies whose update is absurdly large, and limit the others'; ``clusters`` is the last assignment."""
        norms = replies.update_norms()
        # A norm of 0: the client uploads nothing, or began from a model of its own, which the server does not know.
        moved = norms[norms > 0]
        absurd = np.zeros(len(norms), dtype=bool)
        if len(moved) > 2:
            absurd = norms > ABSURD_FACTOR * np.median(moved)
        refused = {
            client: f"Its update has norm {norm:.3g}, more than {ABSURD_FACTOR:g} times the median of the round; the "
            "model has probably diverged."
            for client, norm, bad in zip(replies.clients, norms, absurd, strict=True)
            if bad
        }
        if refused:
            replies, norms = replies.only(~absurd), norms[~absurd]
        if self.aggregation.most_weight is not None:
            replies = _fenced(replies)
        if self.limit_norm is None or not len(replies):
            return Screened(replies, refused, {})
        members = np.array([clusters.get(client, -1) for client in replies.clients], dtype=np.int64)
        left = norm_limits(norms, members, self.limit_norm)
        limited = {client: round(float(k), 6) for client, k in zip(replies.clients, left, strict=True) if k < 1}
        return Screened(replies.scaled(left.tolist()), refused, limited)


def _fenced(replies: Replies) -> Replies:
    """The replies, whose buffers and counters are within the `fences` of those of three or more that sent them."""
    layout, received = replies.layout, [*replies.received]
    for layer in layout.layers:
        columns = layout.layer_columns[layer]
        columns = columns[~layout.parameter_columns[columns]]
        rows = [row for row, reply in enumerate(received) if layer in reply.layers] if len(columns) else []
        if len(rows) < 3:
            continue
        values = np.stack([received[row].vector[columns] for row in rows])
        kept = np.clip(values, *fences(values)).astype(np.float32)
        for row in np.flatnonzero((kept != values).any(axis=1)):
            reply = received[rows[row]]
            vector = reply.vector.copy()
            vector[columns] = kept[row]
            received[rows[row]] = replace(reply, vector=vector)
    changed = any(new is not old for new, old in zip(received, replies.received, strict=True))
    return replace(replies, received=tuple(received), rows=None) if changed else replies
