"""Devices that wait for a message, and SuperLink's word that there is one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

LOOKS = "BOUQUET_LOOKS"  # in SuperLink's environment: the socket on which it tells
MOST_SECONDS = 30.0  # that a look is held
DATAGRAM_BYTES = 2**16
DATAGRAMS_AT_ONCE = 32  # then calls have their turn
_SENDER = struct.Struct("3i")  # process, user and group, as the kernel writes them


class Waiting:
    """Holds devices' looks for messages until there is one.

    SuperLink sends the ids of nodes for which there is something, 8 bytes each, to the abstract Unix socket ``name``.
    Without one, and where there are no such sockets (they are Linux's), no look is held: devices ask again and again.
    Such a socket has no permissions: whoever is on the machine could write to it, so that only the gate's own user and
    root are heard.
    """

    def __init__(self, name: str | None) -> None:
        self._held: dict[int, asyncio.Event] = {}
        self._news: dict[int, int] = {}  # by node that is looking, how often there was something
        self._looks: Counter[int] = Counter()  # by node
        self._told: socket.socket | None = None
        if name is not None and sys.platform == "linux":
            self._told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            self._told.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._told.bind(f"\0{name}")
            asyncio.get_running_loop().add_reader(self._told, self._hear, self._told)

    async def first(self, node: int, seconds: float, look: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        """What ``look`` finds within so many seconds. Of two that wait for a node, the former leaves empty-handed."""
        self._looks[node] += 1
        try:
            return await self._first(node, seconds, look)
        finally:
            self._looks[node] -= 1
            if not self._looks[node]:
                del self._looks[node]
                self._news.pop(node, None)

    async def _first(self, node: int, seconds: float, look: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        loop = asyncio.get_running_loop()
        until = loop.time() + min(seconds, MOST_SECONDS)
        seen = self._news.get(node, 0)
        found = await look()
        if found is not None or self._told is None or seconds <= 0:
            return found
        if (before := self._held.get(node)) is not None:
            before.set()
        self._held[node] = told = asyncio.Event()
        try:
            while found is None and self._held.get(node) is told:
                if self._news.get(node, 0) == seen:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(told.wait(), until - loop.time())
                    told.clear()
                if self._news.get(node, 0) == seen:
                    return None  # its time is over, or the gate's, or another look has come
                seen = self._news.get(node, 0)
                found = await look()
            return found
        finally:
            if self._held.get(node) is told:
                del self._held[node]

    def close(self) -> None:
        """Let go of all: the gate ends."""
        for told in self._held.values():
            told.set()
        if self._told is not None:
            asyncio.get_running_loop().remove_reader(self._told)
            self._told.close()

    def _hear(self, told: socket.socket) -> None:
        for _ in range(DATAGRAMS_AT_ONCE):
            try:
                data, said, _, _ = told.recvmsg(DATAGRAM_BYTES, socket.CMSG_SPACE(_SENDER.size))
            except BlockingIOError:
                return
            if not _of_own_user(said):
                continue
            for (node,) in struct.iter_unpack(">Q", data[: len(data) // 8 * 8]):
                if node in self._looks:
                    self._news[node] = self._news.get(node, 0) + 1
                    if node in self._held:
                        self._held[node].set()


def _of_own_user(said: list[tuple[int, int, bytes]]) -> bool:
    """Whether a datagram is of a process of this user, or of root's, by what the kernel says of its sender."""
    for level, kind, data in said:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) == _SENDER.size:
            return _SENDER.unpack(data)[1] in (os.geteuid(), 0)
    return False
