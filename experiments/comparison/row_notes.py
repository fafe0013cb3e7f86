"""What a table's rows are: which model each tests, on what its clusters were chosen, and what a device does for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common.settings import Settings
from experiments.comparison.grid import Row, Table
from strategies.registry import create_strategy

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


# What a device does in a round, in trainings by FedAvg's, where that is not one (docs/methods.md).
_TRAININGS = {
    "ditto": "2",
    "anchored": "2",
    "per-fedavg": "2",
    "per-fedavg-hf": "4",
    "pfedme": "{inner_steps}",
    "cgpfl": "{personal_steps}",
    "feddane": "1, and 2 passes for gradients",
    "fedbabu": "1, and {fine_tuning_epochs} epochs of fine-tuning",
    "fedsgd": "a step on all samples",
    "fedrep": "{head_epochs} epochs of the head, {body_epochs} of the body",
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


def budget_text(cells: Sequence[Settings]) -> str:
    """Rounds and local training of a row, in all of its columns."""
    rounds, epochs, batch = (
        " or ".join(map(str, sorted(set(found))))
        for found in (
            (settings.run.rounds for settings in cells),
            (settings.train.local_epochs for settings in cells),
            (settings.train.batch_size for settings in cells),
        )
    )
    return f"{rounds} rounds of {epochs} epochs, batch {batch}"


def trainings_text(settings: Settings) -> str:
    """How many times a device trains in a round, and where it is not for those epochs, for what."""
    strategy = settings.strategy
    built = create_strategy(strategy.name, strategy.options)
    text = "as its code says" if ":" in strategy.name else _TRAININGS.get(strategy.name, "1").format(**vars(built))
    if getattr(built, "local_update", "epochs") == "step":
        text = "a step on a mini-batch"
    return f"{text}, and 2 to choose" if settings.personal.choose and settings.personal.alone else text


def protocol(table: Table) -> list[dict[str, Any]]:
    """For each row its label, what is tested, on what clusters were chosen, and what a device does in a round."""
    cells: dict[str, list[Settings]] = {}
    for cell in table.cells:
        cells.setdefault(cell.strategy, []).append(cell.settings)
    return [
        {
            "row": row.label,
            "tested": tested_text(cells[row.cells][0], row),
            "clusters": chosen_text(cells[row.cells][0]),
            "budget": budget_text(cells[row.cells]),
            "trainings": trainings_text(cells[row.cells][0]),
        }
        for row in table.rows
    ]
