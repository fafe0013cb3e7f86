"""The models that a fleet was sent, round by round: ``bouquet models`` lists them, a cluster is rolled back to one.

Version 7.0 is what the devices of cluster 0 are sent in round 7: a file in ``models/versions``, of which the SHA-256 is
its digest. What else there is to say of it is in the record: its score in the line of round 7, and in later lines which
devices still use what they made of it. Every one of the last `RECENT` rounds is kept, of those before them every second
one, then every fourth and so on, and of all together at most `MOST_BYTES`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import load

from bouquet.common.task.score import ACCURACY, Score
from bouquet.server.record.writer import RunRecord, write_looks, write_models
from bouquet.server.run_folder import VERSIONS
from bouquet.strategies.base.strategy import MethodStrategy

RECENT = 16
MOST_BYTES = 2**30
_NAME = re.compile(r"(\d{6,})-(\d+)\.safetensors")


@dataclass(frozen=True, order=True)
class Version:
    """A cluster's model of a round, and its file."""

    round: int
    cluster: int
    path: Path

    @property
    def name(self) -> str:
        """``7.0``."""
        return f"{self.round}.{self.cluster}"


def versions(run: Path) -> list[Version]:
    """What a run folder keeps, the oldest first."""
    found = ((_NAME.fullmatch(path.name), path) for path in (run / VERSIONS).glob("*.safetensors"))
    return sorted(Version(int(name[1]), int(name[2]), path) for name, path in found if name)


def save_versions(run: Path, strategy: MethodStrategy[Any], round_: int) -> None:
    """Write what is sent in a round, before it is, and drop what is no longer kept. Raises `BouquetError`."""
    for version in versions(run):
        if version.round >= round_ or (round_ - version.round >= RECENT and _is_passed(version.round, round_)):
            version.path.unlink(missing_ok=True)
    write_models(run / VERSIONS, strategy, lambda cluster: f"{round_:06d}-{cluster}.safetensors")
    write_looks(run, strategy)
    kept = versions(run)
    size = sum(version.path.stat().st_size for version in kept)
    for version in kept:
        if size <= MOST_BYTES or version.round == round_:
            break
        size -= version.path.stat().st_size
        version.path.unlink()


def _is_passed(round_: int, now: int) -> bool:
    """Whether an older round is none of every second, fourth … one."""
    return bool(round_ % (1 << ((now - round_) // RECENT).bit_length()))


def listed(run: Path) -> list[dict[str, Any]]:
    """The versions of a run for who asks, with digest, score (None where nobody reported one) and devices.

    ``devices`` are those that had the cluster before the round, and None where the file is damaged. ``in_use`` names
    those that used what they made of it when they last replied.
    """
    kept, score = versions(run), ACCURACY
    rounds, last = {version.round: dict[str, Any]() for version in kept}, dict[str, int]()
    for line in RunRecord(run).each_round():
        score, said = Score.in_record(line), line.get("by_client") or {}
        if line["round"] in rounds:
            rounds[line["round"]] = said
        last |= {client: numbers.get("in_use", line["round"]) for client, numbers in said.items()}
    described = []
    for version in kept:
        with suppress(FileNotFoundError):  # a run that goes on has dropped it
            described.append(_described(version, version.path.read_bytes(), score, rounds[version.round], last))
    return described


def _described(
    version: Version, content: bytes, score: Score, said: Mapping[str, Mapping[str, Any]], last: Mapping[str, int]
) -> dict[str, Any]:
    clients = _clients(content)
    scores = [said[client][score.key] for client in clients or () if score.key in said.get(client, {})]
    return {
        "version": version.name,
        "round": version.round,
        "cluster": version.cluster,
        "digest": hashlib.sha256(content).hexdigest(),
        score.key: sum(scores) / len(scores) if scores else None,
        "devices": clients,
        "in_use": [client for client in clients or () if last.get(client) == version.round],
    }


def _clients(content: bytes) -> list[str] | None:
    """Whom a version's file names; None where it is damaged."""
    try:
        load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return list(json.loads(header["__metadata__"]["clients"]))
    except (SafetensorError, ValueError, KeyError, TypeError):
        return None
