"""How many connections the live page holds open, and for how long one may do nothing: uvicorn limits neither.

Each takes a file from the server, which needs some for its run.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 64
REQUEST_SECONDS = 20.0  # to send a request, and to send the next one


class Listener(socket.socket):
    """A listening socket that closes at once what comes while `MOST_CONNECTIONS` are open."""

    def accept(self) -> tuple[socket.socket, object]:
        """The next connection; `BlockingIOError`, which asyncio takes for none, where it was one too many."""
        connection, address = super().accept()
        self.open = [other for other in getattr(self, "open", ()) if other.fileno() >= 0]
        if len(self.open) >= MOST_CONNECTIONS:
            connection.close()
            raise BlockingIOError
        self.open.append(connection)
        return connection, address


class BriefConnection(H11Protocol):
    """A connection that is closed where no answer is under way when the time for a request is over."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
        self.loop.call_later(REQUEST_SECONDS, self._look)

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
        else:
            self.loop.call_later(REQUEST_SECONDS, self._look)


def listeners(host: str, port: int) -> list[socket.socket]:
    """A `Listener` on each address of ``host``."""
    found: list[socket.socket] = []
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        listener = Listener(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        with contextlib.suppress(OSError):  # localhost of a machine without IPv6
            listener.bind(address)
            found.append(listener)
    return found
