"""Replies that come after their round has ended, taken into the next one where the method can use them.

Such a reply was trained from what its device was sent a round before, and is read by that: its instruction is kept for
one more round. Nothing of it is in a checkpoint; after a restart a late reply is one that never came.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from bouquet.common.protocol import Instruction


@dataclass
class LateReplies:
    """The messages of the last round that nobody has answered yet: client and instruction, by message.

    ``rounds`` is for how many rounds more a reply may come: 1, or 0 where what comes late is dropped.
    """

    rounds: int = 1
    awaited: dict[str, tuple[str, Instruction]] = field(default_factory=dict)

    def expect(
        self, messages: Iterable[Message], answered: Collection[str], planned: Mapping[int, tuple[str, Instruction]]
    ) -> None:
        """After a round: what was not answered is awaited until the end of the next one; what was before no longer."""
        self.awaited = {
            m.metadata.message_id: planned[m.metadata.dst_node_id]
            for m in messages
            if self.rounds and m.metadata.message_id and m.metadata.message_id not in answered
        }

    def collect(self, grid: Grid) -> list[Message]:
        """What has come of it by now, without waiting; what a SuperLink says in a node's place is no reply."""
        if not self.awaited:
            return []
        pulled = list(grid.pull_messages(list(self.awaited)))
        return [m for m in pulled if m.has_content() and m.metadata.reply_to_message_id in self.awaited]

    def of(self, message: Message) -> tuple[str, Instruction] | None:
        """Client and instruction of the awaited message that this one answers; None for any other."""
        return self.awaited.get(message.metadata.reply_to_message_id)
