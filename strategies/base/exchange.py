"""One exchange of messages with a bound on waiting: a round never hangs on a device that does not answer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from flwr.app import Message
from flwr.serverapp import Grid

from bouquet.common.texts import plain

FIRST_POLL = 0.05  # seconds; doubles up to LAST_POLL, so that short rounds are not rounded up to long ones
LAST_POLL = 0.5
PULLED_AT_ONCE = 16  # replies
LOST = "The device lost its connection, or was switched off, before it replied."
UNDELIVERED = "The device was not reached: it is not connected, or the server's disk is full."
PRESENCE_CHECK = 5.0  # seconds between looks at which nodes are still connected
LATE_SHARE = 1 / 6  # of ``straggler_grace``: a reply before that is never late


@dataclass(frozen=True)
class Patience:
    """How long to wait for replies.

    An exchange ends after ``timeout`` seconds. Before that, once half of the replies are in, of those that can still
    come, the missing ones get ``straggler_factor`` times as long as those took, but at least ``straggler_grace``
    seconds: a device that was switched off in the middle of a round costs the others that much, not the whole timeout.

    A node that has held up earlier rounds (`Exclusion.share`) gets only its part of this wait, as ``shares`` says.
    ``waited_for`` collects the nodes that held up this exchange: those that had not answered at its end, or took more
    than ``straggler_factor`` times as long as three quarters of the others.

    A ``question`` is not a round of training, and may go to one node alone while all others wait. Then ``shares`` are
    parts of the whole ``timeout``, and a node that was asked alone is late when it takes longer than ``usual``: the
    seconds in which most nodes answered the last round.
    """

    timeout: float = 3600.0
    straggler_factor: float = float("inf")
    straggler_grace: float = 0.0
    shares: dict[int, float] = field(default_factory=dict)
    waited_for: set[int] = field(default_factory=set)
    usual: list[float] = field(default_factory=list)
    question: bool = False

    def deadline(self, half_after: float | None, node: int | None = None) -> float:
        """Seconds after the start until a node is given up; ``half_after`` is when half had replied, if they have."""
        if half_after is None and not self.question:
            return self.timeout
        whole, half = self.timeout, half_after or 0.0
        if half_after is not None and self.straggler_factor != float("inf"):  # which times 0 is no number
            whole = min(whole, max(self.straggler_grace, self.straggler_factor * half))
        return whole if node not in self.shares else half + self.shares[node] * (whole - half)

    def is_late(self, seconds: float, others: float | None, is_alone: bool = False) -> bool:
        """Whether who answers after so many seconds held up the exchange, of which most were there by ``others``."""
        least = LATE_SHARE * self.straggler_grace
        if is_alone and self.question and self.straggler_factor != float("inf"):
            return seconds > max([*self.usual, least])
        return others is not None and seconds > max(self.straggler_factor * others, least)


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
    most_after: float | None = None  # all had replied but a quarter, or one
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
                seconds = clock() - started
                if times is not None:
                    times[node] = seconds
                total = replied + len(waiting)
                if enough is None and patience.is_late(seconds, most_after, total == 1):
                    patience.waited_for.add(node)
                if most_after is None and replied >= total - max(1, total // 4):
                    most_after = seconds
                    if not patience.question:
                        patience.usual[:] = [seconds]
                yield reply
        if enough is not None and replied >= enough:
            break
        now = clock()
        if half_after is None and replied and replied >= len(waiting):
            half_after = now - started
        if not waiting:
            break
        limit = patience.deadline(half_after) if enough is None else patience.timeout
        is_over = now - started >= limit
        for identifier, node in list(waiting.items()) if enough is None and (patience.shares or is_over) else ():
            if now - started >= (its_limit := patience.deadline(half_after, node)):
                silent[waiting.pop(identifier)] = f"No reply within {its_limit:.0f} s."
                patience.waited_for.add(node)
        if not waiting or is_over:
            break
        if now - last_presence >= PRESENCE_CHECK:
            # Two looks in a row, because a node may be between two heartbeats.
            absent = set(waiting.values()) - set(grid.get_node_ids())
            for identifier in [i for i, node in waiting.items() if node in absent & absent_before]:
                node = waiting.pop(identifier)
                if enough is not None:
                    continue  # its reply counts when it is back
                silent[node] = LOST
                if patience.is_late(now - started, most_after, not replied and not waiting):
                    patience.waited_for.add(node)
            last_presence, absent_before = now, absent
        rest(min(poll, max(0.0, limit - (now - started))))
        poll = min(2 * poll, LAST_POLL)


def _pulled(grid: Grid, waiting: Sequence[str]) -> Iterator[Message]:
    """What has arrived; Flower's grid holds all that it is asked for at once in memory."""
    for start in range(0, len(waiting), PULLED_AT_ONCE):
        yield from grid.pull_messages(waiting[start : start + PULLED_AT_ONCE])
