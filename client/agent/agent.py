"""The agent: holds the connection to the server for months, and has tasks done by processes beside it.

Nothing here imports PyTorch, Flower or what a model needs: it stays on the device, beside the training, in little
memory. What it is told by whoever holds the server is checked before it is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from bouquet.client.agent.reachability import ServerMismatch, ServerUnreachable, check_server
from bouquet.client.agent.settings import DeviceSettings
from bouquet.client.agent.store import NODE_CONFIG, TASKS, NoRoom, TaskStore
from bouquet.client.agent.trainer import settle
from bouquet.client.agent.worker import Worker
from bouquet.client.node_config import TAGS, WHEN
from bouquet.client.trust.policy import LARGEST_CODE_BYTES, CodeRefused, unpack, unpacked
from bouquet.common.errors import BouquetError
from bouquet.common.system.files import write_atomically
from bouquet.common.texts import plain
from bouquet.common.torchvision_compat import wants_torchvision
from bouquet.common.trust.certificates import fingerprint
from bouquet.common.trust.code import own_code, release
from bouquet.common.wire.fleet_pb2 import DeviceFrame, Hello, Refused, Run, ServerFrame, Task
from bouquet.common.wire.transfer import (
    FRAME_BYTES,
    MAJOR,
    METHOD,
    MINOR,
    Incoming,
    Outbox,
    Outgoing,
    WireError,
    is_whole,
)

KEEPALIVE_SECONDS, KEEPALIVE_ANSWER_SECONDS = 50, 20  # as the server's (`bouquet.server.service.connections`)
WELCOME_SECONDS = 60.0
RETRY_SECONDS = 2.0
RECONNECT_SECONDS = 5.0  # a server that is back is found again so late at most
LONGEST_PAUSE_SECONDS = 60.0
STEADY_SECONDS = 10.0  # a connection that lasted so long is tried again at once
LONGEST_LOSS_SECONDS = 3600.0  # for a task in hand: whoever gave it has likely given up
GOODBYE_SECONDS = 2.0
WORK = ("train", "evaluate")  # types of tasks, and what their names begin with
MOST_TASKS = 16  # that a server has this device keep
CODE_REFUSED, CRASHED = 7, 8  # Flower's INVALID_FAB and CLIENT_APP_CRASHED
IDENTIFIER = re.compile(r"[0-9a-f]{32}")
LONGEST_NOTICE, LONGEST_REASON = 500, 1000
MOST_LINES, LINES_SECONDS = 30, 3600.0  # of the log, that are the server's doing
CERTIFICATE = "device.crt"  # in the state folder: a renewed one; beside it, of which it is the renewal
UNPACKED = "unpacked"  # in its folder of code: that of other releases


class Turned(BouquetError):
    """The server does not take this device. ``passing``: what its operator, or time, may mend."""

    def __init__(self, text: str, passing: bool) -> None:
        super().__init__(text)
        self.passing = passing


class Agent:
    """One device; ``say`` is given each line for its owner."""

    def __init__(self, settings: DeviceSettings, say: Callable[[str], None]) -> None:
        self.settings, self.say = settings, say
        self.store = TaskStore(settings.state_dir / TASKS)
        self.store.sweep()
        told = json.dumps({**settings.node_config, **settings.trust.node_config})
        write_atomically(self.store.folder / NODE_CONFIG, told.encode(), 0o600)
        self.worker = Worker(self.store.folder, say, settings.cold, settings.trainer)
        self.session = os.urandom(16)
        self.admitted = False
        self._watch: Any = None
        if when := settings.node_config.get(WHEN):
            from bouquet.client.owner.watch import Watch  # pydantic, which is for nothing else here

            self._watch = Watch(Path(str(when)), settings.state_dir)
        self._lost = ""  # why the connection was lost, as it was said
        self._giving_up: asyncio.TimerHandle | None = None
        self._lines: deque[float] = deque(maxlen=MOST_LINES)
        self._why_not = ""  # it did not get in, as it was said
        self._said_rest = ""
        self._tasks: dict[str, Task] = {}  # to be done, in order, those in hand and answered too
        self._ready: dict[str, None] = {}  # those of them whose turn comes
        self._news = asyncio.Event()
        self._timers: dict[str, asyncio.TimerHandle] = {}  # until nobody waits for a task any more
        self._in_hand: tuple[str, asyncio.Future[str]] | None = None
        self._coming: dict[str, Incoming] = {}
        self._run: Run | None = None
        self._node = 0
        self._refusal = ""  # why the run's code is not run
        self._code: Path | None = None  # where code lies that is not installed
        self._code_is_here = asyncio.Event()
        self._outbox: Outbox | None = None
        self._unsent = ""  # what of this end's broke the connection
        self._over = False

    # --- connections -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until this is cancelled, or says `goodbye`.

        Raises `BouquetError` where the device does not get in, and waiting is vain.
        """
        wait = self.settings.wait
        deadline = float("inf") if wait is None else time.monotonic() + wait
        await self.worker.start()
        working = asyncio.ensure_future(self._work())
        pause = 0.5
        try:
            while not self._over:
                began = time.monotonic()
                try:
                    await self._connect()  # it was welcome
                    if self._over:
                        break
                    longest = LONGEST_PAUSE_SECONDS
                    if time.monotonic() - began > STEADY_SECONDS:
                        pause = 0.5
                except (ServerUnreachable, ServerMismatch, Turned) as problem:
                    mended = isinstance(problem, ServerUnreachable) or getattr(problem, "passing", False)
                    if not self.admitted and (not mended or time.monotonic() >= deadline):
                        raise
                    text = re.sub(r"\d+", "", str(problem))  # a clock in it is no news
                    longest = LONGEST_PAUSE_SECONDS if isinstance(problem, Turned) else RECONNECT_SECONDS
                    if text != self._why_not and not (self._lost and isinstance(problem, ServerUnreachable)):
                        more = "." if wait is None or self.admitted else f" for {wait:g} s."
                        self.say(f"{problem} Trying again{more}")
                    self._why_not = text
                await asyncio.sleep(max(0.0, min(pause * random.uniform(0.5, 1.0), deadline - time.monotonic() + 0.05)))
                pause = min(2 * pause, longest)
        finally:
            working.cancel()
            await self.worker.close()

    async def _connect(self) -> None:
        """One connection, to its end. Raises where it never was one."""
        settings = self.settings
        channel = self._channel()
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
                self._outbox = outbox
                await self._read(call)
                self._say_lost("it ended")
            finally:
                self._outbox = None
                self._end_transfers()
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
                certificate=self._certificate(),
                private_key=settings.private_key,
            )
            raise ServerUnreachable(
                f"The server {settings.server} does not answer ({plain(str(details or 'no answer'), 200)})."
            ) from None
        finally:
            await channel.close()

    def _channel(self) -> grpc.aio.Channel:
        settings = self.settings
        options = [
            ("grpc.max_receive_message_length", FRAME_BYTES),
            ("grpc.keepalive_time_ms", 1000 * KEEPALIVE_SECONDS),
            ("grpc.keepalive_timeout_ms", 1000 * KEEPALIVE_ANSWER_SECONDS),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if settings.insecure:
            return grpc.aio.insecure_channel(settings.server, options)
        assert settings.authority is not None
        assert settings.private_key is not None
        certificate = self._certificate()
        assert certificate is not None
        files = (settings.authority, settings.private_key, certificate)
        try:
            credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
        except OSError as error:
            raise ServerMismatch(f"{error.filename} cannot be read: {error.strerror}.") from None
        return grpc.aio.secure_channel(settings.server, credentials, options)

    def _certificate(self) -> Path | None:
        """The renewed certificate, where the server has sent one since the owner copied the last."""
        given, renewed = self.settings.certificate, self.settings.state_dir / CERTIFICATE
        with contextlib.suppress(OSError, BouquetError):
            if given is not None and renewed.with_suffix(".of").read_text() == fingerprint(given.read_bytes()):
                return renewed
        return given

    def _hello(self) -> Hello:
        tags = str(self.settings.node_config.get(TAGS, ""))
        return Hello(
            major=MAJOR,
            minor=MINOR,
            release=release(),
            session=self.session,
            code=own_code(),
            tags=tags.split(",") if tags else [],
            holds=self.store.holds(),
        )

    def _admit(self, frame: ServerFrame) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "refused":
            raise self._turned(frame.refused)
        if kind != "welcome" or frame.welcome.major != MAJOR:
            raise ServerMismatch(f"The server {self.settings.server} speaks another version; install the same release.")
        self._node = frame.welcome.node
        self._run = None
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
        # What is answered the server asks for again, or has no use for any more.
        for identifier in [one for one in self._tasks if self.store.reply_is_there(one)]:
            del self._tasks[identifier]
        self.store.sweep(self._tasks)

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
            self._giving_up = asyncio.get_running_loop().call_later(LONGEST_LOSS_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if self._in_hand is not None:
            self.say("The work in hand ends: the server is lost for too long.")
            self._cancel(self._in_hand[0])

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
        while True:
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
            if kind is not None and (handle := getattr(self, f"_on_{kind}", None)) is not None:
                handle(getattr(frame, kind))

    def _put(self, **what: Any) -> None:
        if self._outbox is not None:
            self._outbox.put(**what)

    def goodbye(self) -> None:
        """Tell the server that this device goes; it does not come back."""
        self._over = True
        with contextlib.suppress(WireError):
            self._put(goodbye={"reason": "the device ends"})
        if self._outbox is not None:
            self._outbox.close()

    # --- what the server says ----------------------------------------------------------------------------------

    def _on_ping(self, _: Any) -> None:
        self._put(pong={})

    def _on_notice(self, notice: Any) -> None:
        self._tell(f"The server says: {plain(notice.text, LONGEST_NOTICE)}")

    def _on_run(self, run: Run) -> None:
        try:
            config = json.loads(run.settings)
            if not isinstance(config, dict) or not re.fullmatch(r"[0-9a-f]{64}", run.code):
                raise ValueError
        except (ValueError, RecursionError):
            raise WireError("a run that cannot be read") from None
        for task in [one for one in self._tasks.values() if one.run != run.id]:
            self._cancel(task.id)  # that run is over
        for code in [one for one in self._coming if one not in self._tasks]:
            self._coming.pop(code).close()
        before, self._refusal = self._refusal, ""
        self._run, self._code = run, None
        self._code_is_here.clear()
        try:
            news = self.settings.trust.judge(run.code, run.signature, plain(run.release, 60))
            self.settings.trust.check_config(config)
        except CodeRefused as error:
            self._refuse(str(error), before)
            return
        if news:
            self._tell(news)
        self.store.keep_run(run)
        apps = self.settings.state_dir / "code"
        if run.code == own_code() or (found := unpacked(run.code, apps / UNPACKED)) is not None:
            self._code = None if run.code == own_code() else found
            self._code_is_here.set()
            return
        if not 0 < run.bundle.size <= LARGEST_CODE_BYTES or len(run.bundle.sha256) != 32:
            self._refuse(f"Its archive cannot have {run.bundle.size} bytes.", before)
            return
        apps.mkdir(parents=True, exist_ok=True, mode=0o700)
        for rest in apps.glob("*.zip*"):
            if not rest.name.startswith(run.code[:16]):
                rest.unlink(missing_ok=True)
        incoming = Incoming(run.code, run.bundle, apps / f"{run.code[:16]}.zip")
        self._coming[run.code] = incoming
        self._put(credit=incoming.begin())
        if incoming.is_complete:
            self._finish(incoming)

    def _refuse(self, reason: str, before: str = "") -> None:
        if reason != before:
            self._tell(f"Refused to run the server's code. {reason}")
        self._refusal = reason
        self._code_is_here.set()

    def _on_task(self, task: Task) -> None:
        if self._run is None or task.run != self._run.id or not IDENTIFIER.fullmatch(task.id):
            raise WireError("a task that belongs to no run")
        if (reply := self.store.reply(task.id)) is not None:
            self._tasks[task.id] = task
            self._expire(task)
            self._deliver(task.id, reply)
        elif task.id in self._tasks:
            self._expire(task)  # it comes, waits its turn, or is being done
        elif self._refusal:
            self._put(reply={"id": task.id, "error": {"code": CODE_REFUSED, "reason": self._refusal}})
        elif len(self._tasks) >= MOST_TASKS:
            raise WireError("more tasks than one device can have")
        elif (later := self._not_now(task)) is not None:
            self._put(not_now={"id": task.id, "reason": str(later), "seconds": max(0.0, later.seconds)})
        else:
            self._take(task)

    def _take(self, task: Task) -> None:
        is_here = self.store.has_content(task) or is_whole(task.content)
        try:
            self.store.keep(task, self._node, sum(one.size - one.at for one in self._coming.values()))
            incoming = None if is_here else self.store.incoming(task)
        except NoRoom as error:
            self.store.drop(task.id)
            self._put(reply={"id": task.id, "error": {"code": CRASHED, "reason": str(error)}})
            self._tell(str(error))
            return
        task.content.ClearField("data")
        self._tasks[task.id] = task
        self._expire(task)
        if incoming is None:
            self._begin(task.id)
            return
        self._coming[task.id] = incoming
        self._put(credit=incoming.begin())
        if incoming.is_complete:
            self._finish(incoming)

    def _expire(self, task: Task) -> None:
        """Forget a task when nobody waits for it any more, as the server said last."""
        if (timer := self._timers.pop(task.id, None)) is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[task.id] = loop.call_later(max(1.0, task.seconds), self._cancel, task.id)

    def _begin(self, identifier: str) -> None:
        """All of a task is here: it is done when its turn comes."""
        self._ready[identifier] = None
        self._news.set()

    def _not_now(self, task: Task) -> Any:
        """Whether the owner lets no work begin; said where it is another reason than the last."""
        if self._watch is None or task.type.partition(".")[0] not in WORK:
            return None
        later = self._watch.refusal()
        if later is not None and str(later) != self._said_rest:
            self.say(f"The owner's conditions: {later}. Rounds go on without this device until then.")
        self._said_rest = "" if later is None else str(later)
        return later

    def _on_chunk(self, chunk: Any) -> None:
        if (incoming := self._coming.get(chunk.id)) is None:
            return
        try:
            more = incoming.add(chunk)
        except OSError as error:
            self._tell(f"What the server sends cannot be kept: {error.strerror}.")
            self._cancel(chunk.id)
            if self._run is not None and chunk.id == self._run.code:
                self._refuse("This device's disk is full.")
                return
            self._put(reply={"id": chunk.id, "error": {"code": CRASHED, "reason": "The device's disk is full."}})
            return
        if more is not None:
            self._put(credit=more)
        if incoming.is_complete:
            self._finish(incoming)

    def _finish(self, incoming: Incoming) -> None:
        try:
            file = incoming.finish()
        except WireError:
            self._put(credit=incoming.begin())
            return
        del self._coming[incoming.id]
        if self._run is not None and incoming.id == self._run.code:
            try:
                self._code = unpack(file.read_bytes(), self._run.code, self.settings.state_dir / "code" / UNPACKED)
            except (CodeRefused, OSError) as error:
                self._refuse(str(error))
            finally:
                file.unlink(missing_ok=True)
            self._code_is_here.set()
        else:
            self._begin(incoming.id)

    def _on_credit(self, credit: Any) -> None:
        if self._outbox is not None:
            self._outbox.credit(credit)

    def _on_received(self, received: Any) -> None:
        if received.id in self._tasks:
            self._cancel(received.id)

    def _on_cancel(self, cancel: Any) -> None:
        if cancel.id in self._tasks:
            self._cancel(cancel.id)

    def _cancel(self, identifier: str) -> None:
        """Forget a task, and end the work on it."""
        self._tasks.pop(identifier, None)
        self._ready.pop(identifier, None)
        if (timer := self._timers.pop(identifier, None)) is not None:
            timer.cancel()
        if (incoming := self._coming.pop(identifier, None)) is not None:
            incoming.drop()
        if self._outbox is not None:
            self._outbox.withdraw(identifier)
        if self._in_hand is not None and self._in_hand[0] == identifier:
            self._in_hand[1].cancel()
        self.store.drop(identifier)

    def _end_transfers(self) -> None:
        for incoming in self._coming.values():
            incoming.close()
            self._tasks.pop(incoming.id, None)  # the server sends its head again
        self._coming.clear()

    def _on_certificate(self, renewed: Any) -> None:
        from bouquet.common.trust.certificates import check_renewal

        given, authority = self._certificate(), self.settings.authority
        if given is None or authority is None:
            return
        try:
            if renewed.pem.strip() == given.read_bytes().strip():
                return  # it is sent until it is shown
            check_renewal(renewed.pem, given.read_bytes(), authority.read_bytes())
            file, copied = self.settings.state_dir / CERTIFICATE, self.settings.certificate
            write_atomically(file, renewed.pem, 0o600)
            if copied is not None:  # one that the owner copies later counts again
                write_atomically(file.with_suffix(".of"), fingerprint(copied.read_bytes()).encode(), 0o600)
        except (BouquetError, OSError) as error:
            self._tell(f"The server's new certificate for this device is not taken: {error}")
            return
        self._tell("The server sent a new certificate for this device; it is used from the next connection on.")

    # --- work --------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """One task after another, whatever becomes of the connection, and of each of them."""
        while True:
            while not self._ready:
                self._news.clear()
                await self._news.wait()
            await self._code_is_here.wait()
            if (identifier := next(iter(self._ready), None)) is None:
                continue  # cancelled
            del self._ready[identifier]
            if (task := self._tasks.get(identifier)) is None:
                continue  # it was answered, and the server is to ask again
            why = self._refusal or await self._do(task)
            reply = await asyncio.to_thread(self.store.reply, identifier)
            if self._tasks.get(identifier) is not task:
                continue  # cancelled meanwhile, or the server has asked again
            if reply is None:
                reason = (why or "The process that worked on it left no answer.")[:LONGEST_REASON]
                reply = self.store.fail(identifier, CODE_REFUSED if self._refusal else CRASHED, reason)
                if not self._refusal:
                    self.say(f"A task was not answered: {reason}")
            self._deliver(identifier, reply)

    async def _do(self, task: Task) -> str:
        """Why a task was not done; empty where it was, or was cancelled."""
        config = json.loads(self._run.settings) if self._run is not None else {}
        doing = asyncio.ensure_future(self.worker.do(task.id, self._code, wants_torchvision(config)))
        self._in_hand = task.id, doing
        try:
            await asyncio.wait({doing})
        finally:
            doing.cancel()  # where the agent itself ends
            self._in_hand = None
        if doing.cancelled():
            return ""
        if (error := doing.exception()) is None:
            why = doing.result()
        elif isinstance(error, OSError):
            why = f"could not be started ({error.strerror})"
        else:
            why = f"was lost ({type(error).__name__}: {plain(str(error))})"
        return f"The process that worked on it {why}." if why else ""

    def _deliver(self, identifier: str, reply: Any) -> None:
        """Send a reply; large ones as the server gives credit."""
        if self._outbox is None:
            return  # the server asks again when it is back
        if reply.HasField("content") and reply.content.size and not reply.content.data:
            file = self.store.reply_file(identifier)
            self._outbox.offer(Outgoing(identifier, file, reply.content.size))
        with contextlib.suppress(WireError):  # it does not read, and will lose this connection
            self._put(reply=reply)
