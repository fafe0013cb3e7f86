"""Checkpoints: the strategy's state after each round, numbered, whole or not there at all.

Each is a folder with the arrays, the rest, and ``SHA256SUMS`` of both (``sha256sum -c SHA256SUMS`` checks it). One that
a disk has damaged is passed over for the one before.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.common.logger import log
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout, contiguous
from bouquet.common.system.files import keep_private, temporary_beside, write_atomically

VERSION = 1  # of the format
KEPT = 2
SUMS = "SHA256SUMS"
ARRAYS_FILE, REST_FILE = "state.safetensors", "state.json"
_NAME = re.compile(r"round-(\d{6})")


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on after a round."""

    round: int
    run_id: str
    fingerprint: str
    strategy: str
    layout: ParameterLayout
    arrays: dict[str, NDArray[Any]]
    state: dict[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int = KEPT) -> Path:
    """Write ``folder/round-NNNNNN`` and drop all but the last ``keep``.

    The folder gets its name by a rename once everything in it is on the disk.
    """
    target = folder / f"round-{checkpoint.round:06d}"
    arrays = {name: contiguous(array) for name, array in checkpoint.arrays.items()}
    content = {
        "version": VERSION,
        "round": checkpoint.round,
        "run_id": checkpoint.run_id,
        "fingerprint": checkpoint.fingerprint,
        "strategy": checkpoint.strategy,
        "layout": checkpoint.layout.to_json(),
        "state": checkpoint.state,
    }
    files = {ARRAYS_FILE: save(arrays), REST_FILE: json.dumps(content).encode()}
    files[SUMS] = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()).encode()
    temporary = temporary_beside(target)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        keep_private(folder)  # with some methods each device's own model is in it
        for name, data in files.items():
            write_atomically(temporary / name, data)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(temporary, target)
    except OSError as error:
        raise BouquetError(f"The checkpoint {target} cannot be written: {error.strerror}.") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for old in _rounds(folder)[:-keep]:
        shutil.rmtree(folder / f"round-{old:06d}", ignore_errors=True)
    return target


def load_checkpoint(folder: Path, fingerprint: str) -> Checkpoint | None:
    """The latest checkpoint that is whole, or None where there is none at all.

    What is damaged is said in the log. Raises `BouquetError` when all are, and for one that was written with settings
    that give another result, or by a release that writes them in another way.
    """
    rounds = _rounds(folder)
    damaged: list[str] = []
    for number in reversed(rounds):
        path = folder / f"round-{number:06d}"
        try:
            checkpoint = _read(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            damaged.append(f"{path.name} ({error})")
            log(WARNING, "The checkpoint %s is damaged (%s): going on from the one before.", path, error)
            continue
        if checkpoint.fingerprint != fingerprint:
            raise BouquetError(
                f"The checkpoint {path} was written with other settings (see settings.json beside it): "
                "resume with those, or start a new run."
            )
        return checkpoint
    if damaged:
        raise BouquetError(f"No checkpoint in {folder} is whole: {', '.join(damaged)}. Start a new run.")
    return None


def _read(path: Path) -> Checkpoint:
    """A checkpoint, if it is as it was written."""
    files = {name: (path / name).read_bytes() for name in (ARRAYS_FILE, REST_FILE)}
    lines = [line.split() for line in (path / SUMS).read_text(encoding="ascii").splitlines()]
    sums = {name: digest for digest, name in lines}
    for name, data in files.items():
        if sums.get(name) != hashlib.sha256(data).hexdigest():
            raise ValueError(f"{name} is not what was written")
    content = json.loads(files[REST_FILE])
    if content["version"] != VERSION:
        raise BouquetError(
            f"The checkpoint {path} has version {content['version']}; this release of Bouquet reads version {VERSION}."
        )
    return Checkpoint(
        round=int(content["round"]),
        run_id=content["run_id"],
        fingerprint=content["fingerprint"],
        strategy=content["strategy"],
        layout=ParameterLayout.from_json(content["layout"]),
        arrays=load(files[ARRAYS_FILE]),
        state=content["state"],
    )


def _rounds(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(match[1]) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name)))
