"""What a table's rows are: which model each tests, and on what its clusters were chosen."""

from __future__ import annotations

from typing import Any

from common.settings import Settings
from experiments.comparison.grid import Row, Table

# The model that a device is tested with after the last round, where it is not the one that it was sent.
_TESTED = {
    "standalone": "its own, which nothing else has touched",
    "fedper": "personal: the received base below its own layers",
    "fedrep": "personal: the received body below its own head",
    "fedtsdp": "personal: the received layers with its own",
    "ditto": "personal",
    "anchored": "personal",
    "pfedme": "personal",
    "clusterfl": "personal",
    "cgpfl": "personal",
    "fedac": "personal",
    "fedbabu": "received, then fine-tuned",
    "per-fedavg": "received, then adapted by gradient steps",
    "per-fedavg-hf": "received, then adapted by gradient steps",
    "dc-pfl": "received: that of its group, whose slow layers may be its own",
}
# What decides a device's cluster; test data never does.
_CHOSEN_ON = {
    **dict.fromkeys(("fesem", "fesem-ma", "anchored", "clusterfl"), "uploaded models"),
    "fedac": "uploaded models, reduced to a few numbers",
    "cgpfl": "uploaded contexts",
    **dict.fromkeys(("cfl", "fl-hc", "fedgroup", "robust-tkm", "dc-pfl"), "uploaded updates"),
    **dict.fromkeys(("gradient-loss", "ifca"), "the device's mini-batch; for the last test all of its training data"),
    "hypocluster": "the device's training data",
    "fedtsdp": "outputs on public data, then uploaded models",
}


def tested_text(settings: Settings, row: Row) -> str:
    """Which model the accuracies of a row are of."""
    if row.tested == "trained":
        return "after local training, in the last round that the device trained in"
    if settings.personal.choose:
        return f"chosen on {settings.personal.held_out:.0%} of the training data, which no model was trained on"
    strategy = settings.strategy
    if strategy.name == "fedac" and strategy.options.get("tested") == "center":
        return "received"
    return "as its code says" if ":" in strategy.name else _TESTED.get(strategy.name, "received")


def chosen_text(settings: Settings) -> str:
    """On what the clusters were chosen; a dash where there are none."""
    return _CHOSEN_ON.get(settings.strategy.name, "–")


def protocol(table: Table) -> list[dict[str, Any]]:
    """For each row its label, what is tested and on what clusters were chosen."""
    first = {cell.strategy: cell.settings for cell in reversed(table.cells)}
    return [
        {"row": row.label, "tested": tested_text(first[row.cells], row), "clusters": chosen_text(first[row.cells])}
        for row in table.rows
    ]
