"""The devices as the service knows them, over all their connections: what each has to do, and whether it is there."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import Message

from bouquet.common.wire.fleet_pb2 import Content, Hello, ServerFrame, Task
from bouquet.common.wire.transfer import INLINE_BYTES, Incoming, Outbox, Pace, WireError, content_of

# A device that lost its connection and has not said goodbye counts as there for so long: it may come back at once.
BACK_SECONDS = 15.0


class Contents:
    """The contents of tasks, large ones on the disk: the same one once, and as long as a task needs it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._uses: Counter[str] = Counter()
        self._small: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def keep(self, data: bytes) -> Content:
        """A content for one more task; `data` or `file` has its bytes. Raises `OSError` where the disk is full."""
        about = content_of(data)
        name = about.sha256.hex()
        with self._lock:
            if name not in self._uses and about.data:
                self._small[name] = data
            elif name not in self._uses:
                try:
                    self.file(about).write_bytes(data)
                except OSError:
                    self.file(about).unlink(missing_ok=True)
                    raise
            self._uses[name] += 1
        about.ClearField("data")
        return about

    def data(self, about: Content) -> bytes | None:
        """The bytes of a small content, None of a large one."""
        return self._small.get(about.sha256.hex(), b"") if about.size <= INLINE_BYTES else None

    def file(self, about: Content) -> Path:
        """Where a large content lies."""
        return self._folder / f"{about.sha256.hex()}.content"

    def release(self, about: Content) -> None:
        """One task needs it no more."""
        name = about.sha256.hex()
        with self._lock:
            self._uses[name] -= 1
            if not self._uses[name]:
                del self._uses[name]
                if self._small.pop(name, None) is None:
                    self.file(about).unlink(missing_ok=True)


@dataclass
class Reply:
    """What a device answered: ``error`` is a code and a reason, else the content is in ``data`` or in ``file``."""

    error: tuple[int, str] | None = None
    data: bytes = b""
    file: Path | None = None

    def take(self) -> bytes:
        """The content, once."""
        if self.file is None:
            return self.data
        try:
            return self.file.read_bytes()
        finally:
            self.file.unlink(missing_ok=True)


@dataclass
class Dispatch:
    """A task on its way to a device and back; its content is in `Contents`."""

    message: Message  # without its content
    task: Task
    until: float  # of the monotonic clock
    about: Content = field(default_factory=Content)  # of a large reply that comes
    said_on: Stream | None = None  # the connection on which it was announced
    incoming: Incoming | None = None
    is_checked: bool = False  # just now, in a thread: it is not to be touched
    is_damaged: bool = False  # once it was not what its SHA-256 says, and has begun anew
    part: Path | None = None  # what has come of it
    reserved: int = 0  # bytes on the disk
    reply: Reply | None = None


@dataclass(eq=False)
class Stream:
    """One connection of a device. ``ping`` asks whether anybody is still there."""

    peer: str
    session: bytes
    fingerprint: str | None
    pace: Pace = field(default_factory=Pace)
    outbox: Outbox = field(default_factory=lambda: Outbox(ServerFrame))
    told_run: int | None = None
    reading: asyncio.Future[None] | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    pongs: int = 0
    _pong: asyncio.Event = field(default_factory=asyncio.Event)

    def answered(self) -> None:
        """There is a Pong."""
        self.pongs += 1
        self._pong.set()

    async def answers(self, seconds: float) -> bool:
        """Whether the device answers a Ping within so many seconds."""
        before = self.pongs  # another one may ask at the same time, and clear what was set for both
        self._pong.clear()
        try:
            self.outbox.put(ping={})
        except WireError:  # it has not read for long
            return False
        waits = [asyncio.ensure_future(self._pong.wait()), asyncio.ensure_future(self.over.wait())]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return self.pongs > before and not self.over.is_set()


@dataclass(eq=False)
class Device:
    """A device: ``name`` is its certificate's, None without keys. Times are seconds since 1970."""

    node: int
    name: str | None
    hello: Hello = field(default_factory=Hello)  # the release and the tags
    stream: Stream | None = None
    since: float = 0.0
    seen: float = 0.0
    left: bool = False  # it said goodbye
    tasks: dict[str, Dispatch] = field(default_factory=dict)  # what nobody has answered, in order

    def is_there(self, now: Callable[[], float] = time.time) -> bool:
        """Whether it is connected, or may be back at once."""
        # Of a clock that was set back it is not known how long it has been away.
        return self.stream is not None or (not self.left and abs(now() - self.seen) < BACK_SECONDS)


def node_of(identity: bytes) -> int:
    """The number by which Flower's messages name a device: the same for the same name."""
    return int.from_bytes(hashlib.sha256(identity).digest()[:8], "big") >> 1 or 1
