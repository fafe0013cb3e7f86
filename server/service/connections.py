"""How many connections are held open, and what each may cost before it is known whose it is.

A stranger gets no further than the handshake of TLS, where there are keys. Until that is done, or until the first frame
where there are none, a connection is a stranger's: of these there are so many in all and from one address, for so many
seconds. They take nothing of the room that devices have.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Collection, Iterator

from bouquet.common.wire.transfer import FRAME_BYTES, WINDOWS
from bouquet.server.service.open_files import most_connections

STREAMS_OF_A_CONNECTION = 2  # a device has one
STRANGERS = 512  # connections on which no device has been welcomed
STRANGERS_OF_AN_ADDRESS = 256
STRANGER_SECONDS = 30.0
NEW_SECONDS = 5.0  # a fleet that comes back all at once has so long for its handshakes
HANDSHAKE_SECONDS = 15  # from the first packet to the end of TLS and of HTTP/2's settings
SWEEP_SECONDS = 1.0
STEP_BACK = 10  # added to the niceness of gRPC's threads
FEW = 64  # files open beside devices' connections: nothing to look for
A_CALL = 50  # frames that a call counts as: TLS, and a welcome
READ_BYTES = 8192  # room that a connection keeps for what comes; without a bound gRPC's grew to 190 kB of each device
# Below the least after which routers and firewalls forget a connection on which nothing comes.
KEEPALIVE_SECONDS, KEEPALIVE_ANSWER_SECONDS = 50, 20


def server_options() -> list[tuple[str, int]]:
    """gRPC's limits: what a frame may be, and how a peer is noticed that is gone without a word."""
    return [
        ("grpc.max_receive_message_length", 2 * FRAME_BYTES),  # above one, the service refuses it by name
        ("grpc.max_send_message_length", -1),
        *WINDOWS,
        ("grpc.max_concurrent_streams", STREAMS_OF_A_CONNECTION),
        ("grpc.max_allowed_incoming_connections", most_connections()),
        ("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_SECONDS),
        ("grpc.keepalive_time_ms", 1000 * KEEPALIVE_SECONDS),
        ("grpc.keepalive_timeout_ms", 1000 * KEEPALIVE_ANSWER_SECONDS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.so_reuseport", 0),
        ("grpc.experimental.tcp_max_read_buffer_size", READ_BYTES),
    ]


class Connections:
    """Closes the connections of strangers of which there are too many, or that have been there for too long.

    ``welcomed`` are the other ends (`peer_of`) of devices' connections. Linux only.
    """

    def __init__(self, port: int, welcomed: Collection[str]) -> None:
        self._port = port
        self._welcomed = welcomed
        self._since: dict[str, float] = {}
        self._next = 0.0
        self._over: set[str] = set()  # since the last look
        self._due: set[str] = set()  # before it: the other end has read by now why

    def call_is_over(self, peer: str) -> None:
        """A connection has no use any more unless it is welcomed again: gRPC would read from it without end."""
        self._over.add(peer)

    def sweep(self) -> None:
        """Look at all connections once, and more seldom where there can be only few strangers."""
        names, now = os.listdir("/proc/self/fd"), time.monotonic()
        due, self._due, self._over = self._due, self._over, set()
        if not due and len(names) - len(self._welcomed) < FEW and now < self._next:
            return
        self._next = now + STRANGER_SECONDS
        there = {peer: name for name, peer, _ in self._sockets(names)}
        self._since = {peer: self._since.get(peer, now) for peer in there if peer not in self._welcomed}
        of_address: Counter[str] = Counter()
        # The newest stay: a device's handshake is done soon, and whoever does nothing is among the oldest.
        for number, peer in enumerate(sorted(self._since, key=lambda peer: -self._since[peer])):
            of_address[address_of(peer)] += 1
            too_many = number >= STRANGERS or of_address[address_of(peer)] > STRANGERS_OF_AN_ADDRESS
            age = now - self._since[peer]
            is_old = age > STRANGER_SECONDS or (too_many and age > NEW_SECONDS)
            if (is_old or peer in due) and peer not in self._welcomed:
                self._close(there[peer], peer)

    def keep_sweeping(self, over: threading.Event) -> None:
        """From a thread of its own, until it is over."""

        def sweep() -> None:
            while not over.wait(SWEEP_SECONDS):
                with contextlib.suppress(OSError):
                    step_back()
                with contextlib.suppress(OSError):
                    self.sweep()

        threading.Thread(target=sweep, name="connections", daemon=True).start()

    def _close(self, name: str, peer: str) -> None:
        for _, now_there, one in self._sockets([name]):
            if now_there == peer:  # no other has come in its place
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _sockets(self, names: list[str]) -> Iterator[tuple[str, str, socket.socket]]:
        """Of each descriptor that is a connection to the port, a second handle, open until the next is asked."""
        for name in names:
            with contextlib.suppress(OSError):  # it is gone, or the one that listens
                if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    continue
                with socket.socket(fileno=os.dup(int(name))) as one:
                    if one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockname()[1] == self._port:
                        yield name, peer_of(*one.getpeername()[:2]), one


def step_back() -> None:
    """Have gRPC's threads wait for whoever computes a round.

    There are more of them the more strangers there are to serve, and a round's one thread had an equal share of the
    processor with each: in a storm rounds took four times as long as with this.
    """
    nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + STEP_BACK)
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm") as name:
            if name.read() == "event_engine\n":
                os.setpriority(os.PRIO_PROCESS, int(thread), nice)


class Refusals:
    """Says who was refused: so many lines a minute, and then how many more."""

    LINES_A_MINUTE = 6

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._since, self._said, self._unsaid = clock(), 0, 0

    def add(self, who: str, why: str) -> None:
        """A device, or whoever, is refused."""
        if self._clock() - self._since >= 60.0:
            if self._unsaid:
                self._say(f"{self._unsaid} more were refused in the meantime")
            self._since, self._said, self._unsaid = self._clock(), 0, 0
        if self._said >= self.LINES_A_MINUTE:
            self._unsaid += 1
            return
        self._said += 1
        self._say(f"{who} is refused: {why}")


def address_of(peer: str) -> str:
    """Whose a connection is: of an IPv6 address its first 64 bits, below which a site gives out what it likes."""
    host = peer.rpartition(":")[0]
    with contextlib.suppress(OSError):
        return socket.inet_pton(socket.AF_INET6, host)[:8].hex()
    return host


def peer_of(host: str, port: int) -> str:
    """A connection's other end, in one way of writing."""
    return f"{host.removeprefix('::ffff:').partition('%')[0]}:{port}"


def peer_named(name: str) -> str:
    """The same from gRPC's name for it: ``ipv4:192.0.2.1:5000`` or ``ipv6:%5B2001:db8::1%5D:5000``."""
    host, _, port = urllib.parse.unquote(name.partition(":")[2]).rpartition(":")
    return peer_of(host.strip("[]"), int(port)) if port.isdigit() else name
