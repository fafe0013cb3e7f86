"""A table of runs, validated, and the table of what is tried to choose the values of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings
from bouquet.common.task.score import Score
from bouquet.common.task.task import task_of
from bouquet.experiments.comparison.measures import Metric
from bouquet.experiments.comparison.paper_figures import PaperFigures
from bouquet.experiments.comparison.tuning_grids import ChosenValues, Tested, Tune, combinations, label_of, slug_of

STANDARD_ROWS: tuple[Mapping[str, Any], ...] = (
    {"label": "Standalone", "name": "standalone"},
    {"label": "FedAvg", "name": "fedavg"},
    {"label": "FedAvg, after local training", "name": "fedavg", "tested": "trained"},
    {"label": "FedPer", "name": "fedper"},
    {"label": "Ditto", "name": "ditto"},
)
Check = Callable[[Settings], object]


class TableError(BouquetError):
    """A table file that is not what it should be."""


@dataclass(frozen=True)
class Row:
    """A row of the tables: ``cells`` is the strategy of its cells, its own label or another row's."""

    label: str
    cells: str
    tested: Tested = "method"


@dataclass(frozen=True)
class Cell:
    """One run of the grid; ``slug`` is the name of its folder."""

    strategy: str
    data: str
    seed: int
    slug: str
    settings: Settings


@dataclass(frozen=True)
class ComparisonTable:
    """A grid, validated. ``data`` are the columns: data sets, or data sets times partitions.

    ``panels`` has them by partition, each column with the label of its data set; one unnamed panel without partitions.
    ``cells`` go seed by seed, so that a whole table of one seed is there first. With ``tune`` their settings lack what
    is to be chosen, until `chosen_for` has it: ``choices`` by row and column. ``claims`` are rows of which it is asked
    how far they are ahead of every other in the mean of the columns.
    """

    name: str
    seeds: tuple[int, ...]
    metrics: tuple[Metric, ...]
    strategies: tuple[str, ...]
    data: tuple[str, ...]
    cells: tuple[Cell, ...]
    rows: tuple[Row, ...]
    paper: tuple[PaperFigures, ...] = ()
    panels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tune: Tune | None = None
    choices: Mapping[tuple[str, str], ChosenValues] = field(default_factory=dict)
    claims: tuple[str, ...] = ()

    @property
    def score(self) -> Score:
        """The figure that its runs are judged by."""
        return task_of(self.cells[0].settings).score

    def row(self, label: str) -> Row:
        """The row of a label."""
        return next(row for row in self.rows if row.label == label)


def tuning_table(table: ComparisonTable, check: Check = lambda settings: None) -> ComparisonTable:
    """The table of what is tried: each row with each of its values, in all columns, on the tune seeds.

    Its cells are tested on what the devices held out of their training samples, never on ``data.test_samples``, nor on
    what is of ``table.cut`` or later: they read the rows before it only, and test on the newest of those.
    ``check`` is called with the settings of each row. Raises `BouquetError` for a value that a row cannot have.
    """
    tune = table.tune
    assert tune is not None
    cells, slugs = [], set()
    for seed in tune.seeds:
        for cell in (one for one in table.cells if one.seed == table.seeds[0]):
            for values in combinations(tune.grids[cell.strategy]) if tune.cells[cell.strategy] == cell.strategy else ():
                label = label_of(cell.strategy, values)
                slug = f"{cell.slug.removesuffix(f'-s{cell.seed}')}-{slug_of(values)}-s{seed}"
                overrides = {**values, "run.seed": seed, "run.name": slug, "data.test_samples": None, **tune.overrides}
                if cut := cell.settings.table.cut:
                    overrides |= {"table.until": cut, "table.cut": ""}
                try:
                    settings = cell.settings.with_overrides(overrides)
                    if seed == tune.seeds[0] and cell.data == table.data[0]:
                        check(settings)
                except BouquetError as error:
                    raise BouquetError(f"[tune] of {label!r}, data {cell.data!r}: {error}") from None
                if slug in slugs:
                    raise BouquetError(f"[tune]: two cells would be kept in the folder {slug!r}; try other values.")
                slugs.add(slug)
                cells.append(replace(cell, strategy=label, seed=seed, slug=slug, settings=settings))
    rows = [
        replace(row, label=label_of(row.label, values), cells=label_of(tune.cells[row.label], values))
        for row in table.rows
        for values in combinations(tune.grids[row.label])
    ]
    return replace(
        table,
        name=f"{table.name}, tuning",
        seeds=tune.seeds,
        strategies=tuple(row.label for row in rows),
        cells=tuple(cells),
        rows=tuple(rows),
        paper=(),
        tune=None,
    )


def missing_rows(table: ComparisonTable) -> list[str]:
    """The standard rows that a table does not have, by what they run and test."""
    names = {
        cell.strategy: cell.settings.strategy.name for cell in table.cells if cell.settings.personal.serve == "own"
    }
    there = {(names.get(row.cells), row.tested) for row in table.rows}
    return [str(r["label"]) for r in STANDARD_ROWS if (r["name"], r.get("tested", "method")) not in there]


def listed(values: Iterable[object]) -> str:
    """Values as a sentence of an error has them: ``'a', 'b'``."""
    return ", ".join(repr(value) for value in values)
