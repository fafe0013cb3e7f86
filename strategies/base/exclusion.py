"""A client whose replies are refused again and again is left out for a while, so that it costs nobody's time.

So is one that reports an error of its own round after round, but later and for fewer rounds: when its owner has mended
a full disk, say, the device should be back soon.

So is one that holds up rounds. Each round that it held up halves the time for which the next ones wait for it, and is
forgotten after sixteen replies in time. With three such rounds that are not forgotten, it is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

REFUSALS = 3  # in a row, after which a client is left out
ROUNDS = 5  # for so many rounds at first; twice as many each time it comes back and is refused again
MOST_ROUNDS = 80
FAILURES = 5  # by its own word, without a reply that counted since, after which it is left out
MOST_FAILING_ROUNDS = 4  # 1, 2, then so many: a device that is mended is asked again after no more
HELD_UP = 3  # rounds that waited for it, after which a client is left out
ONE_IN = 16  # rounds: for so many at first, and so many replies in time make up for one
MOST_HELD_UP = 6  # that are remembered: a device that is mended is waited for again


@dataclass
class Exclusion:
    """Who was refused how often in a row, and who is left out until which round; all of it JSON, for a checkpoint."""

    in_a_row: dict[str, int] = field(default_factory=dict)
    until: dict[str, int] = field(default_factory=dict)  # the last round without it
    why: dict[str, str] = field(default_factory=dict)
    spells: dict[str, int] = field(default_factory=dict)  # how often it was left out since a reply of it counted
    failures: dict[str, int] = field(default_factory=dict)  # errors of its own since a reply of it counted
    reasons: dict[str, str] = field(default_factory=dict)  # the last of either
    held_up: dict[str, int] = field(default_factory=dict)  # `ONE_IN` for each round held up, less 1 a reply in time

    def reason(self, client: str, round_: int) -> str | None:
        """Why a client sits this round out; None where it does not."""
        if (until := self.until.get(client, 0)) < round_:
            return None
        last = f" The last: {self.reasons[client]}" if client in self.reasons else ""
        return f"{self.why[client]}; it is left out up to round {until}.{last}"

    def share(self, client: str) -> float:
        """The part of the usual time that the others wait for a client when they have answered."""
        return 0.5 ** (self.held_up.get(client, 0) // ONE_IN)

    def note(
        self,
        round_: int,
        refused: Iterable[str],
        counted: Iterable[str],
        failed: Iterable[str] = (),
        reasons: Mapping[str, str] | None = None,
        waited_for: Iterable[str] = (),
    ) -> None:
        """After a round: whose replies were refused, whose counted, who reported an error, and why.

        ``waited_for`` are those that it was held up by.
        """
        late = {*waited_for}
        for client in counted:
            for of_clients in (self.in_a_row, self.spells, self.failures, self.reasons):
                of_clients.pop(client, None)
            if client not in late and self.held_up.get(client):
                self.held_up[client] -= 1
        said = reasons or {}
        self.reasons |= {client: said[client] for client in (*refused, *failed, *sorted(late)) if client in said}
        for client in failed:
            self.failures[client] = failures = self.failures.get(client, 0) + 1
            if (more := failures - FAILURES) >= 0:
                why = f"It reported an error {failures} times in a row"
                self._leave_out(client, round_ + min(2**more, MOST_FAILING_ROUNDS), why)
        for client in sorted(late):
            self.held_up[client] = min(self.held_up.get(client, 0) + ONE_IN, MOST_HELD_UP * ONE_IN)
            if (rounds := self.held_up[client] // ONE_IN) >= HELD_UP:
                until = round_ + min(ONE_IN * 2 ** (rounds - HELD_UP), MOST_ROUNDS)
                self._leave_out(client, until, "Rounds were held up by it again and again")
        for client in refused:
            self.in_a_row[client] = self.in_a_row.get(client, 0) + 1
            if self.in_a_row[client] >= REFUSALS:
                spells = self.spells.get(client, 0)
                why = f"Its replies were refused {REFUSALS} times in a row"
                self._leave_out(client, round_ + min(ROUNDS * 2**spells, MOST_ROUNDS), why)
                self.spells[client] = spells + 1
                self.in_a_row[client] = REFUSALS - 1  # once more is enough when it comes back

    def _leave_out(self, client: str, until: int, why: str) -> None:
        if until > self.until.get(client, 0):
            self.until[client], self.why[client] = until, why
