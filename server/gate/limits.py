"""How much is held open and done at a time, in all, for a key and for an address."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import grpc

from server.gate.open_files import most_connections
from server.gate.superlink_api import Refused

CALLS = 4000  # at a time; each device that waits for a message holds one, where there is room
CALLS_OF_AN_ADDRESS = 3000  # a site's devices may share one
STRANGERS_CALLS = 1000  # of an address, on connections on which nobody has signed; beside those of its devices
ROOM_TO_WAIT = 0.75  # of either; what is left is for calls that do not wait
CALLS_OF_A_KEY = 16  # a device has four at most
CALLS_OF_A_CONNECTION = 32
IN_HAND = 4  # calls of a key whose body is read, or that are with SuperLink; the next wait
SOON, CALLS_A_SECOND = 5000, 50.0  # so many calls of a key are done as they come, and refilled at this pace
OBJECTS_AS_A_CALL = 10  # to write down that these are coming takes as long
BODY_SECONDS = 600.0  # in which a body has to be here: 36 MB at 60 kB/s
CONNECTIONS_OF_A_KEY = 8  # the oldest are closed
STRANGERS_OF_AN_ADDRESS = 256  # connections on which nobody has signed yet; what is more is closed
STRANGER_SECONDS = 30.0
SWEEP_SECONDS = 5.0
HANDSHAKE_SECONDS = 15  # from the first packet to the end of TLS and of HTTP/2's settings
IDLE_SECONDS = 120  # without a call; a device's heartbeat comes each half minute
LINES_A_MINUTE = 6


def door_options(message_bytes: int) -> list[tuple[str, int]]:
    """gRPC's limits: what a message may be, and how long a connection may do nothing."""
    return [
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", CALLS_OF_A_CONNECTION),
        ("grpc.max_allowed_incoming_connections", most_connections()),
        ("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_SECONDS),
        ("grpc.max_connection_idle_ms", 1000 * IDLE_SECONDS),
        # As Flower has them: a peer that is gone is noticed within four minutes. Devices ask each minute themselves.
        ("grpc.keepalive_time_ms", 210_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 30_000),
        ("grpc.so_reuseport", 0),
    ]


class Refusals:
    """Says who was refused: so many lines a minute, and then how many more."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._since, self._said, self._unsaid = clock(), 0, 0

    def add(self, peer: str, method: str, why: str) -> None:
        """A call from this peer is refused."""
        if self._clock() - self._since >= 60.0:
            if self._unsaid:
                self._say(f"[gate] {self._unsaid} more calls were refused in the meantime.")
            self._since, self._said, self._unsaid = self._clock(), 0, 0
        if self._said >= LINES_A_MINUTE:
            self._unsaid += 1
            return
        self._said += 1
        self._say(f"[gate] {method} from {peer} is refused: {why}.")


@dataclass
class Pace:
    """Calls of a key: how many there are, those in hand, and how many it has left before it is slowed."""

    calls: int = 0
    in_hand: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(IN_HAND))
    left: float = SOON
    newest: dict[str, str | bytes] = field(default_factory=dict)  # headers: a signature ages while a body comes
    at: float = field(default_factory=time.monotonic)

    def pause(self) -> float:
        """Seconds that the next call waits."""
        self.refill()
        self.count(1)
        return max(0.0, -self.left / CALLS_A_SECOND)

    def refill(self) -> None:
        """Give back what time has."""
        now = time.monotonic()
        self.left = min(SOON, self.left + (now - self.at) * CALLS_A_SECOND)
        self.at = now

    def count(self, calls: float) -> None:
        """So many calls are made, or something takes as long."""
        self.left -= calls


class Turns:
    """Gives each key and each address its part."""

    def __init__(self) -> None:
        self._calls = 0
        self._keys: defaultdict[bytes, Pace] = defaultdict(Pace)
        self._addresses: Counter[tuple[str, bool]] = Counter()  # by address, and whether a key has signed there

    @contextlib.contextmanager
    def of_all(self, peer: str, proven: bool) -> Iterator[Callable[[], None]]:
        """A call's turn among all and among its address's, before it is known who makes it.

        Whether a key has signed on its connection is ``proven``: strangers take no turns from the devices of a site.
        Gives what is to be called once it is known that a device makes the call: then it counts among those.
        """
        whose = address_of(peer), proven

        def known() -> None:
            nonlocal whose
            device = whose[0], True
            if whose != device and self._addresses[device] < CALLS_OF_AN_ADDRESS:
                self._leave(whose)
                self._addresses[device] += 1
                whose = device

        if self._calls >= CALLS or self._addresses[whose] >= (CALLS_OF_AN_ADDRESS if proven else STRANGERS_CALLS):
            why = "Too many calls" if self._calls >= CALLS else "Too many calls of this address"
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"{why} at a time", f"{why} at a time")
        self._calls += 1
        self._addresses[whose] += 1
        try:
            yield known
        finally:
            self._calls -= 1
            self._leave(whose)

    def _leave(self, whose: tuple[str, bool]) -> None:
        self._addresses[whose] -= 1
        if not self._addresses[whose]:
            del self._addresses[whose]

    @contextlib.contextmanager
    def of(self, key: bytes) -> Iterator[Pace]:
        """A key's turn; a call's body is read, and SuperLink asked, while it is one of those in hand."""
        pace = self._keys[key]
        if pace.calls >= CALLS_OF_A_KEY:
            why = "Too many calls of this key at a time"
            raise Refused(grpc.StatusCode.UNAVAILABLE, why, why)
        pace.calls += 1
        try:
            yield pace
        finally:
            pace.calls -= 1

    def may_wait(self, peer: str) -> bool:
        """Whether there is room for a look that is held."""
        of_address = self._addresses[address_of(peer), True]
        return self._calls <= ROOM_TO_WAIT * CALLS and of_address <= ROOM_TO_WAIT * CALLS_OF_AN_ADDRESS

    def forget(self) -> None:
        """What is known of keys that have done nothing for so long that it makes no difference."""
        for key, pace in list(self._keys.items()):
            pace.refill()
            if not pace.calls and pace.left >= SOON:
                del self._keys[key]


class Connections:
    """Closes connections of which there are too many: gRPC counts them all together.

    ``proven`` says which key has signed on a connection. Those that are gone are taken out of it. Linux only.
    """

    def __init__(self, port: int, proven: dict[str, bytes]) -> None:
        self._port = port
        self._proven = proven
        self._since: dict[str, float] = {}
        self._gone: set[str] = set()

    def sweep(self) -> None:
        """Look at all connections once."""
        there = {peer: name for name, peer, _ in self._sockets(os.listdir("/proc/self/fd"))}
        now = time.monotonic()
        self._since = {peer: self._since.get(peer, now) for peer in there}
        # Twice, for one may have come while the others were counted.
        gone = set(self._proven) - there.keys()
        for peer in gone & self._gone:
            self._proven.pop(peer, None)
        self._gone = gone
        keys: Counter[bytes] = Counter()
        strangers: Counter[str] = Counter()
        for peer in sorted(there, key=lambda peer: -self._since[peer]):  # the newest first
            if (key := self._proven.get(peer)) is not None:
                keys[key] += 1
                too_many = keys[key] > CONNECTIONS_OF_A_KEY
            else:
                address = address_of(peer)
                strangers[address] += 1
                too_many = strangers[address] > STRANGERS_OF_AN_ADDRESS
                too_many = too_many or now - self._since[peer] > STRANGER_SECONDS
            if too_many:
                self._close(there[peer], peer)

    def _close(self, name: str, peer: str) -> None:
        for _, now_there, one in self._sockets([name]):
            if now_there == peer:  # no other has come in its place
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _sockets(self, names: list[str]) -> Iterator[tuple[str, str, socket.socket]]:
        """Of each descriptor that is a connection to the gate's port, a second handle, open until the next is asked."""
        for name in names:
            with contextlib.suppress(OSError):  # it is gone, or the one that listens
                if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    continue
                with socket.socket(fileno=os.dup(int(name))) as one:
                    if one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockname()[1] == self._port:
                        yield name, peer_of(*one.getpeername()[:2]), one


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


def keep_sweeping(connections: Connections) -> None:
    """From a thread of its own, as long as the process lives."""

    def sweep() -> None:
        while not threading.Event().wait(SWEEP_SECONDS):
            with contextlib.suppress(OSError):
                connections.sweep()

    threading.Thread(target=sweep, name="connections", daemon=True).start()
