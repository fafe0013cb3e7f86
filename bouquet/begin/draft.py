"""``bouquet init``: what was seen of a folder of data as settings, and those as a file with comments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bouquet.common.errors import BouquetError

WIDTH = 42  # columns before a comment
RATE_COMMENT = "bouquet try finds the best of three"
INIT_RATE = re.compile(rf"(?m)^learning_rate = \S+ +# {RATE_COMMENT}$")


@dataclass
class Draft:
    """Settings as section → key → value, a comment for some ``section.key``, and what was seen and assumed.

    ``devices`` are the folders, or tables, of the devices; of one device its folder alone. ``samples`` are
    how many each has.
    """

    devices: tuple[Path, ...]
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)

    def set(self, section: str, key: str, value: Any, comment: str = "") -> None:
        """One setting."""
        self.sections.setdefault(section, {})[key] = value
        if comment:
            self.comments[f"{section}.{key}"] = comment


def draft_text(draft: Draft, made_by: str) -> str:
    """The draft as TOML, with comments."""
    name = draft.sections["run"]["name"]
    lines = [f"# {name}.toml, made by {made_by}; every key: python -m bouquet.settings_reference"]
    for section, values in draft.sections.items():
        lines += ["", f"[{section}]"] if len(lines) > 1 else [f"[{section}]"]
        for key, value in values.items():
            lines.append(_line(key, value, draft.comments.get(f"{section}.{key}")))
    return "\n".join(lines) + "\n"


def rate_line(learning_rate: float) -> str:
    """The line with the learning rate, which `bouquet try` writes anew."""
    return _line("learning_rate", learning_rate, RATE_COMMENT)


def _line(key: str, value: Any, comment: str | None) -> str:
    text = f"{key} = {json.dumps(value, ensure_ascii=False)}"
    return f"{text + '  ':<{WIDTH}}# {comment}" if comment else text


def name_of(device: Path) -> str:
    """What a device is called: its folder, or its table without .csv."""
    return device.name if device.is_dir() else device.name.partition(".")[0]


def named(draft: Draft) -> str:
    """The devices in a few words."""
    names = [name_of(device) for device in draft.devices]
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"{len(names)} devices ({shown})" if len(names) > 1 else "one device"


def class_setting(draft: Draft, classes: Iterable[str], comment: str) -> None:
    """The classes, which need two at least."""
    listed = list(classes)
    if len(listed) < 2:
        raise BouquetError(f"There is one class only, {', '.join(listed)}: to tell apart there must be two at least.")
    draft.set("data", "classes", listed, comment)
