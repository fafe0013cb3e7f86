"""What goes on in a run, put together from its folder: for a person, a program, the page and Prometheus.

Only read: ``status.json`` (what the server does), ``rounds.jsonl`` (what was), the service's connections
(who is there, and when each was last heard of), the registered certificates (who should be there).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bouquet.common.system.locks import is_locked
from bouquet.server.fleet.names import Names
from bouquet.server.monitoring.diagnosis import failures, other_releases
from bouquet.server.record.gains import sentence as sentence_of
from bouquet.server.record.reader import Run, natural_order, not_tested
from bouquet.server.record.status import (
    FAILED,
    FINISHED,
    STOPPED,
    WAITING,
    everybody,
    expected,
    read_status,
    sentence,
)
from bouquet.server.run_folder import CONNECTIONS

RECENT_ROUNDS = 5  # whose mean length tells how long the rest will take
# What a device is doing; `IN_TROUBLE` are those that somebody should look at.
CONNECTED, NOT_NOW, AWAY, SIMULATED, DONE = "connected", "not now", "away", "simulated", "done"
IN_TROUBLE = (MISSING, FAILING, NOT_TESTED, KEY_REMOVED) = ("missing", "failing", "not tested", "key removed")
OTHER_TAGS = "other tags"


def overview(run: Run, now: float | None = None) -> dict[str, Any]:
    """The status of a run: ``run`` and ``devices``, as JSON has it.

    Times are seconds since 1970, None where nothing is known.
    """
    now = time.time() if now is None else now
    said = read_status(run.folder)
    registered, service = (Path(said[key]) if key in said else None for key in ("registered", "service"))
    names = Names(run.folder, None, registered, keeps=False, tags=frozenset(run.settings.server.tags))
    state = state_of(run.folder, said, run.summary is not None)
    by_name = {} if service is None else connections(service, said)
    listed = {*everybody(names), *(run.clients if run.rounds or run.summary else ()), *by_name}
    wanted = set(expected(names)) if registered is not None else {name for name in listed if names.takes(name)}
    removed = names.removed()
    alive = is_alive({"state": state})
    is_up = alive or (service is not None and is_locked(service.parent))  # --keep-waiting: also after the run
    resting = (said.get("not_now") or {}) if alive else {}
    past, untested = _past(run), not_tested(run.summary)
    devices = [
        _device(run, names, name, past.get(name) or _Past(), by_name.get(name), now if is_up else None)
        | {"expected": name in wanted, "not_now": resting.get(name), "removed": name in removed}
        | {"not_tested": untested.get(name), "takes_part": names.takes(name)}
        for name in sorted(listed, key=natural_order)
    ]
    for device in devices:
        device["state"] = _state(device, alive, service is None, run.completed)
    return {"run": _run(run, said, state, devices, now), "devices": devices}


def state_of(folder: Path, said: Mapping[str, Any], ended: bool) -> str:
    """The state that a run is in; a server that was killed has not said that it stopped."""
    state = str(said.get("state") or (FINISHED if ended else STOPPED))
    killed = "service" in said and state not in (FINISHED, FAILED) and not is_locked(folder)
    return STOPPED if killed else state


def is_alive(run: Mapping[str, Any]) -> bool:
    """Whether a server works on the run."""
    return run["state"] not in (FINISHED, FAILED, STOPPED)


@dataclass(frozen=True)
class Connection:
    """Whether a device is connected, and when it was last heard of (seconds since 1970)."""

    connected: bool
    seen: float


def connections(service: Path, said: Mapping[str, Any]) -> dict[str, Connection]:
    """Each device's connection, by name, as the service has noted it; of several, that which is there or was last.

    ``said`` is the run's status, which knows the names of devices without keys.
    """
    by_name: dict[str, Connection] = {}
    nodes = {int(node): str(name) for node, name in (said.get("nodes") or {}).items()}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        for noted in json.loads((service / CONNECTIONS).read_text(encoding="utf-8")):
            name = noted["name"] or nodes.get(int(noted["node"]))
            one = Connection(bool(noted["connected"]), float(noted["seen"]))
            if name and (
                name not in by_name or (one.connected, one.seen) > (by_name[name].connected, by_name[name].seen)
            ):
                by_name[name] = one
    return by_name


@dataclass
class _Past:
    """What the rounds say of a device."""

    round: int | None = None  # the last that it replied in
    failures: int = 0
    last_failure: dict[str, Any] | None = None
    absent: int = 0
    moved: dict[str, int] | None = None  # the last round in which it came to another cluster, and from which


def _past(run: Run) -> dict[str, _Past]:
    past: dict[str, _Past] = {}
    for line in run.rounds:
        for name in line.get("by_client") or ():
            past.setdefault(name, _Past()).round = line["round"]
        for name, reason in failures(line):
            one = past.setdefault(name, _Past())
            one.failures, one.last_failure = one.failures + 1, {"round": line["round"], "reason": reason}
        for name, cluster in (line.get("moved") or {}).items():
            past.setdefault(name, _Past()).moved = {"round": line["round"], "from": cluster}
        for name in line.get("absent") or ():
            past.setdefault(name, _Past()).absent += 1
    return past


def _device(
    run: Run, names: Names, name: str, past: _Past, connection: Connection | None, now: float | None
) -> dict[str, Any]:
    """One device. ``round`` is the last one that it replied in, ``failures`` counts what it failed in."""
    last: Mapping[str, Any] = run.last_numbers.get(name, {})
    up, down = run.bytes_by_client.get(name, (0, 0))
    return {
        "name": name,
        "connected": connection is not None and now is not None and connection.connected,
        "last_seen": None if connection is None else now if connection.connected and now else connection.seen,
        "round": past.round,
        "cluster": run.assignment.get(name),
        "moved": past.moved,
        run.score.key: run.score_by_client.get(name, last.get(run.score.key)),
        run.score.of("trained"): last.get(run.score.of("trained")),
        "serves": run.served(name),
        "beside": dict(run.beside.get(name, {})),
        "samples": None if "samples" not in last else int(last["samples"]),
        "left_out": int(last.get("left_out", 0)),
        "warnings": list(last.get("warnings") or ()),
        "unknown_classes": list(last.get("unknown_classes") or ()),
        "failures": past.failures,
        "last_failure": past.last_failure,
        "absent": past.absent,
        "release": names.release(name),
        "tags": sorted(names.tags_of(name) or ()),
        "bytes_up": up,
        "bytes_down": down,
    }


def _state(device: Mapping[str, Any], alive: bool, simulated: bool, completed: int) -> str:
    failed = device["last_failure"] is not None and device["last_failure"]["round"] == completed
    if device["removed"]:
        return KEY_REMOVED
    if not alive:
        return NOT_TESTED if device["not_tested"] else FAILING if failed else DONE
    if device["not_now"]:
        return NOT_NOW
    if not device["takes_part"]:
        return OTHER_TAGS
    if device["connected"] or simulated:
        return FAILING if failed else SIMULATED if simulated else CONNECTED
    return MISSING if device["expected"] else AWAY


def _run(run: Run, said: Mapping[str, Any], state: str, devices: list[dict[str, Any]], now: float) -> dict[str, Any]:
    seconds = [float(line["seconds"]) for line in run.rounds[-RECENT_ROUNDS:] if "seconds" in line]
    total = run.settings.run.rounds
    left = None
    if state == "training" and seconds and not run.settings.run.is_endless:
        mean = sum(seconds) / len(seconds)
        spent = now - said.get("round_started", now) if said.get("round", 0) > run.completed else 0.0
        left = max(0.0, mean * (total - run.completed) - spent)
    waiting = None
    if state == WAITING:
        there = [device["name"] for device in devices if device["connected"] and device["takes_part"]]
        missing = [device["name"] for device in devices if device["expected"] and not device["connected"]]
        waiting = sentence({**said, "connected": there, "missing": missing})
    return {
        "name": run.settings.run.name,
        "folder": str(run.folder),
        "state": state,
        "reason": said.get("reason") if state in (FAILED, STOPPED) else None,
        "waiting": waiting,
        "strategy": run.settings.strategy.name,
        "round": max(run.completed, int(said.get("round", 0))),
        "rounds": total,
        "completed": run.completed,
        "started": said.get("started"),
        "ended": said.get("ended") if not is_alive({"state": state}) else None,
        "updated": said.get("updated"),
        "seconds": run.total("seconds"),
        "time_left": left,
        "bytes_up": int(run.total("bytes_up")),
        "bytes_down": int(run.total("bytes_down")),
        run.score.key: run.final(run.score.of("macro")),
        **run.score.facts(),
        "loss": run.final("loss") if run.summary is None else run.last("loss"),
        "clusters": None if (clusters := run.final("clusters")) is None else int(clusters),
        "worth": sentence_of(run.beside, run.score),
        "release": said.get("bouquet"),
        "registered": said.get("registered"),
        "warnings": _warnings(run, devices, said.get("bouquet")),
    }


def _warnings(run: Run, devices: Sequence[Mapping[str, Any]], release: str | None) -> list[str]:
    """What is wrong now: as the last round showed it, and which devices have another release installed."""
    said = dict(run.rounds[-1].get("diagnosis") or {}) if run.rounds else {}
    others = {d["name"]: d["release"] for d in devices if release and d["release"] not in (None, release)}
    if others:  # a device says its release when it is asked who it is, before its first round ends
        said["releases"] = other_releases(others)
    return [*said.values()]
