"""What goes on in a run, put together from its folder: for a person, a program, the live page and Prometheus.

Only read: ``status.json`` (what the server does), ``rounds.jsonl`` (what was), the service's connections
(who is there, and when each was last heard of), the registered certificates (who should be there).
"""

from __future__ import annotations

import contextlib
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from bouquet.common.errors import BouquetError
from bouquet.common.system.locks import is_locked
from bouquet.keys.store import expiring
from bouquet.server.fleet.names import Names
from bouquet.server.monitoring.diagnosis import failures, other_releases
from bouquet.server.record.beside import sentence as sentence_of
from bouquet.server.record.reader import Run, natural_order, not_tested, read_run
from bouquet.server.record.status import (
    FAILED,
    FINISHED,
    STOPPED,
    TESTING,
    TRAINING,
    WAITING,
    everybody,
    expected,
    read_status,
    sentence,
)
from bouquet.server.run_folder import CONNECTIONS, SETTINGS

RECENT_ROUNDS = 5  # whose mean length tells how long the rest will take
FETCH_SECONDS = 30.0
WELL = (WAITING, TRAINING, TESTING, FINISHED)


def collect(folder: Path, now: float | None = None) -> dict[str, Any]:
    """The status of the run in ``folder``: ``run`` and ``devices``, as JSON has it.

    Times are seconds since 1970, None where nothing is known. Raises `BouquetError` for a folder that is no run.
    """
    run = read_run(folder)
    now = time.time() if now is None else now
    said = read_status(folder)
    registered, service = (Path(said[key]) if key in said else None for key in ("registered", "service"))
    names = Names(folder, None, registered, keeps=False, tags=frozenset(run.settings.server.tags))
    state = said.get("state") or (FINISHED if run.summary else STOPPED)
    if service is not None and state not in (FINISHED, FAILED) and not is_locked(folder):
        state = STOPPED
    by_name = {} if service is None else connections(service, said)
    listed = {*everybody(names), *(run.clients if run.rounds or run.summary else ()), *by_name}
    wanted = set(expected(names)) if registered is not None else {name for name in listed if names.takes(name)}
    removed = names.removed()
    alive = is_alive({"state": state})
    devices = [
        _device(run, names, name, name in wanted, by_name.get(name), now if alive else None)
        | {"not_now": (said.get("not_now") or {}).get(name) if alive else None, "removed": name in removed}
        | {"tags": sorted(names.tags_of(name) or ()), "takes_part": names.takes(name)}
        for name in sorted(listed, key=natural_order)
    ]
    return {"run": _run(run, said, state, devices, now), "devices": devices}


@dataclass(frozen=True)
class Connection:
    """Whether a device is connected, and when it was last heard of (seconds since 1970)."""

    connected: bool
    seen: float


def connections(service: Path, said: Mapping[str, Any]) -> dict[str, Connection]:
    """Each device's connection, by name, as the service has noted it; of several, that which is there or was last.

    ``said`` is the run's status, which knows the names of devices without keys.
    """
    found: dict[str, Connection] = {}
    nodes = {int(node): str(name) for node, name in (said.get("nodes") or {}).items()}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        for noted in json.loads((service / CONNECTIONS).read_text(encoding="utf-8")):
            name = noted["name"] or nodes.get(int(noted["node"]))
            one = Connection(bool(noted["connected"]), float(noted["seen"]))
            if name and (name not in found or (one.connected, one.seen) > (found[name].connected, found[name].seen)):
                found[name] = one
    return found


def _device(
    run: Run, names: Names, name: str, wanted: bool, connection: Connection | None, now: float | None
) -> dict[str, Any]:
    """One device. ``round`` is the last one that it replied in, ``failures`` counts what it failed in."""
    replied = [line for line in run.rounds if name in (line.get("by_client") or {})]
    failed = [(line["round"], reason) for line in run.rounds for who, reason in failures(line) if who == name]
    last: Mapping[str, Any] = replied[-1]["by_client"][name] if replied else {}
    up, down = run.bytes_by_client.get(name, (0, 0))
    return {
        "name": name,
        "expected": wanted,
        "connected": connection is not None and now is not None and connection.connected,
        "last_seen": None if connection is None else now if connection.connected and now else connection.seen,
        "round": replied[-1]["round"] if replied else None,
        "cluster": run.assignment.get(name),
        run.score.key: run.score_by_client.get(name, last.get(run.score.key)),
        run.score.of("trained"): last.get(run.score.of("trained")),
        "serves": run.served(name),
        "beside": dict(run.beside.get(name, {})),
        "samples": None if "samples" not in last else int(last["samples"]),
        "left_out": int(last.get("left_out", 0)),
        "warnings": list(last.get("warnings") or ()),
        "unknown_classes": list(last.get("unknown_classes") or ()),
        "failures": len(failed),
        "last_failure": dict(zip(("round", "reason"), failed[-1], strict=True)) if failed else None,
        "not_tested": not_tested(run.summary).get(name),
        "absent": sum(name in (line.get("absent") or ()) for line in run.rounds),
        "release": names.release(name),
        "bytes_up": up,
        "bytes_down": down,
    }


def _run(run: Run, said: Mapping[str, Any], state: str, devices: list[dict[str, Any]], now: float) -> dict[str, Any]:
    seconds = [float(line["seconds"]) for line in run.rounds[-RECENT_ROUNDS:] if "seconds" in line]
    total = run.settings.run.rounds
    left = None
    if state == "training" and seconds:
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
        "loss": run.final("loss") if run.summary is None else _last(run, "loss"),
        "clusters": _whole(run.final("clusters")),
        "worth": sentence_of(run.beside, run.score),
        "release": said.get("bouquet"),
        "warnings": [
            *_warnings(run, devices, said.get("bouquet")),
            *_what_expires(said.get("registered"), int(now // 3600)),
        ],
    }


def _warnings(run: Run, devices: Sequence[Mapping[str, Any]], release: str | None) -> list[str]:
    """What is wrong now: as the last round showed it, and which devices have another release installed."""
    said = dict(run.rounds[-1].get("diagnosis") or {}) if run.rounds else {}
    others = {d["name"]: d["release"] for d in devices if release and d["release"] not in (None, release)}
    if others:  # a device says its release when it is asked who it is, before its first round ends
        said["releases"] = other_releases(others)
    return [*said.values()]


@lru_cache(maxsize=4)
def _what_expires(registered: str | None, hour: int) -> tuple[str, ...]:
    """Certificates of this server's keys that end within a month, looked at once an ``hour`` (since 1970)."""
    with contextlib.suppress(BouquetError):
        if registered is not None:
            return tuple(expiring(Path(registered).parent, datetime.fromtimestamp(3600 * hour, UTC)))
    return ()


def _last(run: Run, key: str) -> float | None:
    values = run.series(key)[1]
    return float(values[-1]) if len(values) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def fetch(address: str, token: str | None, authority: Path | None) -> dict[str, Any]:
    """The status that a server's page offers at ``address`` (``https://server:8090``).

    ``authority`` is the PEM file of the authority that signed the server's certificate. Raises `BouquetError`.
    """
    request = urllib.request.Request(address.rstrip("/") + "/status.json")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    context = ssl.create_default_context(cafile=str(authority) if authority else None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    try:
        with urllib.request.urlopen(request, timeout=FETCH_SECONDS, context=context) as answer:
            content: dict[str, Any] = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        hint = "Give the token that the server printed (--token)." if error.code == 401 else error.reason
        raise BouquetError(f"{address} answers with status {error.code}. {hint}") from None
    except (OSError, ValueError) as error:
        raise BouquetError(f"{address} gives no status ({getattr(error, 'reason', error)}).") from None
    return content


def newest_run(parent: Path = Path("runs")) -> Path:
    """The run folder in ``parent`` that was written to last."""
    found = [folder for folder in parent.glob("*") if (folder / SETTINGS).is_file()]
    if not found:
        raise BouquetError(f"There is no run in {parent.absolute()}: name a run folder, or a server's page.")
    return max(found, key=lambda folder: max(file.stat().st_mtime for file in folder.iterdir() if file.is_file()))


def is_alive(run: Mapping[str, Any]) -> bool:
    """Whether a server works on the run."""
    return run["state"] not in (FINISHED, FAILED, STOPPED)
