"""Tasks that outlive their round: with a buffer, a round ends when enough replies are in, and the others go on.

FedBuff (Nguyen et al., AISTATS 2022) with a round as its buffer: nobody waits for the slowest device, and no device is
in a buffer twice, so that a fast one cannot fill it. A reply that comes late was trained from an older model: what
counts is its update, from the model of today (`moved`). FedBuff makes it smaller the older it is; here it counts whole,
because a slow device speaks rarely as it is (docs/own-speeds.md).

A checkpoint holds these tasks as they were sent. After a restart a device is given the same task again: one that is at
it goes on, one that is done has its reply.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import ARRAYS, ClientReply, Instruction
from bouquet.common.wire.flower import content_bytes, content_of


class Awaited(NamedTuple):
    """A task whose reply has not come: who has it, what it was sent, in which round, and until when it may come.

    ``content`` is that of the message as it travels: made once, and shared by those that were sent the same.
    """

    client: str
    instruction: Instruction
    node: int
    round: int
    until: float
    content: bytes


@dataclass
class LateReplies:
    """Who is still at work on an older task, by message.

    ``buffer`` is the share of those at work whose replies end a round; with 1, the others' tasks end with it.
    """

    buffer: float = 1.0
    awaited: dict[str, Awaited] = field(default_factory=dict)
    interrupted: list[Awaited] = field(default_factory=list)  # of before a restart, not given again so far

    @property
    def clients(self) -> set[str]:
        """The clients that are at work on an older task."""
        return {task.client for task in (*self.awaited.values(), *self.interrupted)}

    def enough(self, at_work: int) -> int | None:
        """How many replies end a round in which so many are at work; None where all of them are waited for.

        With a buffer a round never waits for all of them: one that is silent would hold up each until its timeout.
        """
        return None if self.buffer == 1 else max(1, min(at_work - 1, math.ceil(round(self.buffer * at_work, 9))))

    def go_on(self, grid: Grid, timeout: float, now: float) -> None:
        """After a restart: who is there again is given the task that it was at, and knows it by its id."""
        there = set(grid.get_node_ids()) if self.interrupted else set[int]()
        for task in [*self.interrupted]:
            given: dict[str, Awaited] = {}
            if task.node in there:
                content = content_of(task.content)
                message = Message(content, dst_node_id=task.node, message_type=MessageType.TRAIN, ttl=timeout)
                given = {one: task for one in grid.push_messages([message]) if one}
            if given or task.until < now:
                self.interrupted.remove(task)
            self.awaited |= given

    def end_round(
        self,
        round_: int,
        messages: Iterable[Message],
        planned: Mapping[int, tuple[str, Instruction]],
        answered: Collection[str],
        silent: Collection[int],
        now: float,
        timeout: float,
    ) -> dict[int, str]:
        """After a round: what was not answered is awaited, for ``timeout`` seconds at most, but of ``silent`` nodes.

        Returns the nodes for whose replies nobody waits any more, with the reason.
        """
        if self.buffer == 1:
            return {}
        self.awaited = {i: task for i, task in self.awaited.items() if i not in answered and task.node not in silent}
        held = {task.content: task.content for task in self.awaited.values()}
        for message in messages:
            node, identifier = message.metadata.dst_node_id, message.metadata.message_id
            if identifier and identifier not in answered and node not in silent:
                content = content_bytes(message.content)
                content = held.setdefault(content, content)
                self.awaited[identifier] = Awaited(*planned[node], node, round_, now + timeout, content)
        expired = {i: task.node for i, task in self.awaited.items() if task.until < now}
        self.awaited = {i: task for i, task in self.awaited.items() if i not in expired}
        return dict.fromkeys(expired.values(), f"No reply within {timeout:.0f} s.")

    def of(self, message: Message) -> Awaited | None:
        """The older task that this message answers; None for any other."""
        return self.awaited.get(message.metadata.reply_to_message_id)


def moved(
    reply: ClientReply, then: Instruction, now: Instruction, layout: ParameterLayout, record: str = ARRAYS
) -> Vector:
    """What a late reply says of the model that its client would be sent now: that model and the client's update, (d,).

    ``record`` is the one with the model that it trained. Where that is still the same, or the client's own, the reply
    is as it came. Buffers are as the client sent them: a difference of running statistics is none.
    """
    sent, center = then.models.get(record), now.models.get(record)
    if sent is None or center is None:
        return reply.vector
    # Read from a message, as after a restart, a whole model names all of its layers.
    layers, today = (layout.layers if one.layers is None else one.layers for one in (sent, center))
    if layers != today or np.array_equal(sent.vector, center.vector):
        return reply.vector
    shared = layout.columns([layer for layer in layers if layer in reply.layers])
    shared = shared[layout.parameter_columns[shared]]
    vector = reply.vector.copy()
    vector[shared] += center.vector[shared] - sent.vector[shared]
    return vector
