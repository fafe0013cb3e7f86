"""What the devices answer: the cluster that each chose (Eq. 4), and the one that it trained."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from bouquet.common.protocol import ClientReply
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.gradient_loss import wire as choice


@dataclass(frozen=True)
class Answers:
    """The ``replies`` that name both clusters; of the others, why they do not."""

    replies: Replies
    chosen: dict[str, int]  # client → s_i
    trained: dict[str, int]  # client → the cluster whose new center its model is part of, in the order of the replies
    refused: dict[str, str]

    @classmethod
    def read(cls, replies: Replies, num_clusters: int) -> Answers:
        """Parse the metrics of a round's replies."""
        reasons = map(partial(_what_is_wrong, num_clusters=num_clusters), replies.received)
        refused = {client: reason for client, reason in zip(replies.clients, reasons, strict=True) if reason}
        usable = replies.only(client not in refused for client in replies.clients) if refused else replies
        chosen, trained = (
            {reply.client: int(reply.metrics[key]) for reply in usable.received}
            for key in (choice.CHOSEN, choice.TRAINED)
        )
        return cls(usable, chosen, trained, refused)

    def count(self, metric: str) -> int:
        """The devices that say so."""
        return sum(reply.metrics.get(metric, 0) == 1 for reply in self.replies.received)


def mean_gap(replies: Replies, metric: str) -> float | None:
    """The mean of a metric over the devices that report it as a finite number; None of nobody."""
    gaps = replies.metric(metric)
    finite = gaps[np.isfinite(gaps)]
    return float(finite.mean()) if finite.size else None


def _what_is_wrong(reply: ClientReply, num_clusters: int) -> str | None:
    """Why the reply is no answer; None where it names the clusters that were chosen and trained."""
    for key in (choice.CHOSEN, choice.TRAINED):
        if reply.metrics.get(key) not in range(num_clusters):
            return (
                f"Metric {key!r} is {reply.metrics.get(key, 'missing')}; it must be a whole number from 0 to "
                f"{num_clusters - 1}."
            )
    return None
