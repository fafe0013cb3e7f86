"""A comparison whose rows are tuned: what each takes is chosen on seeds and samples that the table does not show.

Tuning is a table of its own in ``OUT/tune``, run as any other: each row with each of its values. What it chooses is
laid over the settings of the table's cells, which then are run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bouquet.common.data.datasets import load_dataset
from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings
from bouquet.common.settings.sections import OWN_DATA, DataSettings
from bouquet.common.system.files import write_json
from bouquet.experiments.comparison.cell_process import CellProcess
from bouquet.experiments.comparison.measures import parse_metric
from bouquet.experiments.comparison.run import Begin, Results, check_cells, run_table
from bouquet.experiments.comparison.table import ComparisonTable, tuning_table
from bouquet.experiments.comparison.tuning_grids import ChosenValues, Tune, choose, combinations, label_of
from bouquet.server.run_folder import SUMMARY

Choices = Mapping[tuple[str, str], ChosenValues]


def run_comparison(
    table: ComparisonTable,
    out: Path,
    jobs: int | None,
    console: Console,
    check: Callable[[Settings], None] | None = None,
    quiet: bool = False,
    begin: Begin = CellProcess,
) -> Results:
    """Run a table as `run_table` does; before it what its rows are tuned with.

    Of a row and column that is not tuned yet, because its tuning was interrupted, no cell is run, nor read where there
    is one.
    """
    if table.tune is None:
        return run_table(table, out, jobs, console, check, quiet, begin)
    for column, data in {(cell.data, cell.settings.data) for cell in table.cells}:
        check_apart(data, column)
    tuning, folder = tuning_table(table), out / "tune"
    if not quiet:
        seeds = _seeds(table.tune)
        console.print(f"Tuning is {len(tuning.cells)} cells on {seeds}, then {len(table.cells)} are run.")
    if check is not None and not all((folder / "cells" / cell.slug / SUMMARY).exists() for cell in tuning.cells):
        check_cells(table.cells, check)
    tried = run_table(tuning, folder, jobs, console, check, quiet, begin)
    choices = choices_of(table, tried)
    write_json(out / "tuned.json", tuned_json(table, choices))
    final = with_choices(table, choices)
    ready = {cell.slug for cell in final.cells if (cell.strategy, cell.data) in choices}
    results = run_table(final, out, jobs, console, check, quiet, begin, set() if tried.interrupted else ready)
    return replace(results, tuning=tried, interrupted=results.interrupted or tried.interrupted)


def chosen_by(table: ComparisonTable) -> str:
    """The metric that values are chosen by."""
    return table.score.of("macro")


def choices_of(table: ComparisonTable, tried: Results) -> dict[tuple[str, str], ChosenValues]:
    """(row, column) → what was chosen for it; without those of which some cell has neither run nor failed."""
    assert table.tune is not None
    metric = parse_metric(chosen_by(table))
    cells = defaultdict(list)
    for result in tried.cells:
        cells[result.cell.strategy, result.cell.data].append(result)
    choices = {}
    for row in table.rows:
        grid, source = table.tune.grids[row.label], table.tune.cells[row.label]
        for data in table.data:
            of = [(values, cells[label_of(source, values), data]) for values in combinations(grid)]
            if any(one.run is None and one.error is None for _, results in of for one in results):
                continue
            accuracies = [
                (values, [None if one.run is None else metric.of(one.run, row.tested) for one in results])
                for values, results in of
            ]
            if (choice := choose(grid, accuracies, table.score.higher_is_better)) is not None:
                choices[row.label, data] = choice
    return choices


def with_choices(table: ComparisonTable, choices: Choices) -> ComparisonTable:
    """The table whose cells take what was chosen for their row and column."""
    cells = tuple(
        replace(cell, settings=cell.settings.with_overrides(choices[cell.strategy, cell.data].values))
        if (cell.strategy, cell.data) in choices
        else cell
        for cell in table.cells
    )
    return replace(table, cells=cells, choices=choices)


def check_apart(data: DataSettings, column: str) -> None:
    """Raise `BouquetError` where tuning may test on samples that the table tests on, and settings would prevent it.

    Devices' own data have no samples apart but those before ``table.cut``; the notes say so.
    """
    if data.dataset == OWN_DATA:
        return
    loaded = load_dataset(data.dataset, data.data_dir or None, data.standardise, data.classes, data.input_shape)
    by_owner = loaded.owners is not None and data.partition == "natural"
    apart = data.reserved_fraction > 0 or (loaded.test_x is not None and not by_owner)
    missing = [] if data.test_samples is not None else ["data.test_samples, e.g. to 400"]
    missing += [] if apart else ["data.reserved_fraction, e.g. to 0.2"]
    if missing:
        raise BouquetError(
            f"[tune] chooses on samples that the devices hold out, which the column {column!r} may test on under "
            f"another seed. Set {' and '.join(missing)}, in [base.data] or the column: it then tests on others."
        )


def shared_columns(table: ComparisonTable) -> list[str]:
    """The columns whose samples to choose on may be among those that the table tests on under another seed."""
    cells = (cell for cell in table.cells if not cell.settings.table.cut)
    apart = table.tune is not None and table.tune.overrides
    own = {cell.data for cell in cells if cell.settings.data.dataset == OWN_DATA and not apart}
    return [data for data in table.data if data in own]


def tuned_json(table: ComparisonTable, choices: Choices) -> dict[str, Any]:
    """What was chosen, from what, with the accuracies of each value by tune seed."""
    assert table.tune is not None
    seeds = table.tune.seeds
    return {
        "seeds": list(seeds),
        "by": chosen_by(table),
        "chosen": [
            {
                "row": row,
                "data": data,
                "values": choice.values,
                "at_end_of_grid": list(choice.at_end),
                "tried": [
                    {"values": values, table.score.of("by_seed"): dict(zip(seeds, accuracies, strict=True))}
                    for values, accuracies in choice.tried
                ],
            }
            for (row, data), choice in choices.items()
        ],
        "may_share_samples_with_the_table": shared_columns(table),
    }


def tuning_notes(results: Results) -> list[str]:
    """How the rows were tuned, and what to know of it."""
    table = results.table
    if table.tune is None:
        return []
    keys = sorted({key for grid in table.tune.grids.values() for key in grid})
    said = [
        f"{_listed(keys)} {'was' if len(keys) == 1 else 'were'} chosen for each row and column by the best mean "
        f"{chosen_by(table)} of what the row tests, on {_seeds(table.tune)}, which the table does not show."
    ]
    if own := shared_columns(table):
        said.append(f"{_listed(own)}: chosen on devices' own samples, which the table may test on under another seed.")
    pairs = [(row.label, data) for row in table.rows for data in table.data]
    if lacking := [pair for pair in pairs if pair not in table.choices]:
        said.append(f"{len(lacking)} of {len(pairs)} rows and columns are not tuned yet, and have no cells.")
    if failed := [one.cell.slug for one in results.tuning.failed] if results.tuning else []:
        said.append(f"{len(failed)} tuning cells failed; a value that failed is not chosen: {_listed(failed)}.")
    if ends := [how_many for key in keys if (how_many := _at_ends(table, key))]:
        said.append(f"At an end of its grid, so that a better value may lie beyond: {'; '.join(ends)}.")
    return said


def _at_ends(table: ComparisonTable, key: str) -> str:
    """Of how many choices of a key the value is the least or greatest of its grid; empty where it is of none."""
    assert table.tune is not None
    chosen = [(table.tune.grids[row][key], one) for (row, _), one in table.choices.items() if key in one.values]
    at_end = [(grid, one.values[key]) for grid, one in chosen if key in one.at_end]
    if not at_end:
        return ""
    least = sum(value == min(grid) for grid, value in at_end)
    greatest = len(at_end) - least
    return f"{key} in {len(at_end)} of {len(chosen)} choices, {least} at the least and {greatest} at the greatest"


def choice_table(results: Results) -> list[tuple[str, list[str], list[list[str]]]]:
    """Chosen values by row and column, as (title, heads, rows); empty for a table that is not tuned."""
    table = results.table
    if table.tune is None:
        return []
    texts = {place: chosen.text for place, chosen in table.choices.items()}
    rows = [[row.label, *(texts.get((row.label, column), "—") for column in table.data)] for row in table.rows]
    return [("chosen", ["strategy", *table.data], rows)]


def _listed(values: Any) -> str:
    return ", ".join(map(str, values))


def _seeds(tune: Tune) -> str:
    return f"the seed{'s' if len(tune.seeds) > 1 else ''} {_listed(tune.seeds)}"
