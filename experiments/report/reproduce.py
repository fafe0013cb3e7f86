"""The settings of a run as its page shows them, and the command that runs them again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from bouquet.common.settings import Settings, parse_settings
from bouquet.common.settings.sections import OWN_DATA

SHORT_OPTIONS = {
    "strategy.name": "--strategy",
    "data.dataset": "--dataset",
    "data.data_dir": "--data-dir",
    "data.partition": "--partition",
    "data.clients": "--clients",
    "data.groups": "--groups",
    "model.name": "--model",
    "run.rounds": "--rounds",
    "run.seed": "--seed",
}
ALWAYS_SHOWN = ("strategy.name", "data.dataset", "data.partition", "data.clients", "run.rounds", "run.seed")


def settings_rows(settings: Settings) -> list[tuple[str, list[tuple[str, str]]]]:
    """The settings as ``section.key`` and value: those that were chosen, then those that have their defaults."""
    defaults = _flat(Settings())
    chosen: list[tuple[str, str]] = []
    untouched: list[tuple[str, str]] = []
    for key, value in _flat(settings).items():
        if key == "data.partition" and _on_devices(settings):
            continue  # nobody divides what devices have
        (untouched if _is_default(key, value, defaults) else chosen).append((key, _text(value) or "(empty)"))
    return [("chosen for this run", chosen), ("at their defaults", untouched)]


def reproduce(settings: Settings, folder: Path) -> dict[str, str]:
    """The command that runs the same settings again, and a sentence that says so."""
    if _on_devices(settings):
        command = ["bouquet", "server", *arguments(settings, short=False)]
        text = "The devices trained on data of their own, which only they have. With the devices connected again:"
    else:
        command = ["bouquet", "simulate", *arguments(settings), "--out", f"{folder.name or 'run'}-again"]
        text = "The same settings and seed give the same summary.json, seconds apart:"
    return {"text": text, "command": shlex.join(command)}


def arguments(settings: Settings, short: bool = True) -> list[str]:
    """Command line arguments that `bouquet.common.settings.load_settings` reads back as these very settings."""
    defaults, values = _flat(Settings()), _flat(settings)
    words: list[str] = []
    for key in [*SHORT_OPTIONS, *(key for key in values if key not in SHORT_OPTIONS)]:
        if _is_default(key, values[key], defaults) and not (short and key in ALWAYS_SHOWN):
            continue
        if short and key in SHORT_OPTIONS:
            words += [SHORT_OPTIONS[key], _text(values[key])]
        else:
            words += ["--set", f"{key}={_as_setting(settings, key, values[key])}"]
    return words


def _on_devices(settings: Settings) -> bool:
    """Whether the data are the devices' own, which this machine does not have."""
    return settings.data.dataset == OWN_DATA and not settings.data.data_dir


def _flat(settings: Settings) -> dict[str, Any]:
    """``section.key`` → value, as JSON has it."""
    content = settings.model_dump(mode="json")
    return {f"{section}.{key}": value for section, values in content.items() for key, value in values.items()}


def _is_default(key: str, value: Any, defaults: dict[str, Any]) -> bool:
    return key in defaults and defaults[key] == value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _as_setting(settings: Settings, key: str, value: Any) -> str:
    """The text from which ``--set`` reads this very value: bare where that is enough, else as JSON."""
    bare = _text(value)
    section, _, name = key.partition(".")
    read = parse_settings(settings.model_dump(), {key: bare}).model_dump(mode="json")
    return bare if read[section][name] == value else json.dumps(value)
