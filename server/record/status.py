"""What the server is doing now: ``status.json`` in the run folder, replaced whole whenever that changes.

The record says what was; this says what is, for `bouquet status`, the live page and whoever watches: which devices the
run waits for, which round it is in, when it began and ended.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bouquet.common.errors import BouquetError, RunStopped
from bouquet.common.settings import Settings
from bouquet.common.system.files import write_json
from bouquet.common.trust.code import DISTRIBUTION
from bouquet.server.fleet.names import Names, registered_names
from bouquet.server.run_folder import STATUS, SUMMARY

WAITING, TRAINING, TESTING = "waiting", "training", "testing"
FINISHED, FAILED, STOPPED = "finished", "failed", "stopped"


class Progress:
    """Keeps ``status.json`` of a run, and tells whoever looks what is in it.

    Without ``names`` (a simulation) devices are known by their nodes' numbers.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        names: Names | None = None,
        tell: Callable[[dict[str, Any]], None] = lambda content: None,
    ) -> None:
        self.path = folder / STATUS
        self.names, self.tell = names, tell
        before = read_status(folder)
        self.content: dict[str, Any] = {
            "run": settings.run.name,
            "bouquet": importlib.metadata.version(DISTRIBUTION),
            "state": WAITING,
            "started": before.get("started", time.time()),
            "round": before.get("round", 0),
            "rounds": settings.run.rounds,
            "needed": settings.server.min_clients,
            "connected": [],
            "missing": [],
            "not_now": {},
            "others": {},
        }
        if names is not None and names.registered is not None:
            self.content["registered"] = str(names.registered.absolute())
        if names is not None and names.service is not None:
            self.content["service"] = str(names.service.absolute())

    def say(self, state: str, **changes: Any) -> None:
        """Write the state, and what has changed beside it, with the time; nothing is written where nothing changed."""
        content = {**self.content, "state": state, **changes}
        if content == self.content and self.path.exists():
            return
        self.content = content
        write_json(self.path, {**content, "updated": time.time()})
        self.tell(content)

    def waiting(self, nodes: Iterable[int], others: Mapping[int, str] = MappingProxyType({})) -> str:
        """Say who is connected and who is missing; also in a sentence."""
        self.say(WAITING, **self.look(nodes, others))
        return sentence(self.content)

    def look(self, nodes: Iterable[int], others: Mapping[int, str] = MappingProxyType({})) -> dict[str, Any]:
        """Who is connected, and who is missing; ``others`` are nodes that take no part, with the reason."""
        named = {node: self.names(node) if self.names else None for node in sorted(nodes)}
        connected = {name for node, name in named.items() if name is not None and node not in others}
        missing = [name for name in expected(self.names) if name not in connected] if self.names else []
        return {
            "connected": sorted(connected),
            "missing": missing,
            "nameless": sum(name is None and node not in others for node, name in named.items()),
            "others": {named.get(node) or f"node-{node}": reason for node, reason in sorted(others.items())},
            "nodes": {str(node): name for node, name in named.items() if name is not None},
        }


def sentence(content: dict[str, Any]) -> str:
    """``2 of 4 devices are connected (garden-pi, window-pi); missing: door-pi.``"""
    count = len(content["connected"]) + content.get("nameless", 0)
    named = f" ({', '.join(content['connected'])})" if content["connected"] else ""
    missing = f"; missing: {', '.join(content['missing'])}" if content["missing"] else ""
    resting = "; ".join(f"{name} ({said['reason']})" for name, said in (content.get("not_now") or {}).items())
    owners = f"; not now: {resting}" if resting else ""
    with_others = f"; without a tag of this run: {', '.join(others)}" if (others := content.get("others")) else ""
    return f"{count} of {content['needed']} devices are connected{named}{missing}{owners}{with_others}."


def expected(names: Names) -> list[str]:
    """Who should be there: of `everybody`, who is not known to be without a tag of the run."""
    return [name for name in everybody(names) if names.takes(name)]


def everybody(names: Names) -> list[str]:
    """The registered devices, by their names in this run; without keys, who has been there."""
    if names.registered is None:
        return sorted({device["name"] for device in names.devices.values()})
    return registered_names(names.registered)


def note_failure(folder: Path, error: Exception) -> None:
    """Say why the run ended before its end, where it had begun: it was stopped, or something went wrong."""
    if content := read_status(folder):
        reason = str(error) if isinstance(error, BouquetError) else f"{type(error).__name__}: {error}"
        state, now = STOPPED if isinstance(error, RunStopped) else FAILED, time.time()
        write_json(folder / STATUS, {**content, "state": state, "reason": reason, "ended": now, "updated": now})


def read_status(folder: Path) -> dict[str, Any]:
    """What ``status.json`` of a run folder says; empty where there is none.

    A run with a summary is finished, also where its server could not say so any more, on a full disk for example.
    """
    with contextlib.suppress(OSError, ValueError):
        content = json.loads((folder / STATUS).read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return {**content, "state": FINISHED} if (folder / SUMMARY).exists() else content
    return {}
