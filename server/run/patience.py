"""When a run ends because its devices do no better: by their votes, so that no device ends a run, or keeps it on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bouquet.common.task.score import Score


@dataclass
class Standstill:
    """The devices' scores in the best of the rounds so far, by client, and in how many rounds they voted since.

    A round is better where more devices did better than worse, by more than one device can make of it: by two votes,
    among one or two devices by one. It counts where half of its devices have been in a round before.
    """

    score: Score
    best: dict[str, float] = field(default_factory=dict)
    rounds: int = 0

    def add(self, line: Mapping[str, Any]) -> None:
        """Take in a round's line of the record."""
        key, said = self.score.key, line.get("by_client") or {}
        now = {client: its[key] for client, its in said.items() if key in its}
        known = [(value, self.best[client]) for client, value in now.items() if client in self.best]
        votes = sum(self.score.is_better(*two) - self.score.is_better(*reversed(two)) for two in known)
        if votes > (len(known) > 2) or (now and not known):
            self.best, self.rounds = self.best | now, 0
            return
        self.best = now | self.best
        self.rounds += bool(now) and 2 * len(known) >= len(now)
