"""Exact resumption: the server killed with all its processes at random points, against the run without that.

The devices live on and all answer each round, so that the run that goes on by itself must end with the same assignment
and the same models, bit by bit. A run is killed at several points; each counts as one.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import load_file

from benchmarks.faults import inject
from benchmarks.faults.fleet import Fleet, fleet, run_settings
from benchmarks.faults.run import follow, wait_for_first, warm_up
from benchmarks.faults.schedule import EVENTS, Fault, Schedule
from bouquet.common.errors import BouquetError
from bouquet.federation.queue import NextRun, enqueue

STRATEGIES = ("dc-pfl", "fedac", "fedtsdp", "gradient-loss")
ROUNDS = 6
KILLS = 4  # in a run
# All devices are to answer, however long that takes on a loaded machine.
PATIENT = {"run.rounds": ROUNDS, "server.straggler_grace": 900, "server.round_timeout": 900}


def points(strategy: str, number: int) -> tuple[Fault, ...]:
    """The points of a strategy's run of this number: each in a round of its own, the last also in the final test."""
    generator = random.Random(f"resume {strategy} {number}")
    faults = []
    for round_ in sorted(generator.sample(range(1, ROUNDS + 1), KILLS)):
        event = generator.choice(EVENTS[:3] if round_ < ROUNDS else EVENTS)
        seconds = generator.uniform(0, 0.03) if event == "line" else generator.uniform(0, 2.5)
        pause = generator.choice((0.0, generator.uniform(0, 4)))
        faults.append(Fault("kill server", "", event, round_, round(seconds, 3), round(pause, 2), 0))
    return tuple(faults)


def outcome(run: Path) -> dict[str, Any]:
    """What must be the same: the assignment, the models, and what each device reached."""
    summary = json.loads((run / "summary.json").read_text())
    models = {file.name: _digest(load_file(file)) for file in sorted((run / "models").glob("*.safetensors"))}
    return {"assignment": summary["assignment"], "models": models, "accuracy": summary["accuracy_by_client"]}


def _digest(tensors: dict[str, NDArray[Any]]) -> str:
    """Of the tensors: safetensors writes a file's metadata in an order that differs from process to process."""
    every = hashlib.sha256()
    for name in sorted(tensors):
        every.update(f"{name} {tensors[name].dtype} {tensors[name].shape} ".encode() + tensors[name].tobytes())
    return every.hexdigest()


def play(results: Path, total: int, until: float, keep: Path | None) -> bool:
    """Runs until each strategy was killed at ``total`` points, or it is time to end; whether all ended alike."""
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    without = {line["strategy"]: line["outcome"] for line in lines if line["number"] < 0}
    done = {(line["strategy"], line["number"]) for line in lines}
    todo = [(name, -1) for name in STRATEGIES if name not in without]
    todo += [(name, n) for n in range(-(-total // KILLS)) for name in STRATEGIES if (name, n) not in done]
    well = not any(line["wrong"] for line in lines)
    while todo and time.monotonic() < until:
        with (
            tempfile.TemporaryDirectory(prefix="bouquet-faults-", ignore_cleanup_errors=True) as folder,
            fleet(Path(folder), warm_up) as federation,
        ):
            wait_for_first(federation)
            while todo and time.monotonic() < until:
                name, number = todo.pop(0)
                run = federation.server_disk / f"{name}-{number}"
                line = _one(federation, run, name, number, lambda name=name: without.get(name))
                if number < 0:
                    if line["wrong"]:
                        raise BouquetError(f"Without a kill, {name} ends with: {'; '.join(line['wrong'])}")
                    without[name] = line["outcome"]
                with results.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                said = "WRONG " + "; ".join(line["wrong"]) if line["wrong"] else "as without" if number >= 0 else "well"
                print(f"{name:<14} {number:>3} {line['seconds']:>6} s  {'; '.join(line['points'])}: {said}", flush=True)
                if line["wrong"]:
                    well = False
                    if keep is not None:
                        shutil.copytree(federation.folder, keep / f"resume-{name}-{number}", dirs_exist_ok=True)
                    break
                shutil.rmtree(run)
    return well


def _one(
    federation: Fleet, run: Path, name: str, number: int, without: Callable[[], dict[str, Any] | None]
) -> dict[str, Any]:
    faults = points(name, number) if number >= 0 else ()
    started = time.monotonic()
    enqueue(federation.first, NextRun(run_settings(name, run.name, federation.public, **PATIENT), run))
    injections, end = inject.start(federation, faults, run)
    wrong, endings, _ = follow(federation, Schedule(0, name, False, faults), run)
    end()
    wrong += [f"{i.fault}: {i.error}" for i in injections if i.error]
    reached = {} if wrong else outcome(run)
    if not wrong and (expected := without()) is not None:
        wrong += [f"other {key} than without" for key in expected if reached[key] != expected[key]]
    if not wrong and any(line["failures"] for line in inject.lines(run)):
        wrong.append("not all devices answered")
    return {
        "strategy": name,
        "number": number,
        "points": [str(i.fault) for i in injections if i.happened],
        "endings": len(endings),
        "seconds": round(time.monotonic() - started, 1),
        "outcome": reached,
        "wrong": wrong,
    }


def table(results: Path) -> str:
    """Points and what went wrong, by strategy."""
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    rows = []
    for name in STRATEGIES:
        own = [line for line in lines if line["strategy"] == name and line["number"] >= 0]
        count, wrong = sum(len(line["points"]) for line in own), sum(bool(line["wrong"]) for line in own)
        rows.append(f"{name:<14} killed at {count} points in {len(own)} runs, {wrong} of them ended otherwise")
    return "\n".join(rows)
