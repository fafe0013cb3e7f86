"""Giving a cluster a model of before again, from the next round on, when its owner asks for it."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from bouquet.common.errors import BouquetError
from bouquet.common.system.files import write_json
from bouquet.server.record.versions import Version, versions
from bouquet.server.run_folder import ROLLBACK
from bouquet.strategies.base.strategy import MethodStrategy


def ask_to_roll_back(run: Path, cluster: int, name: str | None = None) -> Version:
    """Have the next round begin with a version as this cluster's model; without a ``name`` the last but one of it.

    Raises `BouquetError` where there is no such version or cluster, or the version is damaged.
    """
    kept = versions(run)
    wanted = [v for v in kept if v.name == name] if name else [v for v in kept if v.cluster == cluster][-2:-1]
    if not wanted:
        what = f"version {name}" if name else f"version of cluster {cluster} before its last"
        raise BouquetError(f"There is no {what}; {run} keeps {', '.join(v.name for v in kept) or 'none'}.")
    now = [v.cluster for v in kept if v.round == kept[-1].round]
    if cluster not in now:
        raise BouquetError(f"There is no cluster {cluster}; the last round of {run} has {', '.join(map(str, now))}.")
    _read(wanted[0])
    write_json(run / ROLLBACK, {**_asked(run), str(cluster): wanted[0].name})
    return wanted[0]


def roll_back(run: Path, strategy: MethodStrategy[Any]) -> list[str]:
    """Do before a round what was asked for; for each cluster a sentence that says so, or why it cannot be."""
    if strategy.state is None or not (run / ROLLBACK).exists():
        return []
    kept, said = {version.name: version for version in versions(run)}, []
    for cluster, name in _asked(run).items():
        try:
            if name not in kept:
                raise BouquetError(f"There is no version {name} any more.")
            _give(strategy, int(cluster), _read(kept[name]))
            said.append(f"Cluster {cluster} has its version {name} again.")
        except BouquetError as error:
            said.append(f"Cluster {cluster} was to be rolled back, which cannot be done: {error}")
    (run / ROLLBACK).unlink()
    return said


def _asked(run: Path) -> dict[str, str]:
    """Cluster → version, as `ask_to_roll_back` wrote them since the last round."""
    try:
        return {str(int(cluster)): str(name) for cluster, name in json.loads((run / ROLLBACK).read_bytes()).items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _read(version: Version) -> dict[str, NDArray[Any]]:
    try:
        return load_file(version.path)
    except (OSError, SafetensorError) as error:
        raise BouquetError(f"The model {version.path} cannot be read ({error}).") from None


def _give(strategy: MethodStrategy[Any], cluster: int, tensors: dict[str, NDArray[Any]]) -> None:
    state: Any = strategy.state
    layout = strategy.layout
    if layout is None or "centers" not in {field.name for field in fields(state)}:
        raise BouquetError(f"{type(strategy).__name__} keeps no model of a cluster.")
    if cluster >= len(state.centers):
        raise BouquetError(f"There is no cluster {cluster} any more.")
    centers = state.centers.copy()
    centers[cluster] = layout.flatten(tensors)
    strategy.state = replace(state, centers=centers)
