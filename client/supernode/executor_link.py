"""What SuperNode and the executor beside it tell each other: small datagrams over a pair of sockets.

SuperNode announces a message, so that the executor need not look for one all the time; the executor, and whoever
watches it, say which message's process has ended. Whoever starts both keeps both ends, for an executor that is
started again.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
from typing import Any

from client.supernode.polling import Failure
from client.trust.policy import AppTrust
from common.torchvision_compat import wants_torchvision

LARGEST_BYTES = 4096
LONGEST_REASON = 1000


def make_link() -> tuple[socket.socket, socket.socket]:
    """SuperNode's end and the executor's."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in ends:
        end.setblocking(False)
    return ends


def say(end: socket.socket, **what: Any) -> None:
    """Send, or drop it where nobody has read for long: both sides also look by themselves."""
    with contextlib.suppress(BlockingIOError, ConnectionError):
        end.send(json.dumps(what).encode())


def hear(end: socket.socket) -> dict[str, Any] | None:
    """The next datagram that is there already."""
    try:
        heard: dict[str, Any] = json.loads(end.recv(LARGEST_BYTES))
    except (BlockingIOError, ConnectionError):
        return None
    return heard


def tell_failure(end: socket.socket, reason: str, task: int | None = None) -> None:
    """From the executor's end: a task's process ended, or, with no task, the executor itself did."""
    say(end, task=task, reason=reason[:LONGEST_REASON])


class LinkedExecutor:
    """SuperNode's side: `client.supernode.polling.Executor`."""

    def __init__(self, end: socket.socket, trust: AppTrust) -> None:
        self._end = end
        self._trust = trust
        self._own: dict[str, bool] = {}

    def announce(self, state: Any, run_id: int) -> None:
        """Say that there is a message, whether its app is this installation's, and whether it needs torchvision."""
        run = state.get_run(run_id)
        if run is None:  # refused before it was stored
            return
        if run.fab_hash not in self._own:
            fab = state.get_fab(run.fab_hash)
            self._own[run.fab_hash] = fab is not None and self._trust.is_own(fab.content)
        wanted = wants_torchvision(run.override_config)
        say(self._end, fab=run.fab_hash, own=self._own[run.fab_hash], torchvision=wanted)

    def drop(self, task: int) -> None:
        """Say that nobody wants the answer to a task any more."""
        say(self._end, drop=task)

    def failure(self, seconds: float) -> Failure | None:
        """Wait for news; what failed, if something did."""
        select.select([self._end], [], [], seconds)
        heard = hear(self._end)
        return Failure(str(heard["reason"]), heard["task"]) if heard else None
