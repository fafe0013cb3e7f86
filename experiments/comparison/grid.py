"""The file of `bouquet compare`: a grid of strategies × data × partitions × seeds, each cell a run of its own.

The format: docs/comparing.md. A cell's settings are the base, then the data, the partition and the strategy laid over
it, then its seed. A row that differs from another only in what is tested is read from the same cells, unless each has
values of its own chosen for it (`bouquet.experiments.comparison.tuning`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bouquet.common.errors import BouquetError
from bouquet.common.nearest import nearest
from bouquet.common.settings import Settings, SettingsError, parse_settings
from bouquet.common.settings.sections import DataSettings
from bouquet.common.system.files import read_toml
from bouquet.common.task.task import task_of
from bouquet.experiments.comparison.measures import parse_metric
from bouquet.experiments.comparison.paper_figures import PaperFigures
from bouquet.experiments.comparison.table import (
    STANDARD_ROWS,
    Cell,
    Check,
    ComparisonTable,
    Row,
    TableError,
    listed,
    tuning_table,
)
from bouquet.experiments.comparison.tuning_grids import Entry, Tested, TuneSection, parse_grid, read_tune
from bouquet.experiments.simulation.own_data import one_client_a_folder
from bouquet.strategies.registry import create_strategy

Seed = Annotated[int, Field(ge=0)]


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


def load_table(path: Path, check: Check = check_strategy) -> ComparisonTable:
    """Read and validate a table file.

    ``check`` is called with the settings of every cell and raises `BouquetError` where something does not fit.
    Raises `TableError`, which names the file, the entry, the key and what is allowed.
    """
    try:
        content = read_toml(path, "The table")
    except BouquetError as error:
        raise TableError(str(error)) from None
    try:
        return make_table(content, check)
    except BouquetError as error:
        raise TableError(f"{path}: {error}") from None


def make_table(content: Mapping[str, Any], check: Check = check_strategy) -> ComparisonTable:
    """As `load_table`, of what a file holds. Raises `BouquetError`."""
    try:
        return _build(_File.model_validate(content), check)
    except ValidationError as error:
        raise TableError(" ".join(_explain(item) for item in error.errors())) from None


def _build(file: _File, check: Check) -> ComparisonTable:
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
            f"claims holds {unknown[0]!r}, which is no row; {nearest(repr(unknown[0]), (repr(r.label) for r in rows))}."
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
    table = ComparisonTable(
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
        named = listed(sorted({score.of("macro") for score in scores}))
        raise TableError(f"The columns are judged by {named}; a table has one task, so make a file of each.")
    if tune is not None:
        tuning_table(table, check)
    return table


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
    # A table tells what methods give, not what a fleet would make of their models.
    return {**sections, "personal": {"serve": "own", "compare": False, **sections.get("personal", {})}}


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
