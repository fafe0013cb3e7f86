"""What a table's rows are: which model each tests, on what its clusters were chosen, and what a device does for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bouquet.common.settings import Settings
from bouquet.experiments.comparison.table import Row, Table
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.registry import create_strategy


def tested_text(settings: Settings, row: Row, method: MethodStrategy[Any]) -> str:
    """Which model the accuracies of a row are of."""
    if row.tested == "trained":
        return "after local training, in the last round that the device trained in"
    if settings.personal.serve == "mixture":
        return "the mean of what the device's models say"
    if settings.personal.serve == "auto":
        return "the received one, or the mean of what the device's models say, as the fleet finds better"
    return method.tested_model


def budget_text(cells: Sequence[Settings], trainings: str) -> str:
    """Rounds and local training of a row, in all of its columns."""
    rounds, epochs, batch = (
        " or ".join(map(str, sorted(set(found))))
        for found in (
            (settings.run.rounds for settings in cells),
            (settings.train.local_epochs for settings in cells),
            (settings.train.batch_size for settings in cells),
        )
    )
    # A method that takes a step in place of trainings has no epochs.
    local = f" of {epochs} epoch{'s' * (epochs != '1')}" if trainings[0].isdigit() else ""
    return f"{rounds} rounds{local}, batch {batch}"


def trainings_text(settings: Settings, method: MethodStrategy[Any]) -> str:
    """How many times a device trains in a round, and where it is not for those epochs, for what."""
    personal = settings.personal
    return method.trainings + (", and 1 alone" if personal.compare or personal.serve == "mixture" else "")


def protocol(table: Table) -> list[dict[str, Any]]:
    """For each row its label, what is tested, on what clusters were chosen, and what a device does in a round."""
    cells: dict[str, list[Settings]] = {}
    for cell in table.cells:
        cells.setdefault(cell.strategy, []).append(cell.settings)
    notes = []
    for row in table.rows:
        first = cells[row.cells][0]
        method = create_strategy(first.strategy.name, first.strategy.options)
        notes.append(
            {
                "row": row.label,
                "tested": tested_text(first, row, method),
                "clusters": method.clusters_chosen_on,
                "budget": budget_text(cells[row.cells], method.trainings),
                "trainings": trainings_text(first, method),
            }
        )
    return notes
