"""What the other end of the wire says, made fit for a log, a record, a page and a terminal.

A device's error, its name or its release is anything that whoever holds its key can think of: as long as a message may
be, with line breaks that make a second line of a log, or with escape characters that a terminal obeys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

LONGEST = 300  # characters
MOST_VALUES = 100  # in what a device says of itself, and in a list of texts there
TAG = re.compile(r"[\w.-]{1,40}")  # of a device, by its owner
MOST_TAGS = 20
# C0 and C1, marks that turn the direction of writing, separators of lines and paragraphs, halves of a character.
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"  # not tab, not line feed
)
ENDLESS = 10**9  # rounds of a run without an end


def of_rounds(total: int) -> str:
    """`` of 40``; nothing of a run without an end."""
    return f" of {total}" if total < ENDLESS else ""


def plain(text: str, longest: int = LONGEST) -> str:
    """The text on one line without what steers a terminal, and cut to so many characters, which a … then ends."""
    head = text[: 4 * longest]
    shown = " ".join(CONTROLS.sub(" ", head).split())
    return shown if len(shown) <= longest and len(head) == len(text) else shown[: longest - 1] + "…"


def printable(text: str) -> str:
    """The text with what no terminal or file takes escaped: controls, and bytes of a file's name that are no text."""
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def tags_of(said: object) -> frozenset[str]:
    """A device's tags, of what it says that they are: whatever is none is left out."""
    given = said if isinstance(said, list) else []
    return frozenset(tag for tag in given[:MOST_TAGS] if isinstance(tag, str) and TAG.fullmatch(tag))


def plain_values(said: Mapping[str, Any]) -> dict[str, Any]:
    """What a device says by key, its keys and texts `plain`, and no more than `MOST_VALUES` of them."""
    return {plain(key): _plain_value(value) for key, value in islice(said.items(), MOST_VALUES)}


def _plain_value(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list) and value and isinstance(value[0], str):  # Flower's lists are of one type
        return [plain(text) for text in value[:MOST_VALUES]]
    return value


def setting_of(settings: Mapping[str, object], key: str) -> object:
    """A setting ``section.key`` in a run's settings as they came, whatever was sent; '' where it is not there."""
    section, _, name = key.partition(".")
    values = settings.get(section)
    return values.get(name, "") if isinstance(values, Mapping) else ""
