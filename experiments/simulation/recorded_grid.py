"""A run once more, with each reply taken in the round in which the record of that run has it.

So a fleet's run that waited for nobody can be looked into: the same settings and data give the same models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Message

from bouquet.common.errors import BouquetError
from bouquet.common.protocol.arrival import Arrival
from bouquet.common.settings import Settings
from bouquet.common.wire.flower import error_reply
from bouquet.experiments.simulation.inline_grid import Handler, InlineGrid, Together
from bouquet.server.record.reader import read_run

Line = Mapping[str, Any]
FAILED = 2  # as a device's own error


def recorded(run: Path, settings: Settings, resume: bool) -> Sequence[Line]:
    """The lines of a run, for a `RecordedGrid`. Raises `BouquetError` where they do not say all that is needed."""
    lines = read_run(run).rounds[: settings.run.rounds]
    refused = {
        f"it has {len(lines)} rounds, and run.rounds = {settings.run.rounds}": len(lines) < settings.run.rounds,
        "train.budget = 'fleet' gives steps by times that were measured": settings.train.budget == "fleet",
        f"of server.fraction_train = {settings.server.fraction_train:g} it does not say whom a round could choose": (
            settings.server.fraction_train < 1
        ),
        "simulation.speeds is a time of its own": bool(settings.simulation.speeds),
        "simulation.engine = 'ray' takes them as they come": settings.simulation.engine == "ray",
        "--resume would begin in its middle": resume,
    }
    for why, is_so in refused.items():
        if is_so:
            raise BouquetError(f"The replies of {run} cannot be taken again as they came: {why}.")
    return lines


class RecordedGrid(InlineGrid):
    """An `InlineGrid` whose replies to a round's messages come in the round in which they came before.

    A device is there in the rounds in which it was given a task, or was at work on one; who never replies again is
    not. One that failed fails again, for the same reason, whatever it would have said. ``lines`` are the record's.
    """

    def __init__(
        self, lines: Sequence[Line], handlers: Mapping[int, Handler], together: Together | None = None, at_once: int = 1
    ) -> None:
        super().__init__(handlers, together=together, at_once=at_once)
        self._lines, self._begun = lines, 0
        self._names: dict[int, str] = {}
        self._is_next = False  # whether what is sent next are a round's messages
        self._tasks: dict[str, Message] = {}  # those whose replies are for a later round, or the one in progress

    def clock(self) -> float:
        """The seconds of that run."""
        return float(sum(line["seconds"] for line in self._lines[: self._begun]))

    def enough(self, at_work: int) -> int:
        """How many replies end the round that begins now."""
        self._begun += 1
        self._is_next = True
        return len(self._lines[self._begun - 1]["by_client"])

    def wait(self, seconds: float) -> None:
        """All that will come is there."""
        raise BouquetError(f"Round {self._begun} of the record has replies that do not come: was it of these settings?")

    def get_node_ids(self) -> Iterable[int]:
        """Who was there in the next round; after the last one all."""
        return [node for node in self.handlers if node not in self._names or self._is_there(self._names[node])]

    def _is_there(self, client: str) -> bool:
        for line in self._lines[self._begun :]:
            if client in line["by_client"]:
                return bool(line["round"] - line["late"].get(client, 0) <= self._begun + 1)
            if client in line["failed"]:
                return True
        return self._begun == len(self._lines)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Take each message; what belongs to a round is not answered before its time."""
        outgoing = list(messages)
        identifiers = list(super().push_messages(outgoing))
        if self._is_next:
            self._is_next = False
            self._tasks |= {i: m for i, m in zip(identifiers, outgoing, strict=True) if i}
            self._due |= dict.fromkeys(self._tasks, float("inf"))
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """The replies of this round."""
        line, asked = self._lines[max(0, self._begun - 1)], list(message_ids)
        for identifier in [i for i in asked if i in self._tasks]:
            message = self._tasks[identifier]
            client = self._names.get(message.metadata.dst_node_id, "")
            if client in line["by_client"]:
                self._due[identifier] = 0.0
            elif client in line["failed"]:
                del self._due[identifier], self._unanswered[identifier]
                yield error_reply(message, FAILED, line["failed"][client])
            else:
                continue
            del self._tasks[identifier]
        for reply in super().pull_messages(asked):
            arrival = Arrival.of(reply)
            self._names[reply.metadata.src_node_id] = arrival.client
            yield reply
