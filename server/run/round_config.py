"""What devices are told about training in a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flwr.app import ConfigRecord

from bouquet.common import model_selection
from bouquet.common.settings import Settings
from bouquet.strategies.base.replies import Replies


def train_config(settings: Settings, round_: int, prior: Sequence[float] = ()) -> ConfigRecord:
    """What every device is told about local training in a round, and of the fleet where devices choose."""
    train = settings.train
    values: dict[str, Any] = {
        "local-epochs": train.local_epochs,
        "batch-size": train.batch_size,
        "learning-rate": train.learning_rate * train.learning_rate_decay ** (round_ - 1),
        "momentum": train.momentum,
        "weight-decay": train.weight_decay,
    }
    if train.max_gradient_norm is not None:
        values["max-gradient-norm"] = train.max_gradient_norm
    if prior:
        values[model_selection.PRIOR] = list(prior)
    return ConfigRecord(values)


def fleet_prior(replies: Replies | None) -> list[float]:
    """What the devices that choose reported of a round, pooled, as the numbers of a message; empty where none does."""
    found = (
        [model_selection.from_report(reply.config.get(model_selection.REPORT)) for reply in replies.received]
        if replies
        else []
    )
    reports = [report for report in found if report is not None]
    return model_selection.to_prior(model_selection.pool(reports)) if reports else []
