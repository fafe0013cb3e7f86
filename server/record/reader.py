"""Reading a run folder: its settings, its rounds, and its outcome if the run came to an end.

What is written there, and by whom, is described in the module `bouquet.server.record.writer`. Reading is forgiving
where a run that was stopped leaves traces (no summary, a half-written last line) and strict everywhere else.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from bouquet.common.errors import BouquetError
from bouquet.common.model_selection import served_text
from bouquet.common.settings import Settings, SettingsError, parse_settings
from bouquet.common.settings.sections import OWN_DATA
from bouquet.common.system.locks import is_locked
from bouquet.common.task.score import Score
from bouquet.common.texts import of_rounds
from bouquet.server.monitoring.diagnosis import failures
from bouquet.server.record.status import FAILED, read_status
from bouquet.server.run_folder import ROUNDS, SETTINGS, START, SUMMARY

MOST_BYTES = 2**23  # of the lines of a run without an end: what shows it stays quick
Points = tuple[NDArray[np.float64], NDArray[np.float64]]


class RecordError(BouquetError):
    """A folder that is not a run, or a file in it that cannot be read."""


def run_title(settings: Settings) -> str:
    """What is run, in a few words; devices' own data are divided by nobody."""
    if settings.data.dataset == OWN_DATA:
        return f"{settings.strategy.name} on the devices' own data"
    return f"{settings.strategy.name} on {settings.data.dataset}, {settings.data.partition}"


@dataclass(frozen=True)
class Run:
    """One run as recorded: ``rounds`` in order, ``summary`` only if it ended, ``notes`` on what was tolerated."""

    settings: Settings
    rounds: tuple[Mapping[str, Any], ...]
    summary: Mapping[str, Any] | None
    folder: Path
    notes: tuple[str, ...] = ()
    started: float | None = None
    ended: float | None = None
    start: Mapping[str, Any] = field(default_factory=dict)  # what it started from beside the seed, see `server.start`

    @property
    def title(self) -> str:
        """What was run, in a few words."""
        return run_title(self.settings)

    @property
    def completed(self) -> int:
        """Rounds that are in the record."""
        return int(self.rounds[-1]["round"]) if self.rounds else 0

    def series(self, key: str) -> Points:
        """Round numbers and values of a quantity that a round ends with; rounds without a value are left out."""
        pairs = [(line["round"], line[key]) for line in self.rounds if is_number(line.get(key))]
        return np.array([x for x, _ in pairs], dtype=float), np.array([y for _, y in pairs], dtype=float)

    def outcome(self, key: str) -> Points:
        """Completed rounds and values of a quantity that a round starts from, such as the test accuracy.

        Line t of the record tests the models that t - 1 rounds have led to; the summary tests the last ones.
        """
        x, y = self.series(key)
        x = x - 1
        last = (self.summary or {}).get(key)
        if self.summary and is_number(last):
            x, y = np.append(x, float(self.summary.get("rounds", self.completed))), np.append(y, float(last))
        return x, y

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """Every client that the record mentions, ``client-2`` before ``client-10``."""
        names = set(self.groups) | set(self.assignment) | set(self.bytes_by_client) | set(self.score_by_client)
        names.update(client for line in self.rounds for client, _ in failures(line))
        names.update(self.absences)
        names.update(client for line in self.rounds for client in line.get("not_now") or ())
        return tuple(sorted(names, key=natural_order))

    @cached_property
    def assignment(self) -> dict[str, int]:
        """Client → cluster at the end; for a run that was stopped, as last seen."""
        known: dict[str, int] = {}
        for line in self.rounds:
            known.update(line.get("assignment") or {})
        known.update((self.summary or {}).get("assignment") or {})
        return known

    @property
    def groups(self) -> dict[str, Any]:
        """Client → true group; empty where the groups are unknown or the run was stopped."""
        return dict((self.summary or {}).get("groups") or {})

    @cached_property
    def score(self) -> Score:
        """The figure that models are judged by."""
        return Score.in_record(self.summary, *self.rounds[:1])

    @cached_property
    def score_by_client(self) -> dict[str, float]:
        """Client → score of its test at the end; in a run that has not ended, of the model it last started from."""
        values = (self.summary or {}).get(self.score.of("by_client"))
        if values is None:
            values = {client: numbers.get(self.score.key) for client, numbers in self.last_numbers.items()}
        return {client: float(value) for client, value in values.items() if is_number(value)}

    @cached_property
    def beside(self) -> dict[str, Mapping[str, float]]:
        """Client → what it has, would have alone and was sent, of its last round; of a run that is over, of its end."""
        known = {client: numbers["beside"] for client, numbers in self.last_numbers.items() if numbers.get("beside")}
        return (self.summary or {}).get("beside_by_client") or known

    @cached_property
    def last_numbers(self) -> dict[str, Mapping[str, Any]]:
        """Client → its own numbers (samples, loss, accuracy) of the last round that it replied in."""
        known: dict[str, Mapping[str, Any]] = {}
        for line in self.rounds:
            known.update(line.get("by_client") or {})
        return known

    def served(self, client: str) -> str:
        """What a client serves in the place of the method's own model, in words; empty where it serves that."""
        if (kept := (self.summary or {}).get("kept_by_client")) is None:
            return served_text(self.last_numbers.get(client, {}))
        assert self.summary is not None
        mixed, left_out = (self.summary.get(key) or {} for key in ("mixed_by_client", "alone_left_out_by"))
        said = {"kept": kept.get(client), "mixed": mixed.get(client), "alone_left_out": client in left_out}
        return served_text(said)

    @cached_property
    def absences(self) -> dict[str, list[int]]:
        """Client → the rounds in which it should have been there and was not."""
        rounds: dict[str, list[int]] = {}
        for line in self.rounds:
            for client in line.get("absent") or ():
                rounds.setdefault(client, []).append(int(line["round"]))
        return rounds

    @cached_property
    def bytes_by_client(self) -> dict[str, tuple[int, int]]:
        """Client → bytes up and down over all rounds."""
        total: dict[str, tuple[int, int]] = {}
        for line in self.rounds:
            for client, (up, down) in (line.get("bytes_by_client") or {}).items():
                before = total.get(client, (0, 0))
                total[client] = (before[0] + up, before[1] + down)
        return total

    def final(self, key: str) -> float | None:
        """A number of the summary; for a run that was stopped, the last one that a round recorded."""
        if self.summary is not None:
            value = self.summary.get(key)
            return float(value) if is_number(value) else None
        _, values = self.series(key)
        return float(values[-1]) if len(values) else None

    def last(self, key: str) -> float | None:
        """The last value that a round recorded."""
        _, values = self.series(key)
        return float(values[-1]) if len(values) else None

    def total(self, key: str) -> float:
        """Sum over the rounds, such as bytes or seconds; the summary's own figure where there is one."""
        if self.summary is not None and is_number(self.summary.get(key)):
            return float(self.summary[key])
        return float(self.series(key)[1].sum())

    def by_group(self) -> list[str]:
        """Clients ordered by true group, then cluster, then name; those without a group come last."""
        return sorted(
            self.clients,
            key=lambda c: (c not in self.groups, self._by_group(c), self.assignment.get(c, 0), natural_order(c)),
        )

    def _by_group(self, client: str) -> Any:
        return natural_order(str(self.groups.get(client, "")))


def not_tested(summary: Mapping[str, Any] | None) -> dict[str, str]:
    """Client → why it has no result of the test at the end."""
    return dict((summary or {}).get("not_evaluated") or {})


def untested(summary: Mapping[str, Any] | None) -> list[str]:
    """A line for each reason for which clients were not tested at the end."""
    by_reason: dict[str, list[str]] = {}
    for client, reason in not_tested(summary).items():
        by_reason.setdefault(reason, []).append(client)
    return [
        f"Not tested at the end: {', '.join(sorted(clients, key=natural_order))}. {reason}"
        for reason, clients in by_reason.items()
    ]


def read_run(folder: Path | str) -> Run:
    """Read a run folder. Raises `RecordError`, which names the file (and line) that is wrong or missing.

    Examples
    --------
    >>> settings = bouquet.load_settings(None, ["data.clients=4", "run.rounds=2", "simulation.engine=inline"])
    >>> summary = bouquet.simulate(settings, folder / "run")
    >>> run = bouquet.read_run(folder / "run")
    >>> run.completed, len(run.rounds[-1]["by_client"])
    (2, 4)
    """
    folder = Path(folder)
    meant = Path("runs") / folder
    hint = f" {meant} is one." if (meant / SETTINGS).is_file() else ""
    if not folder.is_dir():
        raise RecordError(
            f"The run folder {folder} does not exist; 'bouquet simulate --out DIR' leaves one in DIR.{hint}"
        )
    if not (folder / SETTINGS).is_file():
        if is_locked(folder):
            raise RecordError(f"The server of {folder} is starting: its record is not there yet. Look again soon.")
        raise RecordError(
            f"{folder} is not a run folder: it has no settings.json. Name the folder that was given to --out.{hint}"
        )
    content = read_object(folder / SETTINGS)
    try:
        settings = parse_settings(content, {})
    except SettingsError as error:
        raise RecordError(f"{folder / SETTINGS} does not fit this version of Bouquet: {error}") from None
    rounds, notes = _read_rounds(folder / ROUNDS, MOST_BYTES if settings.run.is_endless else None)
    if rounds and rounds[0]["round"] > 1 and settings.run.is_endless:
        notes.append(f"Curves and sums are of the rounds from {rounds[0]['round']} on; {ROUNDS} has all of them.")
    summary = read_object(folder / SUMMARY) if (folder / SUMMARY).exists() else None
    if summary is None:
        done = rounds[-1]["round"] if rounds else 0
        total = of_rounds(settings.run.rounds)
        notes.insert(0, f"This run has not ended: {done}{total} rounds are recorded, no summary yet.")
    said = read_status(folder)
    if summary is None and said.get("state") == FAILED:
        notes.insert(0, f"The run failed. {said.get('reason', '')}")
    began, ended = (said[key] if is_number(said.get(key)) else None for key in ("started", "ended"))
    start = read_object(folder / START) if (folder / START).exists() else {}
    return Run(settings, tuple(rounds), summary, folder, tuple(notes), began, ended, start)


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file, or raise `RecordError` that names it."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{file} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{file} is not valid JSON: {error}.") from None
    if not isinstance(content, dict):
        raise RecordError(f"{file} holds {type(content).__name__}, expected a JSON object.")
    return content


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a recorded value can be drawn: a finite number, not a truth value and not null."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def natural_order(text: str) -> tuple[tuple[int, int, str, str], ...]:
    """Sort key that puts ``client-2`` before ``client-10``; numbers are compared as text, of which any length goes."""
    parts = [(part, part.lstrip("0")) for part in re.findall(r"[0-9]+|[^0-9]+", text)]
    return tuple((0, len(n), n, part) if part[0] in "0123456789" else (1, 0, part, "") for part, n in parts)


def _read_rounds(file: Path, most: int | None) -> tuple[list[dict[str, Any]], list[str]]:
    """Lines of ``rounds.jsonl`` in order, the last ``most`` bytes of them, and notes on what was passed over.

    A round that was recorded twice (the run was stopped between its record and its checkpoint, then resumed) counts
    as it was recorded last.
    """
    if not file.exists():
        return [], []
    try:
        with file.open("rb") as content:
            if most is not None and content.seek(0, os.SEEK_END) > most:
                content.seek(-most, os.SEEK_END)
                content.readline()
            else:
                content.seek(0)
            text = content.read().decode("utf-8", errors="replace")
    except OSError as error:
        raise RecordError(f"{file} cannot be read: {error.strerror}.") from None
    rounds: dict[int, dict[str, Any]] = {}
    notes: list[str] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):  # no newline after it: the run was stopped while it wrote
                notes.append(f"The last line of {file.name} (line {number}) is half-written and was passed over.")
                continue
            raise RecordError(f"{file}, line {number} is not valid JSON: {error}.") from None
        index = content.get("round") if isinstance(content, dict) else None
        if not isinstance(index, int) or index < 1:
            raise RecordError(f"{file}, line {number} has round = {index!r}, expected a whole number from 1 on.")
        rounds[index] = content
    return [rounds[index] for index in sorted(rounds)], notes
