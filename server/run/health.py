"""Whether a run goes well: its warnings, and when it ends because nothing gets better or nobody replies."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from logging import WARNING
from typing import Any

from flwr.common.logger import log

from bouquet.common.errors import RunFailed
from bouquet.server.monitoring.diagnosis import Expected, add, diagnose, new_warnings
from bouquet.server.run.patience import Standstill

MOST_FAILED_ROUNDS = 3
SHORTEST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0  # seconds after such rounds, in a run without an end


class RunHealth:
    """What is judged by the lines of the record; ``warnings`` are those that the next line will have first."""

    def __init__(self, expected: Expected, patience: int = 0) -> None:
        self.expected, self.patience = expected, patience
        self.lines: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        self._standstill = Standstill(expected.score)

    def recall(self, line: Mapping[str, Any]) -> None:
        """Take in a line of before the run was resumed."""
        add(self.lines, line)
        self._standstill.add(line)

    def judge(self, line: dict[str, Any]) -> None:
        """Take in a round's line: it gets the diagnosis, and what was not warned of before, which is logged."""
        self.recall(line)
        line["diagnosis"] = diagnose(self.lines, self.expected)
        warnings = self.warnings + new_warnings(self.lines, self.expected)
        self.lines[-1]["diagnosis"] = line["diagnosis"]
        if self.stands_still:
            said = f"The {self.expected.score.label} was not better in {self._standstill.rounds} rounds"
            warnings.append(f"{said}: the run ends (run.patience).")
        self.warnings = []
        for text in warnings:
            log(WARNING, "%s", text)
        line["warnings"] += warnings

    def moved(self, assignment: Mapping[str, int]) -> dict[str, int]:
        """Client → the cluster that it was in, for those that are in another one now."""
        before = (self.lines[-1].get("assignment") or {}) if self.lines else {}
        return {client: before[client] for client, k in assignment.items() if before.get(client, k) != k}

    def check_progress(self, is_endless: bool) -> float:
        """Raise `RunFailed` after `MOST_FAILED_ROUNDS` rounds running without one usable reply.

        A run without an end goes on: after so many seconds.
        """
        failed = len([*itertools.takewhile(lambda line: not line["replies"], reversed(self.lines))])
        if failed < MOST_FAILED_ROUNDS:
            return 0.0
        said = f"No client gave a usable reply in {failed} rounds running"
        if is_endless:
            seconds = min(SHORTEST_PAUSE * 2 ** (failed - MOST_FAILED_ROUNDS), LONGEST_PAUSE)
            log(WARNING, "%s: the next one begins in %.0f s, or when another client works.", said, seconds)
            return seconds
        reason = next((f"; {client}: {reason}" for client, reason in sorted(self.lines[-1]["failed"].items())), ".")
        raise RunFailed(
            f"{said}, the last one round {self.lines[-1]['round']}. The checkpoint before them is kept: when the "
            f"clients are well again, --resume goes on from there{reason}"
        )

    @property
    def stands_still(self) -> bool:
        """Whether the devices did no better in the last `patience` rounds than before; 0: never."""
        return 0 < self.patience <= self._standstill.rounds
