"""One exchange of messages with a bound on waiting: a round never hangs on a device that does not answer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from flwr.app import Message
from flwr.serverapp import Grid

from bouquet.common.texts import plain

FIRST_POLL = 0.05  # seconds; doubles up to LAST_POLL, so that short rounds are not rounded up to long ones
LAST_POLL = 0.5
PULLED_AT_ONCE = 16  # replies
UNDELIVERED = "The message could not be delivered: the node is not connected, or the server's disk is full."
PRESENCE_CHECK = 5.0  # seconds between looks at which nodes are still connected


@dataclass(frozen=True)
class Patience:
    """How long to wait for replies.

    An exchange ends after ``timeout`` seconds. Before that, once half of the replies are in, of those that can still
    come, the missing ones get ``straggler_factor`` times as long as those took, but at least ``straggler_grace``
    seconds: a device that was switched off in the middle of a round costs the others that much, not the whole timeout.
    """

    timeout: float = 3600.0
    straggler_factor: float = float("inf")
    straggler_grace: float = 0.0

    def deadline(self, half_after: float | None) -> float:
        """Seconds after the start at which the exchange ends; ``half_after`` is when half had replied, if they have."""
        if half_after is None or self.straggler_factor == float("inf"):
            return self.timeout
        return min(self.timeout, max(self.straggler_grace, self.straggler_factor * half_after))


def exchange(
    grid: Grid, messages: Iterable[Message], patience: Patience, times: dict[int, float] | None = None
) -> tuple[list[Message], dict[int, str]]:
    """Send messages, wait for the replies, and return them with the reason for every node that gave none.

    ``times`` gets the seconds after which each node's reply was there.
    """
    silent: dict[int, str] = {}
    outgoing = list(messages)
    replies = list(replies_to(grid, outgoing, patience, silent, times))
    answered = {reply.metadata.reply_to_message_id for reply in replies}
    abandon(grid, (m.metadata.message_id for m in outgoing if m.metadata.message_id not in answered))
    return replies, silent


def abandon(grid: Grid, message_ids: Iterable[str]) -> None:
    """Nobody waits for the replies to these messages any more: a server's own grid has devices stop working on them."""
    identifiers = [identifier for identifier in message_ids if identifier]
    if identifiers and (give_up := getattr(grid, "give_up", None)) is not None:
        give_up(identifiers)


def replies_to(
    grid: Grid,
    messages: Iterable[Message],
    patience: Patience,
    silent: dict[int, str],
    times: dict[int, float] | None = None,
    older: Mapping[str, int] = MappingProxyType({}),
    enough: int | None = None,
) -> Iterator[Message]:
    """Send messages, and yield the replies as they arrive; nodes that give none are added to ``silent`` with why.

    ``times`` gets the seconds after which each node's reply was there. Nothing of a reply is kept here, so that a
    round's replies need not be in memory together. ``older`` are messages of before, by node, whose replies count too;
    ``enough`` replies end it, where that is given, and who is still at work then is not silent.

    ``send_and_receive`` of Flower's grid waits out its whole timeout for a node that vanished, and looks for replies
    every 3 s; this looks more often, and gives a node up when it is no longer connected.
    """
    outgoing = list(messages)
    if not outgoing and not older:
        return
    clock = getattr(grid, "clock", time.monotonic)  # a simulated fleet has a time of its own
    started = clock()
    # Some grids return None for a message that they could not deliver, others leave it out; all name the message.
    delivered = {identifier for identifier in grid.push_messages(outgoing) if identifier}
    waiting: dict[str, int] = {**older} | {
        m.metadata.message_id: m.metadata.dst_node_id for m in outgoing if m.metadata.message_id in delivered
    }
    for message in outgoing:
        if message.metadata.message_id not in waiting:
            silent[message.metadata.dst_node_id] = UNDELIVERED
    rest = getattr(grid, "wait", time.sleep)  # a server's own grid knows when there is a reply
    replied = 0
    half_after: float | None = None
    poll, last_presence, absent_before = FIRST_POLL, started, set[int]()
    while waiting:
        for reply in _pulled(grid, list(waiting)):
            identifier = reply.metadata.reply_to_message_id
            if identifier not in waiting:
                continue
            node = waiting.pop(identifier)
            poll = FIRST_POLL
            if reply.has_error() and reply.metadata.src_node_id != node:
                silent[node] = plain(str(reply.error.reason))  # said by Flower's SuperLink in the node's place
            else:
                replied += 1
                if times is not None:
                    times[node] = clock() - started
                yield reply
        if enough is not None and replied >= enough:
            break
        now = clock()
        if half_after is None and replied and replied >= len(waiting):
            half_after = now - started
        if not waiting:
            break
        limit = patience.deadline(half_after) if enough is None else patience.timeout
        if now - started >= limit:
            if enough is not None:
                break
            silent.update(dict.fromkeys(waiting.values(), f"No reply within {limit:.0f} s."))
            break
        if now - last_presence >= PRESENCE_CHECK:
            # Two looks in a row, because a node may be between two heartbeats.
            absent = set(waiting.values()) - set(grid.get_node_ids())
            for identifier in [i for i, node in waiting.items() if node in absent & absent_before]:
                node = waiting.pop(identifier)
                if enough is None:  # else its reply counts when it is back
                    silent[node] = "The node disconnected before it replied."
            last_presence, absent_before = now, absent
        rest(min(poll, max(0.0, limit - (now - started))))
        poll = min(2 * poll, LAST_POLL)


def _pulled(grid: Grid, waiting: Sequence[str]) -> Iterator[Message]:
    """What has arrived; Flower's grid holds all that it is asked for at once in memory."""
    for start in range(0, len(waiting), PULLED_AT_ONCE):
        yield from grid.pull_messages(waiting[start : start + PULLED_AT_ONCE])
