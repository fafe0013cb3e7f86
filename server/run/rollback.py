"""Giving a cluster a model of before again, from the next round on, when its owner asks for it."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from bouquet.common.errors import BouquetError
from bouquet.common.system.files import write_atomically
from bouquet.server.record.versions import Version, versions
from bouquet.server.run_folder import ROLLBACK
from bouquet.strategies.base.strategy import MethodStrategy


def ask_to_roll_back(run: Path, cluster: int, name: str | None = None) -> Version:
    """Have the next round begin with a version as this cluster's model; without a ``name`` the last but one of it.

    Raises `BouquetError` where there is no such version, or it is damaged.
    """
    kept = versions(run)
    wanted = [v for v in kept if v.name == name] if name else [v for v in kept if v.cluster == cluster][-2:-1]
    if not wanted:
        what = f"version {name}" if name else f"version of cluster {cluster} before its last"
        raise BouquetError(f"There is no {what}; {run} keeps {', '.join(v.name for v in kept) or 'none'}.")
    try:
        content = save(load_file(wanted[0].path), {"cluster": str(cluster), "version": wanted[0].name})
    except (OSError, SafetensorError) as error:
        raise BouquetError(f"The model {wanted[0].path} cannot be read ({error}).") from None
    write_atomically(run / ROLLBACK, content)  # the model itself: until the round it may be dropped from the versions
    return wanted[0]


def roll_back(run: Path, strategy: MethodStrategy[Any]) -> str:
    """Do before a round what was asked for; a sentence that says so, or why it cannot be. Empty where nothing was."""
    path = run / ROLLBACK
    if strategy.state is None or not path.exists():
        return ""
    try:
        with safe_open(path, "np") as file:
            cluster, version = int(file.metadata()["cluster"]), file.metadata()["version"]
        _give(strategy, cluster, load_file(path))
    except (BouquetError, OSError, SafetensorError) as error:
        return f"A cluster was to be rolled back, which cannot be done: {error}"
    finally:
        path.unlink()
    return f"Cluster {cluster} has its version {version} again."


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
