"""The record of a run: what the server writes into ``runs/NAME`` while it trains.

``settings.json``, ``rounds.jsonl`` (one line a round, written when the round is over), ``summary.json``,
``models/`` with a safetensors file per cluster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import save

from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import contiguous
from bouquet.common.settings import Settings
from bouquet.common.settings.resume import check_continues
from bouquet.common.system.files import keep_private, make_folder, sweep, write_atomically, write_json
from bouquet.server import run_folder
from bouquet.server.run_folder import CHECKPOINTS, LOOKS, MODELS, ROUNDS, SETTINGS, SUMMARY, VERSIONS, holds_run
from bouquet.strategies.base.filters.looking import Looking
from bouquet.strategies.base.strategy import MethodStrategy


def holds_rounds(folder: Path) -> bool:
    """Whether a run in this folder has a result, be it that of one round.

    One that ended in its first round has nothing that could be lost, and may be begun anew, with other settings.
    """
    begun = RunRecord(folder)
    finished = bool(begun.rounds()) or (folder / SUMMARY).exists() or any(begun.checkpoints.glob("*"))
    return holds_run(folder) and finished


def check_new(folder: Path) -> None:
    """Raise `BouquetError` when the folder holds a run with a result (`holds_rounds`)."""
    if holds_rounds(folder):
        raise BouquetError(
            f"The run folder {folder} holds a run already: give another --out, remove it, or go on with --resume."
        )


class RunRecord:
    """The folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints lie."""
        return self.folder / CHECKPOINTS

    def create(self, settings: Settings) -> None:
        """Make the folder for a new run; one that holds a run is never overwritten (`check_new`)."""
        check_new(self.folder)
        for name in run_folder.OF_A_FALSE_START:
            (self.folder / name).unlink(missing_ok=True)
        self._make(settings)

    def check_continues(self, settings: Settings) -> None:
        """Raise `BouquetError` where the run in this folder cannot go on with these settings."""
        if old := self.settings():
            check_continues(old, settings.model_dump(mode="json"), str(self.folder))

    def reopen(self, settings: Settings, last_round: int) -> None:
        """Go on with a run: rounds after the checkpoint will be run again, so their lines go."""
        lines = self.rounds()
        self._make(settings)
        (self.folder / SUMMARY).unlink(missing_ok=True)
        kept = [json.dumps(line) for line in lines if line["round"] <= last_round]
        write_atomically(self.folder / ROUNDS, "".join(f"{line}\n" for line in kept).encode())

    def settings(self) -> dict[str, Any]:
        """The settings that the run was begun or last gone on with; empty where that cannot be read."""
        try:
            content = json.loads((self.folder / SETTINGS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def each_round(self) -> Iterator[dict[str, Any]]:
        """The lines written so far; what is none, as a last line that was cut off, is passed over."""
        with suppress(FileNotFoundError, ValueError), (self.folder / ROUNDS).open(encoding="utf-8") as lines:
            yield from (line for line in map(json.loads, lines) if isinstance(line, dict) and "replies" in line)

    def rounds(self) -> list[dict[str, Any]]:
        """All of `each_round`."""
        return [*self.each_round()]

    def add_round(self, line: Mapping[str, Any]) -> None:
        """Append one line and sync it. Raises `BouquetError` where that cannot be done, on a full disk."""
        path = self.folder / ROUNDS
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise BouquetError(f"{path} cannot be written: {error.strerror}.") from None

    def finish(
        self,
        summary: Mapping[str, Any],
        strategy: MethodStrategy[Any],
        frozen: Mapping[str, NDArray[Any]] = MappingProxyType({}),
    ) -> None:
        """Write the models and, last of all, the summary: a run without one did not end.

        ``frozen`` are the tensors that all models share and the strategy knows nothing of.
        """
        write_models(self.folder / MODELS, strategy, lambda cluster: f"cluster-{cluster}.safetensors", frozen)
        write_looks(self.folder, strategy)
        write_json(self.folder / SUMMARY, dict(summary))

    def _make(self, settings: Settings) -> None:
        make_folder(self.folder, "the run folder")
        for folder in (self.folder, self.checkpoints, self.folder / MODELS, self.folder / VERSIONS):
            sweep(folder)
        write_json(self.folder / SETTINGS, settings.model_dump(mode="json"))


def write_models(
    folder: Path,
    strategy: MethodStrategy[Any],
    name: Callable[[int], str],
    frozen: Mapping[str, NDArray[Any]] = MappingProxyType({}),
) -> None:
    """Write each cluster's model, with its clients, and the tensors that all of them share."""
    assert strategy.state is not None
    assert strategy.layout is not None
    make_folder(folder, "the folder of the models")
    keep_private(folder)
    layout, assignment = strategy.layout, strategy.assignment(strategy.state)
    for cluster, center in enumerate(strategy.centers(strategy.state)):
        members = sorted(client for client, k in assignment.items() if k == cluster)
        metadata = {"clients": json.dumps(members)}  # of several entries the order is by chance, and the digest with it
        arrays = {name: contiguous(a) for name, a in {**frozen, **layout.unflatten(center)}.items()}
        write_atomically(folder / name(cluster), save(arrays, metadata))


def write_looks(run: Path, strategy: MethodStrategy[Any]) -> None:
    """Write beside the models what their clusters look like; no file where that is not known."""
    looking = strategy.filter_of(Looking)
    looks = looking.known() if looking else None
    if looks is None:
        (run / LOOKS).unlink(missing_ok=True)
    else:
        write_atomically(run / LOOKS, looks.to_json().encode(), 0o600)
