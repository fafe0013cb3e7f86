"""What may change when a run goes on, and what may not.

What may not would give another result than the settings say, or a state that the method cannot go on from: the data,
the model, the method, the seed. docs/operating.md shows this list; a test holds the two together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from bouquet.common.errors import BouquetError

MAY_CHANGE = {
    "run.name": "the report's title",
    "run.rounds": "not below the rounds that are done: a finished run goes on for more",
    "run.patience": "when it ends before that",
    "data.data_dir": "the data were moved",
    "model.weights": "the file was moved: its content may not change, and is kept in the run folder",
    "train.budget": "how many steps each device does",
    "train.device": "where devices train",
    "train.threads": "how many cores they use",
    "train.mixed_precision": "what a GPU computes in",
    "personal.compare": "whether devices also train a model alone",
    "server.tags": "which devices take part",
    "server.min_clients": "a device died, or one was added",
    "server.min_replies": "likewise",
    "server.wait_for_clients": "how long the server waits",
    "server.round_timeout": "how long a round may take",
    "server.straggler_grace": "how long it waits for the last ones",
    "server.evaluate_every": "how often all devices are tested",
    "server.fraction_evaluate": "or not all of them",
    "server.new_samples": "when devices work in an endless run",
    "server.buffer": "how many replies end a round",
    "simulation.*": "the engine, and what it may use",
}


def fixed(content: Mapping[str, Any]) -> dict[str, Any]:
    """``section.key`` → value of the settings that may not change, from settings as nested JSON."""
    return {
        f"{section}.{key}": value
        for section, values in sorted(content.items())
        if f"{section}.*" not in MAY_CHANGE
        for key, value in sorted(values.items())
        if f"{section}.{key}" not in MAY_CHANGE
    }


def fingerprint(content: Mapping[str, Any]) -> str:
    """A hash of everything that may not change."""
    return hashlib.sha256(json.dumps(fixed(content), sort_keys=True).encode()).hexdigest()[:16]


def check_continues(old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> None:
    """Raise `BouquetError` with key, old and new value of every setting that differs and may not."""
    changes = list(_changes(fixed(old), fixed(new)))
    if changes:
        raise BouquetError(
            f"The run in {where} cannot go on with other settings: {'; '.join(changes)}. Set them back, or begin a new "
            f"run (another --out). What may change: {', '.join(MAY_CHANGE)}."
        )


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted(set(old) | set(new)):
        before, after = old.get(key), new.get(key)
        # A key that only one release of Bouquet knows, or a hyper-parameter that is left at its default, is not there.
        if before != after:
            yield f"{key} was {_shown(old, key)}, now {_shown(new, key)}"


def _shown(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False) if key in values else "not set"
