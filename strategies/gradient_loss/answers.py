"""What the devices answer: the cluster that each chose (Eq. 4), the one that it trained, and what else it told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bouquet.common import protocol
from bouquet.common.protocol import ClientReply
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.gradient_loss import wire as choice
from bouquet.strategies.gradient_loss.state import Device, GradientLossState


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


def identified(state: GradientLossState, answers: Answers, loss_rise: float) -> GradientLossState:
    """The state with the identities s_i of the devices that answered, and what is known of these."""
    devices = {reply.client: _learned(state, reply, loss_rise) for reply in answers.replies.received}
    return replace(state, assignment=state.assignment | answers.chosen, devices=state.devices | devices)


def mean_gap(replies: Replies, metric: str) -> float | None:
    """The mean of a metric over the devices that report it as a finite number; None of nobody."""
    gaps = replies.metric(metric)
    finite = gaps[np.isfinite(gaps)]
    return float(finite.mean()) if finite.size else None


def _learned(state: GradientLossState, reply: ClientReply, loss_rise: float) -> Device:
    """What is known of a device after its reply; its loss is rising where it rose by more than ``loss_rise`` of it."""
    before = state.devices.get(reply.client)
    held = int(reply.metrics.get(choice.HELD, choice.NOTHING))
    same = before is not None and state.assignment.get(reply.client) == reply.metrics[choice.CHOSEN]
    stable = (before.stable if before and same else 0) + (held == state.version)
    loss = reply.metrics.get(protocol.LOSS)
    rising = bool(before and before.loss is not None and loss is not None and loss > (1 + loss_rise) * before.loss)
    return Device(held, stable, loss, rising)


def _what_is_wrong(reply: ClientReply, num_clusters: int) -> str | None:
    """Why the reply is no answer; None where it names the clusters that were chosen and trained."""
    for key in (choice.CHOSEN, choice.TRAINED):
        if reply.metrics.get(key) not in range(num_clusters):
            return (
                f"Metric {key!r} is {reply.metrics.get(key, 'missing')}; it must be a whole number from 0 to "
                f"{num_clusters - 1}."
            )
    return None
