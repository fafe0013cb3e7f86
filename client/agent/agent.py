"""The agent: holds the connection to the server for months, and has tasks done by processes beside it.

Nothing here imports PyTorch, Flower or what a model needs: it stays on the device, beside the training, in little
memory. What it is told by whoever holds the server is checked before it is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from bouquet.client.agent.channel import certificate, open_channel, renewal
from bouquet.client.agent.reachability import ServerMismatch, ServerUnreachable, check_server
from bouquet.client.agent.settings import DeviceSettings
from bouquet.client.agent.tasks import Tasks
from bouquet.client.agent.trainer import settle
from bouquet.client.node_config import TAGS
from bouquet.common.errors import BouquetError
from bouquet.common.texts import plain
from bouquet.common.trust.code import own_code, release
from bouquet.common.wire.fleet_pb2 import DeviceFrame, Hello, Refused, ServerFrame
from bouquet.common.wire.transfer import MAJOR, METHOD, MINOR, Outbox, Pace, WireError

WELCOME_SECONDS = 60.0
FIRST_PAUSE_SECONDS = 0.5
RECONNECT_SECONDS = 5.0  # a server that is back is found again so late at most
LONGEST_PAUSE_SECONDS = 60.0
STEADY_SECONDS = 10.0  # a connection that lasted so long is tried again at once
LONGEST_LOSS_SECONDS = 3600.0  # for a task in hand: whoever gave it has likely given up
GOODBYE_SECONDS = 2.0
LONGEST_NOTICE = 500
MOST_LINES, LINES_SECONDS = 30, 3600.0  # of the log, that are the server's doing


class Turned(BouquetError):
    """The server does not take this device. ``passing``: what its operator, or time, may mend."""

    def __init__(self, text: str, passing: bool) -> None:
        super().__init__(text)
        self.passing = passing


class Agent:
    """One device; ``say`` is given each line for its owner."""

    def __init__(self, settings: DeviceSettings, say: Callable[[str], None]) -> None:
        self.settings, self.say = settings, say
        self.tasks = Tasks(settings, say, self._tell)
        self.session = os.urandom(16)
        self.admitted = False
        self._lost = ""  # why the connection was lost, as it was said
        self._giving_up: asyncio.TimerHandle | None = None
        self._lines: deque[float] = deque(maxlen=MOST_LINES)
        self._why_not = ""  # it did not get in, as it was said
        self._unsent = ""  # what of this end's broke the connection
        self._over = False

    async def run(self) -> None:
        """Work until this is cancelled, or says `goodbye`.

        Raises `BouquetError` where the device does not get in, and waiting is vain.
        """
        wait = self.settings.wait
        deadline = float("inf") if wait is None else time.monotonic() + wait
        await self.tasks.worker.start()
        working = asyncio.ensure_future(self.tasks.work())
        pause = FIRST_PAUSE_SECONDS
        try:
            while not self._over:
                began, longest = time.monotonic(), LONGEST_PAUSE_SECONDS
                self.tasks.came_further = False
                try:
                    await self._connect()  # it was welcome
                    if self.tasks.came_further or time.monotonic() - began > STEADY_SECONDS:
                        pause = FIRST_PAUSE_SECONDS
                except (ServerUnreachable, ServerMismatch, Turned) as problem:
                    may_pass = isinstance(problem, ServerUnreachable) or getattr(problem, "passing", False)
                    if not self.admitted and (not may_pass or time.monotonic() >= deadline):
                        raise
                    if not isinstance(problem, Turned):
                        longest = RECONNECT_SECONDS
                    self._say_why_not(problem)
                await asyncio.sleep(max(0.0, min(pause * random.uniform(0.5, 1.0), deadline - time.monotonic() + 0.05)))
                pause = min(2 * pause, longest)
        finally:
            working.cancel()
            await self.tasks.worker.close()

    def _say_why_not(self, problem: BouquetError) -> None:
        text = re.sub(r"\d+", "", str(problem))  # a clock in it is no news
        if text != self._why_not and not (self._lost and isinstance(problem, ServerUnreachable)):
            wait = self.settings.wait
            self.say(f"{problem} Trying again{'.' if wait is None or self.admitted else f' for {wait:g} s.'}")
        self._why_not = text

    async def _connect(self) -> None:
        """One connection, to its end. Raises where it never was one."""
        settings = self.settings
        channel = open_channel(settings)
        welcome = False
        try:
            call = channel.stream_stream(METHOD)()
            self._unsent = ""
            outbox = Outbox(DeviceFrame)
            outbox.put(hello=self._hello())
            writing = asyncio.ensure_future(self._write(call, outbox))
            try:
                # Not wait_for, whose errors hold the call in a cycle: then the closed channel goes on connecting.
                async with asyncio.timeout(WELCOME_SECONDS):
                    first = await call.read()
                if first is grpc.aio.EOF:
                    raise ServerUnreachable(f"The server {settings.server} ended the connection.")
                self._admit(ServerFrame.FromString(first))
                welcome = True
                self.tasks.outbox = outbox
                await self._read(call)
                self._say_lost("it ended")
            finally:
                self.tasks.disconnected()
                outbox.close()
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(writing, GOODBYE_SECONDS)
                call.cancel()
        except (OSError, grpc.RpcError, WireError, DecodeError) as error:  # a time that is over, a full disk, too
            details = error.details() if isinstance(error, grpc.RpcError) else str(error)
            if welcome:
                self._say_lost(plain(str(details or error), 200))
                return
            await asyncio.to_thread(  # says what is wrong, where it can
                check_server,
                settings.server,
                insecure=settings.insecure,
                authority=settings.authority,
                certificate=certificate(settings),
                private_key=settings.private_key,
            )
            raise ServerUnreachable(
                f"The server {settings.server} does not answer ({plain(str(details or 'no answer'), 200)})."
            ) from None
        finally:
            await channel.close()

    def _hello(self) -> Hello:
        tags = str(self.settings.node_config.get(TAGS, ""))
        return Hello(
            major=MAJOR,
            minor=MINOR,
            release=release(),
            session=self.session,
            code=own_code(),
            tags=tags.split(",") if tags else [],
            holds=self.tasks.store.holds(),
        )

    def _admit(self, frame: ServerFrame) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "refused":
            raise self._turned(frame.refused)
        if kind != "welcome" or frame.welcome.major != MAJOR:
            raise ServerMismatch(
                f"The server {self.settings.server} speaks version {frame.welcome.major} of the protocol, this device "
                f"version {MAJOR}: install the same release on both."
            )
        if self._lost:
            self._tell("The server is back: connected again.")
        elif not self.admitted or self._why_not:
            self.say("Connected.")
            settle()  # it stays for months
        self._lost = self._why_not = ""
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        self.admitted = True
        self.tasks.connected(frame.welcome.node)

    def _turned(self, refused: Refused) -> Turned:
        hints = {
            Refused.NOT_REGISTERED: "The server does not admit this device: its certificate is not registered there "
            "(bouquet keys add, on the server), or was removed there (bouquet keys remove).",
            Refused.IN_USE: "The server takes another device for this one, which shows the same certificate: is one "
            "the copy of the other's card? Give each its own (bouquet keys add, on the server).",
        }
        said = plain(refused.text, LONGEST_NOTICE)
        hint = hints.get(refused.code, f"The server does not take this device: {said}.")
        return Turned(hint, passing=refused.code in (Refused.NOT_REGISTERED, Refused.IN_USE, Refused.FULL))

    def _say_lost(self, why: str) -> None:
        if not self._lost and not self._over:
            self._lost = why
            self._tell(f"The connection to the server is lost; trying again until it is back ({why}).")
            self._giving_up = asyncio.get_running_loop().call_later(LONGEST_LOSS_SECONDS, self.tasks.give_up)

    def _tell(self, line: str) -> None:
        """Say what the server can bring about as often as it likes; no more than the log can bear."""
        now = time.monotonic()
        if len(self._lines) < MOST_LINES or now - self._lines[0] > LINES_SECONDS:
            self._lines.append(now)
            self.say(line)

    async def _write(self, call: Any, outbox: Outbox) -> None:
        try:
            while (frame := await outbox.next()) is not None:
                await call.write(frame)
            await call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError):  # the reader sees it, too
            pass
        except (OSError, WireError) as error:  # a file that was to be sent is gone
            self._unsent = str(error)
            call.cancel()

    async def _read(self, call: Any) -> None:
        pace = Pace()
        while True:
            await pace.keep()
            try:
                data = await call.read()
            except asyncio.CancelledError:
                if self._unsent:  # by `_write`; else the agent ends
                    raise WireError(self._unsent) from None
                raise
            if data is grpc.aio.EOF:
                return
            frame = ServerFrame.FromString(data)
            kind = frame.WhichOneof("frame")
            if kind == "goodbye":
                self._say_lost("it ends")
                return
            if kind == "refused":
                raise self._turned(frame.refused)
            if kind == "ping":
                self.tasks.put(pong={})
            elif kind == "notice":
                self._tell(f"The server says: {plain(frame.notice.text, LONGEST_NOTICE)}")
            elif kind == "certificate":
                if said := renewal(self.settings, frame.certificate.pem):
                    self._tell(said)
            elif (handle := getattr(self.tasks, f"on_{kind}", None)) is not None:
                handle(getattr(frame, kind))

    def goodbye(self) -> None:
        """Tell the server that this device goes; it does not come back."""
        self._over = True
        if (outbox := self.tasks.outbox) is not None:
            with contextlib.suppress(WireError):
                outbox.put(goodbye={"reason": "the device ends"})
            outbox.close()
