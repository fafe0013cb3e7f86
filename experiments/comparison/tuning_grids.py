"""`[tune]` of a table file: the values that each row may take, and the seeds on which one of them is chosen.

The format: docs/comparing.md. What is run for it, and what is chosen: `bouquet.experiments.comparison.tuning`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from bouquet.common.errors import BouquetError

# Rounds, data and model are what rows are compared on.
SECTIONS = ("train", "strategy")
Grid = Mapping[str, tuple[Any, ...]]  # section.key → values, numbers in ascending order
Values = Mapping[str, Any]  # one value for each key of a grid
Tested = Literal["method", "trained"]


@dataclass(frozen=True)
class Entry:
    """One strategy, data set or partition of the grid: its label and what it sets, as ``section.key`` → value."""

    label: str
    overrides: Mapping[str, Any]
    tested: Tested = "method"
    grid: Grid = field(default_factory=dict)  # of its own, beside that of all rows


class TuneSection(BaseModel):
    """``[tune]`` as it is written; every other key is a setting with its values."""

    model_config = ConfigDict(extra="allow", strict=True)

    seeds: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)


@dataclass(frozen=True)
class Tune:
    """What is chosen for each row: ``grids`` by label, and the row whose ``cells`` it is read from in tuning.

    ``overrides``, ``section.key`` → value, are where what is chosen on is kept apart from what the table tests on.
    """

    seeds: tuple[int, ...]
    grids: Mapping[str, Grid]
    cells: Mapping[str, str]
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """The values that a row takes in a column: the best mean score over the tune seeds.

    ``tried`` are all values with their accuracies by seed, None where the run failed. ``at_end`` are the keys whose
    value is the least or greatest of several numbers in the grid: a better one may lie beyond.
    """

    values: Values
    at_end: tuple[str, ...]
    tried: Sequence[tuple[Values, Sequence[float | None]]]

    @property
    def text(self) -> str:
        """``learning_rate 0.05``, without the sections."""
        return ", ".join(
            f"{key.partition('.')[2]} {value}{' (end)' if key in self.at_end else ''}"
            for key, value in self.values.items()
        )


def read_tune(
    section: TuneSection | None,
    seeds: Sequence[int],
    strategies: Sequence[Entry],
    columns: Sequence[Entry],
    cells: Mapping[str, str],
) -> Tune | None:
    """What is chosen for each row of a table with these seeds; ``cells`` are the rows whose cells each could share.

    Raises `BouquetError` for what does not fit the table.
    """
    if section is None:
        if own := [entry.label for entry in strategies if entry.grid]:
            raise BouquetError(f"[[strategy]] {own[0]!r} has tune, and the table no [tune], which says on which seeds.")
        return None
    for place, seed in enumerate(section.seeds):
        if seed in seeds:
            raise BouquetError(
                f"tune.seeds holds {seed}, which is a seed of the table; give others than "
                f"{', '.join(map(str, seeds))}: what is chosen is not tested on what it was chosen on."
            )
        if seed in section.seeds[:place]:
            raise BouquetError(f"tune.seeds holds {seed} twice.")
    shared = parse_grid("[tune]", section.model_extra)
    grids = {entry.label: {**shared, **entry.grid} for entry in strategies}
    every = {key for grid in grids.values() for key in grid}
    for kind, entries in (("strategy", strategies), ("data", columns)):
        for entry in entries:
            for key in entry.overrides:
                if key in (grids[entry.label] if kind == "strategy" else every):
                    raise BouquetError(
                        f"[[{kind}]] {entry.label!r} sets {key}, which is to be chosen; leave it out there, or as what "
                        "is tuned."
                    )
    return Tune(tuple(section.seeds), grids, cells)


def parse_grid(where: str, content: Any) -> Grid:
    """Check the values of each setting; ``where`` is what holds them. Raises `BouquetError`."""
    if not isinstance(content, Mapping) or not content:
        raise BouquetError(f'{where} has no setting to choose; give one, such as "train.learning_rate" = [0.02, 0.05].')
    grid = {}
    for key, values in content.items():
        if key.partition(".")[0] not in SECTIONS or "." not in key or key == "strategy.name":
            raise BouquetError(
                f"{where} has the key {key!r}; what may be chosen are settings of the sections {', '.join(SECTIONS)}, "
                'in quotes, such as "train.learning_rate".'
            )
        if not isinstance(values, list) or not values:
            raise BouquetError(f"{where} has {key} = {values!r}; expected a list of the values to try.")
        if twice := [value for place, value in enumerate(values) if value in values[:place]]:
            raise BouquetError(f"{where} has {key} = {values!r}, which holds {twice[0]!r} twice.")
        grid[key] = tuple(sorted(values)) if all(map(_is_number, values)) else tuple(values)
    return grid


def combinations(grid: Grid) -> Iterator[Values]:
    """One value for each key, in every combination."""
    return (dict(zip(grid, values, strict=True)) for values in product(*grid.values()))


def label_of(row: str, values: Values) -> str:
    """The label of a row with these values."""
    return ", ".join([row, *(f"{key} = {value}" for key, value in values.items())])


def choose(
    grid: Grid, tried: Sequence[tuple[Values, Sequence[float | None]]], higher_is_better: bool = True
) -> Choice | None:
    """The values with the best mean; None where each failed in some seed.

    Of equals those nearest to the middle of the grid, then the first.
    """
    means = {
        place: round(sum(known) / len(known), 12) * (1 if higher_is_better else -1)
        for place, (_, accuracies) in enumerate(tried)
        if len(known := [one for one in accuracies if one is not None]) == len(accuracies)
    }
    if not means:
        return None
    best = max(means, key=lambda place: (means[place], -_from_middle(grid, tried[place][0]), -place))
    values = tried[best][0]
    at_end = tuple(key for key, value in values.items() if _is_end(grid[key], value))
    return Choice(values, at_end, tried)


def slug_of(values: Values) -> str:
    """What the folder of a cell with these values has in its name."""
    text = " ".join(f"{key.partition('.')[2]} {value}" for key, value in values.items())
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _from_middle(grid: Grid, values: Values) -> float:
    return sum(abs(grid[key].index(value) - (len(grid[key]) - 1) / 2) for key, value in values.items())


def _is_end(values: tuple[Any, ...], value: Any) -> bool:
    return len(values) > 1 and all(map(_is_number, values)) and value in (values[0], values[-1])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
