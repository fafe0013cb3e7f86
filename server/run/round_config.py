"""What devices are told about training in a round."""

from __future__ import annotations

from typing import Any

from flwr.app import ConfigRecord

from bouquet.common.settings import Settings


def train_config(settings: Settings, round_: int) -> ConfigRecord:
    """What every device is told about local training in a round."""
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
    return ConfigRecord(values)
