"""The file of `bouquet compare`: a grid of strategies × data × partitions × seeds, each cell a run of its own.

The format: docs/comparing.md. A cell's settings are the base, then the data, the partition and the strategy laid over
it, then its seed. A row that differs from another only in what is tested is read from the same cells, unless each has
values of its own chosen for it (`experiments.comparison.tuning`).
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.errors import BouquetError
from common.settings import Settings, SettingsError, parse_settings
from common.settings.sections import DataSettings
from common.task.score import Score
from common.task.task import task_of
from experiments.comparison.measures import Metric, parse_metric
from experiments.comparison.paper_figures import PaperFigures
from experiments.comparison.tuning_grids import Choice, Grid, Tune, TuneSection, parse_grid, read_tune, tuning_table
from experiments.simulation.own_data import one_client_a_folder
from strategies.registry import create_strategy

STANDARD_ROWS: tuple[Mapping[str, Any], ...] = (
    {"label": "Standalone", "name": "standalone"},
    {"label": "FedAvg", "name": "fedavg"},
    {"label": "FedAvg, after local training", "name": "fedavg", "tested": "trained"},
    {"label": "FedPer", "name": "fedper"},
    {"label": "Ditto", "name": "ditto"},
)
Tested = Literal["method", "trained"]
Check = Callable[[Settings], object]
Seed = Annotated[int, Field(ge=0)]


class TableError(BouquetError):
    """A table file that is not what it should be."""


@dataclass(frozen=True)
class Entry:
    """One strategy, data set or partition of the grid: its label and what it sets, as ``section.key`` → value."""

    label: str
    overrides: Mapping[str, Any]
    tested: Tested = "method"
    grid: Grid = field(default_factory=dict)  # of its own, beside that of all rows


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
class Table:
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
    choices: Mapping[tuple[str, str], Choice] = field(default_factory=dict)
    claims: tuple[str, ...] = ()

    @property
    def score(self) -> Score:
        """The figure that its runs are judged by."""
        return task_of(self.cells[0].settings).score

    def row(self, label: str) -> Row:
        """The row of a label."""
        return next(row for row in self.rows if row.label == label)

    def part(self, rows: Sequence[str] = (), columns: Sequence[str] = (), seeds: Sequence[int] = ()) -> frozenset[str]:
        """The slugs of the cells that some rows, columns and seeds are read from; of an empty one, all.

        Raises `TableError` for what the table does not have.
        """
        for kind, asked, known in (
            ("row", rows, tuple(row.label for row in self.rows)),
            ("column", columns, self.data),
            ("seed", seeds, self.seeds),
        ):
            for one in asked:
                if one not in known:
                    raise TableError(f"The table {self.name} has no {kind} {one!r}; it has {_listed(known)}.")
        strategies = {self.row(label).cells for label in rows or self.strategies}
        data, numbers = columns or self.data, seeds or self.seeds
        wanted = (cell for cell in self.cells if cell.data in data and cell.seed in numbers)
        return frozenset(cell.slug for cell in wanted if cell.strategy in strategies)

    def narrowed(self, rows: Sequence[str], columns: Sequence[str], seeds: Sequence[int]) -> Table:
        """The table of these rows, columns and seeds alone, of an empty one all; without what a paper reports."""
        kept = self.part(rows, columns, seeds)
        data = tuple(one for one in self.data if one in (columns or self.data))
        panels = {name: {c: label for c, label in found.items() if c in data} for name, found in self.panels.items()}
        return replace(
            self,
            seeds=tuple(one for one in self.seeds if one in (seeds or self.seeds)),
            strategies=tuple(one for one in self.strategies if one in (rows or self.strategies)),
            data=data,
            cells=tuple(cell for cell in self.cells if cell.slug in kept),
            rows=tuple(row for row in self.rows if not rows or row.label in rows),
            claims=tuple(row for row in self.claims if not rows or row in rows),
            paper=(),
            panels={name: found for name, found in panels.items() if found},
        )


class _File(BaseModel):
    """The file as it is written; entries are checked one by one afterwards."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(min_length=1)
    seeds: list[Seed] = Field([0], min_length=1)
    metrics: list[str] = Field(["accuracy_macro"], min_length=1)
    base: dict[str, dict[str, Any]] = {}
    strategy: list[dict[str, Any]] = Field(min_length=1)
    data: list[dict[str, Any]] = Field(min_length=1)
    partition: list[dict[str, Any]] = []
    rows: Literal["standard", "given"] = "given"
    claims: list[str] = []
    paper: list[PaperFigures] = []
    tune: TuneSection | None = None


def check_strategy(settings: Settings) -> None:
    """Build the strategy, which does no work, to find an unknown name or hyper-parameter before anything runs."""
    create_strategy(settings.strategy.name, settings.strategy.options)


def load_table(path: Path, check: Check = check_strategy) -> Table:
    """Read and validate a table file.

    ``check`` is called with the settings of every cell and raises `BouquetError` where something does not fit.
    Raises `TableError`, which names the file, the entry, the key and what is allowed.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TableError(f"The table {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TableError(f"The table {path} is not valid TOML: {error}.") from None
    try:
        return _build(_File.model_validate(content), check)
    except ValidationError as error:
        raise TableError(f"{path}: {' '.join(_explain(item) for item in error.errors())}") from None
    except BouquetError as error:
        raise TableError(f"{path}: {error}") from None


def _build(file: _File, check: Check) -> Table:
    if repeated := _repeated(file.seeds):
        raise TableError(f"seeds holds {repeated[0]} twice.")
    metrics = tuple(parse_metric(text) for text in file.metrics)
    base = _base(file.base)
    strategies = _strategies(file)
    divisions = [_entry("partition", entry, _partition_label) for entry in file.partition]
    data = [_entry("data", entry, _data_label if divisions else _whole_label) for entry in file.data]
    for kind, entries in (("strategy", strategies), ("data", data), ("partition", divisions)):
        if repeated := _repeated(entry.label for entry in entries):
            raise TableError(f"Two [[{kind}]] have the label {repeated[0]!r}; give each a label of its own.")
    columns = [_joined(one, division) for one in data for division in divisions] if divisions else data
    rows = _rows(strategies)
    tune = read_tune(file.tune, file.seeds, strategies, columns, {row.label: row.cells for row in rows})
    if tune is not None:
        rows = [replace(row, cells=row.label) for row in rows]
    if unknown := [label for label in file.claims if label not in {row.label for row in rows}]:
        raise TableError(
            f"claims holds {unknown[0]!r}, which is no row; the rows are {_listed(r.label for r in rows)}."
        )
    if repeated := _repeated(file.claims):
        raise TableError(f"claims holds {repeated[0]!r} twice.")
    for figures in file.paper:
        figures.check([row.label for row in rows], [column.label for column in columns])
    slugs: dict[str, tuple[str, str]] = {}
    grid = []
    for seed in file.seeds:
        for column in columns:
            for strategy in (one for one, row in zip(strategies, rows, strict=True) if row.cells == row.label):
                slug = f"{_slug(strategy.label)}-{_slug(column.label)}-s{seed}"
                if slug in slugs:
                    raise TableError(
                        f"The cells {slugs[slug]} and {(strategy.label, column.label)} would both be kept in the "
                        f"folder {slug!r}; make the labels differ in a letter or digit."
                    )
                slugs[slug] = (strategy.label, column.label)
                overrides = {**column.overrides, **strategy.overrides, "run.seed": seed, "run.name": slug}
                where = f"strategy {strategy.label!r}, data {column.label!r}"
                settings = _settings(base, overrides, where, check)
                grid.append(Cell(strategy.label, column.label, seed, slug, settings))
    table = Table(
        file.name,
        tuple(file.seeds),
        metrics,
        tuple(entry.label for entry in strategies),
        tuple(entry.label for entry in columns),
        tuple(grid),
        tuple(rows),
        tuple(file.paper),
        {division.label: {_joined(one, division).label: one.label for one in data} for division in divisions}
        or {"": {one.label: one.label for one in data}},
        tune,
        claims=tuple(file.claims),
    )
    scores = {task_of(cell.settings).score for cell in table.cells}
    if len(scores) > 1:
        named = _listed(sorted({score.of("macro") for score in scores}))
        raise TableError(f"The columns are judged by {named}; a table has one task, so make a file of each.")
    if tune is not None:
        tuning_table(table, check)
    return table


def missing_rows(table: Table) -> list[str]:
    """The standard rows that a table does not have, by what they run and test."""
    names = {
        cell.strategy: cell.settings.strategy.name for cell in table.cells if cell.settings.personal.serve == "own"
    }
    there = {(names.get(row.cells), row.tested) for row in table.rows}
    return [str(r["label"]) for r in STANDARD_ROWS if (r["name"], r.get("tested", "method")) not in there]


def _strategies(file: _File) -> list[Entry]:
    """The rows as given, after the standard ones that are asked for and not among them."""
    given = [_strategy(entry) for entry in file.strategy]
    if file.rows == "given":
        return given
    there = [(entry.overrides, entry.tested) for entry in given]
    standard = [_strategy(row) for row in STANDARD_ROWS]
    return [*(e for e in standard if (e.overrides, e.tested) not in there), *given]


def _rows(strategies: list[Entry]) -> list[Row]:
    """Each row with the one whose cells it reads: one of the same settings that tests what the method does."""
    rows = []
    for entry in strategies:
        alike = (e for e in strategies if (e.overrides, e.grid) == (entry.overrides, entry.grid))
        same = (e.label for e in alike if e.tested == "method")
        rows.append(
            Row(entry.label, next(same, entry.label) if entry.tested != "method" else entry.label, entry.tested)
        )
    return rows


def _base(sections: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    if "strategy" in sections:
        raise TableError("[base.strategy] does not exist; give each strategy and its options in a [[strategy]].")
    for key in ("seed", "name"):
        if key in sections.get("run", {}):
            raise TableError(f"base.run.{key} cannot be set: the grid gives every cell its own ('seeds', labels).")
    try:
        parse_settings(sections, {})
    except SettingsError as error:
        raise TableError(f"[base] {error}") from None
    return sections


def _strategy(content: Mapping[str, Any]) -> Entry:
    options = {key: value for key, value in content.items() if key not in ("label", "set", "tested", "tune")}
    if not isinstance(options.get("name"), str):
        raise TableError(f"A [[strategy]] has name = {options.get('name')!r}, expected a strategy such as 'fesem'.")
    label = _label("strategy", content, options["name"])
    tested = content.get("tested", "method")
    if tested not in get_args(Tested):
        raise TableError(
            f"[[strategy]] {label!r} has tested = {tested!r}, expected one of {', '.join(get_args(Tested))}."
        )
    overrides = {f"strategy.{key}": value for key, value in options.items()}
    grid = parse_grid(f"[[strategy]] {label!r}: tune", content["tune"]) if "tune" in content else {}
    return Entry(label, {**_set("strategy", label, content), **overrides}, tested, grid)


def _entry(kind: str, content: Mapping[str, Any], default: Callable[[Mapping[str, Any]], str]) -> Entry:
    """A [[data]] or a [[partition]]: both hold keys of the section ``data``."""
    keys = {key: value for key, value in content.items() if key not in ("label", "set")}
    label = _label(kind, content, default(keys))
    for key in keys:
        if key not in DataSettings.model_fields:
            allowed = ", ".join(["label", "set", *DataSettings.model_fields])
            raise TableError(f"Unknown key {key!r} in [[{kind}]] {label!r}; it may have {allowed}.")
    return Entry(label, {**_set(kind, label, content), **{f"data.{key}": value for key, value in keys.items()}})


def _label(kind: str, content: Mapping[str, Any], default: str) -> str:
    label = content.get("label", default)
    if not isinstance(label, str) or not _slug(label) or len(label.splitlines()) > 1:
        raise TableError(f"A [[{kind}]] has label = {label!r}, expected a line with at least one letter or digit.")
    return label


def _set(kind: str, label: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides of other sections; ``run.seed`` and ``run.name`` are the grid's own."""
    overrides = content.get("set", {})
    if not isinstance(overrides, Mapping) or any(isinstance(value, Mapping) for value in overrides.values()):
        raise TableError(
            f'[[{kind}]] {label!r} has set = {overrides!r}; quote the keys: set = {{ "train.local_epochs" = 1 }}.'
        )
    for key in ("run.seed", "run.name"):
        if key in overrides:
            raise TableError(f"[[{kind}]] {label!r} sets {key}: the grid gives every cell its own ('seeds', labels).")
    return dict(overrides)


def _settings(base: Mapping[str, Any], overrides: Mapping[str, Any], where: str, check: Check) -> Settings:
    try:
        settings = parse_settings(base, overrides)
        if Path(settings.data.data_dir).is_dir():  # else it is said when the cell is run
            settings = one_client_a_folder(settings)
        check(settings)
    except BouquetError as error:
        raise TableError(f"{where}: {error}") from None
    return settings


def _joined(data: Entry, partition: Entry) -> Entry:
    return Entry(f"{data.label}, {partition.label}", {**data.overrides, **partition.overrides})


def _data_label(keys: Mapping[str, Any]) -> str:
    return str(keys.get("dataset", Settings().data.dataset))


def _partition_label(keys: Mapping[str, Any]) -> str:
    return str(keys.get("partition", Settings().data.partition))


def _whole_label(keys: Mapping[str, Any]) -> str:
    return f"{_data_label(keys)}, {_partition_label(keys)}"


def _slug(label: str) -> str:
    """Lower-case letters and digits, everything else a hyphen: ``FeSEM (4)`` → ``fesem-4``."""
    plain = unicodedata.normalize("NFKD", label).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")


def _repeated(values: Iterable[Any]) -> list[Any]:
    seen: set[Any] = set()
    return [value for value in values if value in seen or seen.add(value)]  # type: ignore[func-returns-value]


def _explain(item: Any) -> str:
    """One sentence for what pydantic found in the file's own keys and those of a [[paper]]."""
    key = ".".join(str(part) for part in item["loc"])
    what, fields = ("a table", _File.model_fields)
    if item["loc"][0] == "paper" and len(item["loc"]) > 1:
        what, fields = ("a [[paper]]", PaperFigures.model_fields)
    allowed = ", ".join(fields)
    if item["loc"][0] == "tune" and len(item["loc"]) > 1:
        what, allowed = ("[tune]", "seeds and, in quotes, settings with their values")
    if item["type"] == "extra_forbidden":
        return f"Unknown key {key!r}; {what} has {allowed}."
    if item["type"] == "missing":
        return f"The key {key!r} is missing; {what} has {allowed}."
    message = item["msg"]
    return f"{key} = {item['input']!r}: {message[0].lower()}{message[1:]}."


def _listed(values: Iterable[object]) -> str:
    return ", ".join(repr(value) for value in values)
