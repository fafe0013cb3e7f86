"""What a table's rows are: which model each tests, on what its clusters were chosen, and what a device does for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bouquet.common.settings import Settings
from bouquet.experiments.comparison.table import ComparisonTable
from bouquet.strategies.registry import create_strategy

# Which model the accuracies of a row are of, where that is not the method's.
TRAINED = "after local training, in the last round that the device trained in"
SERVED = {
    "mixture": "the mean of what the device's models say",
    "auto": "the received one, or the mean of what the device's models say, as the fleet finds better",
}


def budget_text(cells: Sequence[Settings], trainings: str) -> str:
    """Rounds and local training of a row, in all of its columns."""
    rounds, epochs, batch = (
        " or ".join(map(str, sorted(set(budget))))
        for budget in (
            (settings.run.rounds for settings in cells),
            (settings.train.local_epochs for settings in cells),
            (settings.train.batch_size for settings in cells),
        )
    )
    # A method that takes a step in place of trainings has no epochs.
    local = f" of {epochs} epoch{'s' * (epochs != '1')}" if trainings[0].isdigit() else ""
    return f"{rounds} rounds{local}, batch {batch}"


def protocol(table: ComparisonTable) -> list[dict[str, Any]]:
    """For each row its label, what is tested, on what clusters were chosen, and what a device does in a round."""
    cells: dict[str, list[Settings]] = {}
    for cell in table.cells:
        cells.setdefault(cell.strategy, []).append(cell.settings)
    notes = []
    for row in table.rows:
        first = cells[row.cells][0]
        method, personal = create_strategy(first.strategy.name, first.strategy.options), first.personal
        served = SERVED.get(personal.serve, method.tested_model)
        alone = ", and 1 alone" if personal.compare or personal.serve == "mixture" else ""
        notes.append(
            {
                "row": row.label,
                "tested": TRAINED if row.tested == "trained" else served,
                "clusters": method.clusters_chosen_on,
                "budget": budget_text(cells[row.cells], method.trainings),
                "trainings": method.trainings + alone,
            }
        )
    return notes
