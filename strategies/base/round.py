"""One round of a strategy: what was sent to whom, and what came of it. A new one begins with the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import Message

from bouquet.common.protocol import Instruction
from bouquet.strategies.base.nodes import Resting
from bouquet.strategies.base.replies import Replies


@dataclass
class Round:
    """A round of training, or of evaluation. Nothing of it survives into the next one, and a checkpoint has none of it.

    ``preliminary`` are the messages of the exchange inside the round (`MethodHooks.prepare`) with their replies,
    ``identification`` those that asked devices who they are.
    """

    number: int = 0
    planned: dict[int, tuple[str, Instruction]] = field(default_factory=dict)  # node → its client, and what it was sent
    sampled: int = 0  # how many clients were asked to train
    preliminary: list[Message] = field(default_factory=list)
    identification: list[Message] = field(default_factory=list)
    replies: Replies | None = None  # the usable ones, of training
    scores: dict[str, dict[str, float]] = field(default_factory=dict)  # client → what it reports of an evaluation
    failures: dict[str, str] = field(default_factory=dict)  # client → why nothing usable came
    not_now: dict[str, Resting] = field(default_factory=dict)  # clients whose owners do not let them work; no failures
    limited: dict[str, float] = field(default_factory=dict)  # client → the share of its step that was left of it
    came_late: dict[str, int] = field(default_factory=dict)  # client → how many rounds late its reply came
    warnings: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)  # by the server's checks
    failing: set[str] = field(default_factory=set)  # by their own word
    rested: set[str] = field(default_factory=set)  # after they were asked to train

    @property
    def counted(self) -> set[str]:
        """The clients whose replies to the training counted."""
        return set(self.replies.clients if self.replies else ()) - self.refused

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Note the clients whose replies the server's checks did not take, and why."""
        self.failures |= reasons
        self.refused |= set(reasons)
