"""One schedule after another, each a line of results; the same fleet serves many, until something is wrong with it."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.faults import inject, invariants
from benchmarks.faults.fleet import Fleet, command, fleet, run_settings
from benchmarks.faults.schedule import DEVICES, NEEDS_ROOT, STRATEGIES, Schedule, draw
from benchmarks.processes import name_of
from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings
from bouquet.common.system.locks import is_locked
from bouquet.federation.queue import NextRun, enqueue
from bouquet.server.record.status import FINISHED, read_status

PATIENCE_SECONDS = 900.0  # of a run, which takes 15 s on two quiet cores without a fault, and 315 s at a load of 20
RESTART_SECONDS = 1.0
SETTLE_SECONDS = 30.0
SCHEDULES_A_FLEET = 12
MOST_ENDINGS = 6
WAITING = "Waiting for the next run"


def run_one(schedule: Schedule, federation: Fleet, folder: Path, reference: dict[str, Any] | None) -> dict[str, Any]:
    """A run with its faults; the line of results."""
    settings = run_settings(schedule.strategy, folder.name, federation.public)
    run = folder if federation.waiting else federation.first
    restarted = _await_fleet(federation) if federation.waiting else []
    before = _processes(federation)
    started = time.monotonic()
    if federation.waiting:
        enqueue(federation.first, NextRun(settings, run))
    injections, end = inject.start(federation, schedule.faults, run)
    wrong, endings, notes = follow(federation, schedule, run)
    end()
    errors = [f"{i.fault}: {i.error}" for i in injections if i.error]
    accuracy: dict[str, float] = {}
    kept: dict[str, float] = {}
    if not wrong:
        for device in federation.devices.values():
            federation.start_device(device)
        damaged = any(fault.kind == "damage checkpoint" for fault in schedule.faults)
        wrong += invariants.check_run(schedule, federation, settings, run, damaged)
        found, kept = invariants.check_devices(schedule, federation, settings, run, reference)
        wrong += found
        if reference is not None:
            found, accuracy = invariants.check_accuracy(run, reference)
            wrong += found
        else:
            accuracy = json.loads((run / "summary.json").read_text())["accuracy_by_client"]
    if federation.waiting and not wrong:
        wrong += _leaks(before, federation) + invariants.check_forgotten(federation)
    return {
        "seed": schedule.seed,
        "strategy": schedule.strategy,
        "alone": schedule.alone,
        "faults": [{"fault": str(i.fault), "kind": i.fault.kind, "happened": i.happened} for i in injections],
        "seconds": round(time.monotonic() - started, 1),
        "endings": endings,
        "accuracy": accuracy,
        "kept": kept,
        "notes": restarted + notes + errors,
        "wrong": wrong,
    }


def follow(federation: Fleet, schedule: Schedule, run: Path) -> tuple[list[str], list[str], list[str]]:
    """Until the run is over; a server that ends is started again, as a service manager does.

    Returns what is wrong, how it ended each time, and what is to be known beside.
    """
    endings: list[str] = []
    notes: list[str] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    seen = 0
    while time.monotonic() < deadline:
        time.sleep(0.2)
        for device in federation.devices.values():
            if device.process is not None and (status := device.process.poll()) is not None and status != -9:
                with device.lock:
                    last = _last_line(device.log)
                notes.append(f"{device.name} ended with status {status}: {last}")
                time.sleep(RESTART_SECONDS)
                federation.start_device(device)
        status = read_status(run)
        if not federation.serves:
            with federation.lock:
                code = federation.server.poll() if federation.server else None
            if code is None:
                continue
            over = status.get("state") == FINISHED and (run / "summary.json").exists()
            if not federation.waiting and over and code == 0:
                return [], endings, notes
            endings.append(f"server {code}: {_last_line(federation.log)}" if code != -9 else "server killed")
            if code not in (-9, 1, 2, 0) and code < 128:
                return [f"the server ended with status {code}"], endings, notes
            if code == 0 and not over:
                return ["the server ended with status 0 before its run was over"], endings, notes
            if len(endings) > MOST_ENDINGS:
                return [f"the server ended {len(endings)} times"], endings, notes
            time.sleep(RESTART_SECONDS)
            federation.start_server()
            continue
        if not federation.waiting:
            continue
        text = federation.log.read_text(errors="replace")
        if status.get("state") == FINISHED and (run / "report.html").exists() and _waits(text):
            return [], endings, notes
        failed = len(re.findall(rf"The run {re.escape(run.name)} failed", text))
        if failed > seen:
            seen = failed
            reason = status.get("reason", "")
            endings.append(f"run failed: {reason or _reason(text, run.name)}")
            if not any(fault.may_fail for fault in schedule.faults):
                return ["the run failed, which no fault of these explains"], endings, notes
            if len(endings) > MOST_ENDINGS:
                return [f"the run failed {failed} times"], endings, notes
            # Its owner starts the server again, which then goes on with the run.
            time.sleep(RESTART_SECONDS)
            assert federation.server is not None
            federation.server.terminate()
            federation.server.wait()
            federation.server = None
            federation.start_server()
    state = read_status(run)
    return [f"not over within {PATIENCE_SECONDS:g} s: {json.dumps(state)[:300]}"], endings, notes


def _waits(log: str) -> bool:
    """Whether the last thing that a server has said is that it waits for a run."""
    return log.rstrip().endswith("NEXT.toml")


def _reason(text: str, name: str) -> str:
    found = re.findall(rf"The run {re.escape(name)} failed: (.*)", text)
    return found[-1][:300] if found else ""


def _last_line(file: Path) -> str:
    written = [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
    return written[-1][:300] if written else ""


def _await_fleet(federation: Fleet) -> list[str]:
    """Wait until all can work: what was killed late in the schedule before may have ended an idle server.

    It is started again, as a service manager does; returns with which status it had ended.
    """
    notes: list[str] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (
        federation.serves
        and _waits(federation.log.read_text(errors="replace"))
        and federation.connected() == {*federation.devices}
        and all(federation.processes("trainer", name) for name in federation.devices)
    ):
        if time.monotonic() > deadline:
            raise BouquetError("Not all of the fleet came back after the schedule before.")
        if federation.server is not None and (code := federation.server.poll()) is not None:
            notes.append(f"before it the server ended with status {code}: {_last_line(federation.log)}")
            federation.start_server()
        time.sleep(0.2)
    return notes


def _processes(federation: Fleet) -> dict[str, list[str]]:
    """The commands of each program's processes."""
    found = {name: federation.processes("device", name) for name in federation.devices}
    found["server"] = federation.processes("server")
    # Without those that have ended and are collected when the next one is started.
    return {name: [f"{name_of(pid)}: {command(pid)}" for pid in pids if command(pid)] for name, pids in found.items()}


def _leaks(before: dict[str, list[str]], federation: Fleet) -> list[str]:
    """Processes beyond those of before; what winds down has time for it."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        now = _processes(federation)
        more = {
            name: Counter(now[name]) - Counter(before[name]) for name in before if len(now[name]) > len(before[name])
        }
        if not more or time.monotonic() > deadline:
            return [f"{name} has more processes than before: {dict(found)}" for name, found in more.items()]
        time.sleep(0.5)


class Series:
    """Schedules and their lines in a file; what is there already is not run again."""

    def __init__(
        self, results: Path, keep: Path | None = None, until: float = float("inf"), floor: float | None = None
    ) -> None:
        self.results, self.keep, self.until = results, keep, until
        self.done: dict[int, dict[str, Any]] = {}
        self.references: dict[str, dict[str, Any]] = {}
        if floor is not None:
            every = dict.fromkeys(DEVICES, floor)
            self.references = {name: {"accuracy": every, "kept": every} for name in STRATEGIES}
        if results.exists():
            for line in map(json.loads, results.read_text().splitlines()):
                if "reference" in line:
                    self.references[line["reference"]] = line
                else:
                    self.done[line["seed"]] = line

    @property
    def _late(self) -> bool:
        return time.monotonic() >= self.until

    def add(self, line: dict[str, Any]) -> None:
        """Append a line."""
        with self.results.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def play(self, seeds: Iterable[int], again: bool = False, references: Iterable[str] = ()) -> bool:
        """Run the schedules that are not there yet, and what they are compared with; whether all of them went well."""
        todo = [draw(seed) for seed in seeds if again or seed not in self.done]
        if os.geteuid():
            todo = [s for s in todo if not any(fault.kind in NEEDS_ROOT for fault in s.faults)]
        needed = dict.fromkeys([*references, *(s.strategy for s in todo)])
        missing = [name for name in needed if name not in self.references]
        together = [schedule for schedule in todo if not schedule.alone]
        alone = [schedule for schedule in todo if schedule.alone]
        # One at once, so that they come in turn where a series is played in parts.
        well = not alone or missing != [] or self._alone(alone.pop(0))
        queue: list[Schedule] = [*(Schedule(-1 - STRATEGIES.index(n), n, False, ()) for n in missing), *together]
        while queue and not self._late:
            with self._folder() as folder, fleet(folder, warm_up) as federation:
                wait_for_first(federation)
                for _ in range(SCHEDULES_A_FLEET):
                    if not queue or self._late:
                        break
                    schedule = queue.pop(0)
                    line = self._one(schedule, federation, federation.server_disk / f"seed-{schedule.seed}")
                    well = well and not line["wrong"]
                    if line["wrong"]:
                        break
                if wrong := federation.stop():
                    well = False
                    self._show({"seed": "end", "strategy": "", "faults": [], "wrong": wrong, "seconds": 0})
                    self._keep(federation, f"end-{time.time():.0f}")
        return all([well, *map(self._alone, alone)])

    def _alone(self, schedule: Schedule) -> bool:
        """A schedule with a server and devices of its own; true, too, where it is too late to begin."""
        if self._late:
            return True
        with self._folder() as folder, fleet(folder, _own_run(schedule), waiting=False) as federation:
            return not self._one(schedule, federation, federation.first)["wrong"]

    def _one(self, schedule: Schedule, federation: Fleet, run: Path) -> dict[str, Any]:
        try:
            line = run_one(schedule, federation, run, self.references.get(schedule.strategy))
        except Exception:
            self._keep(federation, f"seed-{schedule.seed}")
            raise
        if not federation.waiting:
            line["wrong"] += federation.stop()
        if line["wrong"]:
            self._keep(federation, f"seed-{schedule.seed}")
        if schedule.seed < 0:
            if line["wrong"]:
                raise BouquetError(f"Without faults, {schedule.strategy} ends with: {'; '.join(line['wrong'])}")
            line = {"reference": schedule.strategy, **line}
            self.references[schedule.strategy] = line
        self.add({**line, "commit": _commit(), "load": round(os.getloadavg()[0], 1)})
        self._show(line)
        if federation.waiting:
            shutil.rmtree(run, ignore_errors=True)
        return line

    def _keep(self, federation: Fleet, name: str) -> None:
        """Logs and folders of a schedule that went wrong."""
        if self.keep is None:
            return
        target = self.keep / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(federation.folder, target, ignore=shutil.ignore_patterns("data-*"), symlinks=True)

    def _show(self, line: dict[str, Any]) -> None:
        faults = "; ".join(f["fault"] + ("" if f["happened"] else " (not done)") for f in line["faults"])
        ends = f" [{len(line['endings'])} endings]" if line.get("endings") else ""
        said = "WRONG " + "; ".join(line["wrong"]) if line["wrong"] else "well"
        print(f"{line['seed']:>5} {line['strategy']:<14} {line['seconds']:>6} s  {faults}{ends}: {said}", flush=True)

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="bouquet-faults-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)


def side_by_side(jobs: int, series: Series, seeds: list[int]) -> bool:
    """Play schedules in so many programs, each on fleets of its own; whether all of them went well."""
    well = series.play([], references=[draw(seed).strategy for seed in seeds])  # once, not in each of them
    start = multiprocessing.get_context("spawn").Process
    parts = [start(target=_part, args=(series, seeds[number::jobs])) for number in range(jobs)]
    try:
        for part in parts:
            part.start()
        for part in parts:
            part.join()
    finally:
        for part in parts:
            if part.is_alive():
                part.terminate()
                part.join()
    return well and not any(part.exitcode for part in parts)


def _part(series: Series, seeds: list[int]) -> None:
    signal.signal(signal.SIGTERM, leave)
    sys.exit(0 if series.play(seeds) else 1)


def leave(*_: object) -> None:
    """End so that no process, link or disk stays behind."""
    sys.exit(143)


def warm_up(public: Path) -> Settings:
    """The first run of a fleet, which is over when all of it is up."""
    return run_settings("fedavg", "first", public).with_overrides({"run.rounds": 1})


def _own_run(schedule: Schedule) -> Any:
    return lambda public: run_settings(schedule.strategy, "first", public)


def wait_for_first(federation: Fleet) -> None:
    """Wait until the fleet is up and idle."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (is_locked(federation.first) and WAITING in federation.log.read_text()):
        if time.monotonic() > deadline:
            raise BouquetError(f"The fleet does not come up:\n{federation.log.read_text()}")
        time.sleep(0.2)


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def table(results: Path) -> str:
    """Schedules by kind of fault and strategy: how many, and how many of them went wrong."""
    every = map(json.loads, results.read_text().splitlines())
    latest = {line["seed"]: line for line in every if "reference" not in line}
    counts: dict[str, dict[str, list[int]]] = {}
    for line in latest.values():
        for kind in dict.fromkeys(fault["kind"] for fault in line["faults"] if fault["happened"]):
            cell = counts.setdefault(kind, {}).setdefault(line["strategy"], [0, 0])
            cell[0] += 1
            cell[1] += bool(line["wrong"])
    rows = [f"| fault | {' | '.join(STRATEGIES)} |", f"|---{'|---' * len(STRATEGIES)}|"]
    for kind in sorted(counts):
        cells = [counts[kind].get(name, [0, 0]) for name in STRATEGIES]
        rows.append(f"| {kind} | " + " | ".join(f"{n}" + (f" ({bad} wrong)" if bad else "") for n, bad in cells) + " |")
    wrong = sum(bool(line["wrong"]) for line in latest.values())
    return "\n".join([*rows, "", f"{len(latest)} schedules, {wrong} went wrong."])
