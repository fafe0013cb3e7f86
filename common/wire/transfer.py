"""Contents on their way: what one end still has to send, and what the other has of it already.

A content of up to `INLINE_BYTES` travels inside its task or reply, a larger one in chunks, as far as its receiver gives
credit. What has arrived of a larger one is a file that outlives the connection and the process.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bouquet.common.errors import BouquetError
from bouquet.common.wire.fleet_pb2 import Chunk, Content, Credit

MAJOR, MINOR = 1, 0
METHOD = "/bouquet.fleet.v1.Fleet/Connect"
INLINE_BYTES = 128 * 1024
CHUNK_BYTES = 128 * 1024
WINDOW_BYTES = 4 * CHUNK_BYTES  # that a receiver lets a sender be ahead
FRAME_BYTES = 256 * 1024  # of any frame: what is larger, gRPC does not take
MOST_WAITING = 1000  # frames for an end that does not read
FRAMES_A_SECOND = 1000  # of one end: as chunks of a model more than a gigabit
BURST_SECONDS = 1.0  # of frames at once
PAUSE_SECONDS = 0.1  # at least
# gRPC's windows stay as they are: by its probes whoever is not read may send more and more.
WINDOWS = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", WINDOW_BYTES)]


class WireError(BouquetError):
    """What the other end sent does not fit what it said before."""


def content_of(data: bytes) -> Content:
    """A content in memory, with its bytes where they travel inside."""
    about = Content(size=len(data), sha256=hashlib.sha256(data).digest())
    if len(data) <= INLINE_BYTES:
        about.data = data
    return about


def content_in(file: Path) -> Content:
    """The same of a file."""
    size = file.stat().st_size
    if size <= INLINE_BYTES:
        return content_of(file.read_bytes())
    with file.open("rb") as opened:
        return Content(size=size, sha256=hashlib.file_digest(opened, "sha256").digest())


def is_whole(about: Content) -> bool:
    """Whether a content travelled inside, all of it. Raises `WireError` where it is not what it says that it is."""
    if len(about.sha256) != 32:
        raise WireError("a content without its SHA-256")
    if about.size > INLINE_BYTES:
        if about.data:
            raise WireError("a part of a content inside a frame")
        return False
    if len(about.data) != about.size or hashlib.sha256(about.data).digest() != about.sha256:
        raise WireError("a content that is not what its length and SHA-256 say")
    return True


class Outgoing:
    """A large content that is sent as far as there is credit for it."""

    def __init__(self, identifier: str, file: Path, size: int) -> None:
        self.id, self.file, self.size = identifier, file, size
        self._at = self._end = 0

    def extend(self, credit: Credit) -> None:
        """Take a credit. Raises `WireError` for one beyond the end."""
        begin = credit.offset if credit.HasField("offset") else self._at
        if not begin <= credit.end <= self.size:
            raise WireError("a credit beyond the end")
        self._at, self._end = begin, credit.end

    def next(self) -> Chunk | None:
        """The next chunk, or None where there is no credit for one."""
        size = min(CHUNK_BYTES, self._end - self._at)
        if size <= 0:
            return None
        with self.file.open("rb") as opened:
            opened.seek(self._at)
            data = opened.read(size)
        if len(data) != size:
            raise WireError("a file that has shrunk")
        chunk = Chunk(id=self.id, offset=self._at, data=data)
        self._at += size
        return chunk


class Incoming:
    """A large content as it arrives, in the file ``FILE.part``; whole and checked it is ``file``."""

    def __init__(self, identifier: str, about: Content, file: Path) -> None:
        self.id, self.size, self.sha256, self.file = identifier, about.size, about.sha256, file
        # Of another content under the same name nothing is of use: its name is in the part's.
        self.part = file.with_name(f"{file.name}.{self.sha256[:8].hex()}.part")
        self._opened = os.open(self.part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(self._opened).st_size > self.size:
            os.ftruncate(self._opened, 0)
        self.at = os.fstat(self._opened).st_size
        self._end = self.at
        self.is_damaged = False  # once, at its end

    def begin(self) -> Credit:
        """The first credit of a connection: it says where to begin."""
        self._end = min(self.at + WINDOW_BYTES, self.size)
        return Credit(id=self.id, offset=self.at, end=self._end)

    def add(self, chunk: Chunk) -> Credit | None:
        """Keep a chunk; the credit that its sender is to have now. Raises `WireError` for one that does not fit."""
        if chunk.offset != self.at or not chunk.data or self.at + len(chunk.data) > self._end:
            raise WireError("a chunk that nobody gave credit for")
        view = memoryview(chunk.data)
        while view:
            written = os.pwrite(self._opened, view, self.at)
            self.at, view = self.at + written, view[written:]
        if self._end < self.size and self._end - self.at <= WINDOW_BYTES // 2:
            self._end = min(self.at + WINDOW_BYTES, self.size)
            return Credit(id=self.id, end=self._end)
        return None

    @property
    def is_complete(self) -> bool:
        """Whether all bytes are there; `finish` says whether they are the right ones."""
        return self.at == self.size

    def finish(self) -> Path:
        """Check what arrived and give it its name. Raises `WireError`, and begins anew, where it is another content."""
        with open(self._opened, "rb", closefd=False) as opened:
            opened.seek(0)
            found = hashlib.file_digest(opened, "sha256").digest()
        if found != self.sha256:
            os.ftruncate(self._opened, 0)
            self.at = self._end = 0
            raise WireError("a content that is not what its SHA-256 says")
        os.replace(self.part, self.file)
        self.close()
        return self.file

    def close(self) -> None:
        """Let go of the file, which stays."""
        if self._opened >= 0:
            os.close(self._opened)
            self._opened = -1

    def drop(self) -> None:
        """Nobody wants it any more."""
        self.close()
        self.part.unlink(missing_ok=True)


class Pace:
    """How much one end may say: where it says more, nothing is read of it for a while, and it cannot send, either."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._paid = clock, -float("inf")

    async def keep(self, frames: int = 1) -> None:
        """Wait as long as the other end has to that has said so many frames more."""
        now = self._clock()
        self._paid = max(self._paid, now - BURST_SECONDS) + frames / FRAMES_A_SECOND
        if self._paid > now:
            await asyncio.sleep(max(self._paid - now, PAUSE_SECONDS))


@dataclass
class Outbox:
    """What one end still has to send on a connection: frames in their order, and, when there are none, chunks.

    ``frame`` is the type of its frames. Large contents take turns, so that none holds up another.
    """

    frame: type[Any]

    def __post_init__(self) -> None:
        self._frames: deque[Any] = deque()
        self._contents: dict[str, Outgoing] = {}
        self._turns: deque[str] = deque()  # ids of contents that there is credit for
        self._news = asyncio.Event()
        self._closing = False

    def put(self, **what: Any) -> None:
        """Send a frame. Raises `WireError` where the other end has not read for long."""
        if len(self._frames) >= MOST_WAITING:
            raise WireError("more answers than it reads")
        self._frames.append(self.frame(**what))
        self._news.set()

    def put_later(self, make: Callable[[], Any]) -> None:
        """Send a frame that is made when it is its turn."""
        self._frames.append(make)
        self._news.set()

    def offer(self, outgoing: Outgoing) -> None:
        """Send a content, as soon as there is credit for it."""
        self._contents[outgoing.id] = outgoing

    def withdraw(self, identifier: str) -> None:
        """Send no more of a content."""
        self._contents.pop(identifier, None)

    def credit(self, credit: Credit) -> None:
        """Take a credit; one for what is no longer offered is passed over."""
        if (outgoing := self._contents.get(credit.id)) is not None:
            outgoing.extend(credit)
            if credit.id not in self._turns:
                self._turns.append(credit.id)
            self._news.set()

    def close(self) -> None:
        """Send what is waiting, and no more."""
        self._closing = True
        self._news.set()

    async def next(self) -> bytes | None:
        """The next frame, when there is one; None at the end."""
        while True:
            if self._frames:
                frame = self._frames.popleft()
                found: bytes = (frame() if callable(frame) else frame).SerializeToString()
                return found
            while self._turns:
                outgoing = self._contents.get(self._turns.popleft())
                if outgoing is not None and (chunk := outgoing.next()) is not None:
                    self._turns.append(outgoing.id)
                    whole: bytes = self.frame(chunk=chunk).SerializeToString()
                    return whole
            if self._closing:
                return None
            self._news.clear()
            await self._news.wait()
