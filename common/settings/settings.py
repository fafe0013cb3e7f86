"""The settings of a run: one TOML file, ``--set section.key=value`` over it, or Flower's run config.

Every key is validated here, at the edge: `load_settings` reads a file and overrides, `Settings.from_run_config` what
``flwr run`` passes. From there on they are this object, and between processes its JSON.
The hyper-parameters of a strategy are free keys of the section ``strategy``: `bouquet.strategies.registry` checks
them against the constructor of the strategy, so that a new strategy needs no change here.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError, model_validator

from bouquet.common.errors import BouquetError
from bouquet.common.nearest import nearest
from bouquet.common.settings import resume
from bouquet.common.settings.sections import (
    OWN_DATA,
    DataSettings,
    ModelSettings,
    PersonalSettings,
    PrivacySettings,
    ProtectionSettings,
    RunSettings,
    Section,
    ServerSettings,
    SimulationSettings,
    StrategySettings,
    TableSettings,
    TaskSettings,
    TrainSettings,
    WireSettings,
)
from bouquet.common.system.files import read_toml

AS_JSON = "settings"  # key of a run config


class SettingsError(BouquetError):
    """A setting that is unknown, of the wrong type or out of range."""


class Settings(Section):
    """All settings of a run.

    Examples
    --------
    >>> settings = bouquet.Settings()
    >>> settings.strategy.name, settings.train.learning_rate
    ('fesem', 0.05)
    """

    run: RunSettings = RunSettings()
    data: DataSettings = DataSettings()
    task: TaskSettings = TaskSettings()
    table: TableSettings = TableSettings()
    model: ModelSettings = ModelSettings()
    train: TrainSettings = TrainSettings()
    wire: WireSettings = WireSettings()
    strategy: StrategySettings = StrategySettings()
    server: ServerSettings = ServerSettings()
    protection: ProtectionSettings = ProtectionSettings()
    personal: PersonalSettings = PersonalSettings()
    privacy: PrivacySettings = PrivacySettings()
    simulation: SimulationSettings = SimulationSettings()

    @model_validator(mode="after")
    def _fit_together(self) -> Settings:
        """What a task, its data and what devices serve have to do with one another."""
        if problem := next(_misfits(self), None):
            raise SettingsError(problem)
        return self

    def fingerprint(self) -> str:
        """A hash of everything that may not change when a run goes on (`bouquet.common.settings.resume`)."""
        return resume.fingerprint(self.model_dump(mode="json"))

    def with_overrides(self, overrides: Mapping[str, Any]) -> Settings:
        """A copy with ``section.key`` → value replaced, validated anew."""
        return parse_settings(self.model_dump(), overrides)

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> Settings:
        """From Flower's run config, which holds scalars and says so with dotted keys, as ``flwr run`` has it.

        Or from `AS_JSON` alone, whatever else is there: so they come over Bouquet's own service, where the device's
        owner is asked about nothing but what is in that JSON.
        """
        if AS_JSON in config:
            return cls.from_json(config[AS_JSON])
        overrides: dict[str, Any] = {}
        for key, value in config.items():
            if key == "strategy.options":
                try:
                    options = json.loads(value) if value else {}
                except json.JSONDecodeError as error:
                    raise SettingsError(
                        f"Setting strategy.options = {value!r} is not JSON ({error}); "
                        "write e.g. '{\"num_clusters\": 3}'."
                    ) from None
                overrides.update({f"strategy.{name}": option for name, option in options.items()})
            elif "." in key:  # others belong to somebody else
                overrides[key] = value
        return parse_settings({}, overrides)

    @classmethod
    def from_json(cls, text: str | bytes) -> Settings:
        """The inverse of ``model_dump_json``."""
        return parse_settings(json.loads(text), {})


def load_settings(file: Path | str | None, overrides: Iterable[str] = (), **keys: Any) -> Settings:
    """Read a TOML file, then ``section.key=value`` texts, then ``section__key=value`` keywords that are not None.

    Raises `SettingsError`, which names the key, the value and what is allowed.

    Examples
    --------
    >>> bouquet.load_settings(None, ["train.learning_rate=0.1"], run__rounds=3).run.rounds
    3
    >>> try:
    ...     bouquet.load_settings(None, ["run.rounds=0"])
    ... except bouquet.BouquetError as error:
    ...     print(error)
    Setting run.rounds = 0: input should be greater than or equal to 1.
    """
    content: dict[str, Any] = {}
    if file is not None:
        try:
            content = read_toml(Path(file), "The settings file")
        except BouquetError as error:
            raise SettingsError(str(error)) from None
    values: dict[str, Any] = {}
    for text in overrides:
        key, separator, value = text.partition("=")
        if not separator:
            raise SettingsError(f"--set {text!r} has no '='; write section.key=value, e.g. train.local_epochs=5.")
        values[key.strip()] = value.strip()
    values.update({key.replace("__", "."): value for key, value in keys.items() if value is not None})
    return parse_settings(content, values)


def parse_settings(content: Mapping[str, Any], overrides: Mapping[str, Any]) -> Settings:
    """Validate nested ``content`` with ``section.key`` → value laid over it; text is read as the key's type."""
    merged: dict[str, Any] = {
        section: dict(values) if isinstance(values, Mapping) else values for section, values in content.items()
    }
    for dotted, value in overrides.items():
        section, separator, key = dotted.partition(".")
        if not separator or section not in Settings.model_fields:
            raise SettingsError(_unknown(dotted) + " (section.key=value).")
        known = section_class(section).model_fields.get(key)
        parsed = _parse_text(value, None if known is None else known.annotation) if isinstance(value, str) else value
        merged.setdefault(section, {})[key] = parsed
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise SettingsError(_explain(error)) from None


def _misfits(settings: Settings) -> Iterator[str]:
    """What of a task does not fit the rest."""
    data, table, kind = settings.data, settings.table, settings.task.kind
    is_own, has_classes = data.dataset == OWN_DATA, kind == "classification"
    if table.inputs and not is_own:
        yield f"Setting table.inputs is of devices' own tables: it needs data.dataset = 'own', not {data.dataset!r}."
    if data.split == "time" and not is_own:
        yield f"Setting data.split = 'time' needs data.dataset = 'own', photos or an .npz; not {data.dataset!r}."
    if data.split == "time" and table.inputs and not table.time:
        yield "Setting data.split = 'time' needs table.time, the column with a row's time."
    if (table.cut or table.until) and not (table.time or data.split == "time"):
        yield "Setting table.cut or table.until needs table.time, or of photos and .npz data.split = 'time'."
    both = [column for column in table.targets if column in table.inputs]
    if both and kind in ("classification", "regression"):
        yield f"Setting table.targets: {both[0]!r} is in table.inputs, too: the model would see what it is to tell."
    if has_classes:
        if is_own and not (data.classes and (data.input_shape or table.inputs)):
            yield f"Setting data: {data.lacks_description}."
        if table.inputs and len(table.targets) != 1:
            yield f"Setting table.targets = {table.targets!r}: a classification has one column, with the class."
        return
    if not is_own:
        yield (
            f"Setting task.kind = {kind!r} needs data.dataset = 'own', the devices' own tables; {data.dataset!r} has "
            "classes."
        )
    if kind == "anomaly" and table.targets:
        yield "Setting table.targets: task.kind = 'anomaly' reconstructs table.inputs; leave it out."
    if not table.targets and kind != "anomaly":
        yield f"Setting task.kind = {kind!r} needs table.targets, the columns that are to be told."
    if not (table.inputs or data.input_shape):
        yield f"Setting task.kind = {kind!r} needs table.inputs (or data.input_shape, of an .npz)."
    if kind in ("forecast", "anomaly") and not (table.inputs and table.time):
        yield f"Setting task.kind = {kind!r} needs table.inputs and table.time: windows are made by a row's time."
    if data.classes:
        yield f"Setting data.classes: task.kind = {kind!r} has no classes; leave it out."
    if settings.train.class_weights != "none":
        yield f"Setting train.class_weights: task.kind = {kind!r} has no classes; take 'none'."


def section_class(section: str) -> type[BaseModel]:
    """The pydantic class of a section."""
    annotation = Settings.model_fields[section].annotation
    assert isinstance(annotation, type)
    assert issubclass(annotation, BaseModel)
    return annotation


def _parse_text(text: str, annotation: Any) -> Any:
    """A number, truth value or list stays text only where the key wants text."""
    if annotation is str:
        return text
    if text in ("", "none", "None", "null") and annotation is not None and type(None) in get_args(annotation):
        return None
    if get_origin(annotation) is tuple and not text.startswith("["):
        return [_parse_text(part.strip(), get_args(annotation)[0]) for part in text.split(",") if part.strip()]
    for reader in (json.loads, lambda raw: tomllib.loads(f"value = {raw}")["value"]):
        try:
            return reader(text)
        except ValueError:
            continue
    return text


def _unknown(key: str, in_file: bool = False) -> str:
    """What is wrong with a key, or in a file a section, that there is not, and which are like it."""
    section, separator, one_key = key.partition(".")
    every = {name: section_class(name).model_fields for name in Settings.model_fields}
    if in_file and not separator:
        return f"Unknown section {key!r}; {nearest(key, every, 'the sections are')}"
    keys = {f"{name}.{one}": one for name, fields in every.items() for one in fields}
    if elsewhere := [known for known, one in keys.items() if one == (one_key or key)]:
        return f"Unknown setting {key!r}; {nearest(key, elsewhere)}"
    if section in every:
        return f"Unknown setting {key!r}; {nearest(one_key, every[section], f'the section {section!r} has')}"
    return f"Unknown setting {key!r}; {nearest(key, keys, 'the sections are', every)}"


def _explain(error: ValidationError) -> str:
    """One sentence for each problem that pydantic found: key, value, what is allowed."""
    problems = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            problems.append(f"{_unknown(key, in_file=True)}.")
        else:
            message = item["msg"].removeprefix("Value error, ").partition(", unable to ")[0]
            message = message.replace("a valid boolean", "true or false")
            value = item["input"]
            shown = "" if isinstance(value, Mapping) else f" = {value!r}"
            problems.append(f"Setting {key}{shown}: {message[0].lower()}{message[1:]}.")
    return " ".join(problems)
