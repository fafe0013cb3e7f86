"""The gRPC service: a stream a device, tasks out and replies in. It lives in one event loop, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from bouquet.common.system.files import keep_private
from bouquet.common.texts import plain, tags_of
from bouquet.common.wire import fleet_pb2
from bouquet.common.wire.content_size import Room
from bouquet.common.wire.fleet_pb2 import DeviceFrame, Hello, Refused
from bouquet.common.wire.transfer import (
    INLINE_BYTES,
    MAJOR,
    METHOD,
    MINOR,
    Outgoing,
    Pace,
    WireError,
)
from bouquet.server.service.admission import Admission
from bouquet.server.service.connections import A_CALL, Connections, Refusals, peer_named, server_options
from bouquet.server.service.devices import Contents, Device, Dispatch, Stream, node_of
from bouquet.server.service.greeting import RELEASE, TurnedAway, frame_of, hello_of, identity
from bouquet.server.service.replies import ReplyReceiver
from bouquet.server.service.upkeep import Upkeep

PING_SECONDS = 5.0  # in which a device answers that is there
FOUND_SECONDS = 2.0  # in which devices read that the server ends
BUNDLE = "code.zip"  # in the service's folder


@dataclass
class ServiceOptions:
    """Where the service listens, its certificates, who is admitted, and where its files lie."""

    address: str
    folder: Path
    credentials: grpc.ServerCredentials | None = None
    admission: Admission | None = None
    report: Callable[[str], None] = lambda line: None


@dataclass
class Service:
    """The running service; every method is called in its event loop.

    ``answered`` is called with each task that has its reply.
    """

    options: ServiceOptions
    answered: Callable[[Dispatch], None]
    devices: dict[int, Device] = field(default_factory=dict)
    run: fleet_pb2.Run | None = None
    _welcomed: dict[str, Stream] = field(default_factory=dict)  # by the other end of their connections
    _streams: set[Stream] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.contents = Contents(self.options.folder)
        self.replies = ReplyReceiver(
            self.options.folder, self.contents, self.options.report, self.tell, self._begin, self.answered
        )
        self._refusals = Refusals(self.options.report)
        self._paces: dict[str, Pace] = {}  # of registered devices, by name
        self._upkeep = Upkeep(self, self.options.admission, self.options.folder, self.options.report)
        self._over = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Listen; the port."""
        self.options.folder.mkdir(parents=True, exist_ok=True)
        keep_private(self.options.folder)
        handler = grpc.stream_stream_rpc_method_handler(self._connect)  # bytes: what cannot be read is ours to refuse
        service, method = METHOD[1:].split("/")
        self._server = grpc.aio.server(options=server_options())
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        if self.options.credentials is None:
            port = self._server.add_insecure_port(self.options.address)
        else:
            port = self._server.add_secure_port(self.options.address, self.options.credentials)
        if self.options.admission is not None:
            self.options.admission.look()
        await self._server.start()
        self.connections = Connections(port, self._welcomed)
        self.connections.keep_sweeping(self._over)
        self._begin(self._upkeep.keep_looking())
        return int(port)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self, reason: str) -> None:
        """Tell every device goodbye, and end."""
        for stream in list(self._streams):
            with contextlib.suppress(WireError):
                stream.outbox.put(goodbye={"reason": reason})
            self.close(stream)
        await self._server.stop(FOUND_SECONDS)
        self._over.set()
        for task in list(self._tasks):
            task.cancel()
        self._upkeep.write_connections()

    # --- what the grid asks for ------------------------------------------------------------------------------

    def begin(self, run: fleet_pb2.Run, room: Room) -> None:
        """The tasks that follow are of this run; ``room`` is for a reply to one."""
        self.run, self.replies.room = run, room
        for stream in self._streams:  # a run of the same id may have other settings, or a signature by now
            stream.told_run = None

    def dispatch(self, dispatches: list[Dispatch]) -> None:
        """Send tasks to their devices, at once where these are connected."""
        for one in dispatches:
            device = self.devices.get(one.message.metadata.dst_node_id)
            if device is None:
                self.contents.release(one.task.content)
                continue
            device.tasks[one.task.id] = one
            self._send(device, one, holds=False)

    def notice(self, node: int, text: str) -> None:
        """Have a device say a line to its owner."""
        device = self.devices.get(node)
        if device is not None:
            self.tell(device, notice={"text": text})

    def give_up(self, identifiers: set[str]) -> None:
        """Nobody waits for the replies to these tasks any more."""
        for device in self.devices.values():
            for identifier in identifiers & device.tasks.keys():
                self.cancel(device, identifier)

    def cancel(self, device: Device, identifier: str) -> None:
        """Have a device give up a task."""
        self.replies.forget(device, identifier)
        self.tell(device, cancel={"id": identifier})

    # --- a connection ----------------------------------------------------------------------------------------

    async def _connect(self, _: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        peer = peer_named(context.peer())
        try:
            await self._serve(context, peer)
        finally:
            self.connections.call_is_over(peer)

    async def _serve(self, context: Any, peer: str) -> None:
        who = peer
        try:
            name, print_ = identity(context, self.options.admission)
            who = name or peer
            pace = Pace() if name is None else self._paces.setdefault(name, Pace())
            await pace.keep(A_CALL)
            hello = await hello_of(context)
            device, stream = await self._welcome(name, print_, peer, hello)
            stream.pace = pace
        except TurnedAway as away:
            self._refusals.add(who, str(away))
            with contextlib.suppress(asyncio.CancelledError, grpc.RpcError, Exception):
                await context.write(fleet_pb2.ServerFrame(refused=away.refused).SerializeToString())
            return
        is_probe = hello.probe
        del hello  # it may be long, and this call takes as long as the connection
        if is_probe:
            welcome = fleet_pb2.ServerFrame(welcome=self._welcome_frame(device.node))
            await context.write(welcome.SerializeToString())
            return
        writing = asyncio.ensure_future(self._write(context, stream))
        stream.reading = asyncio.ensure_future(self._read(context, device, stream))
        try:
            await stream.reading
        except (WireError, DecodeError) as error:
            text = f"what it sent cannot be read: {plain(str(error))}"
            self._refusals.add(device.name or peer, text)
            with contextlib.suppress(WireError):
                stream.outbox.put(refused=Refused(code=Refused.MALFORMED, text=text))
        except asyncio.CancelledError:  # `close`, or the connection is lost
            pass
        finally:
            stream.outbox.close()
            self._lost(device, stream)
            with contextlib.suppress(asyncio.TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(writing, FOUND_SECONDS)

    async def _welcome(self, name: str | None, print_: str | None, peer: str, hello: Hello) -> tuple[Device, Stream]:
        """The device that is connected now; one that is there already keeps its place."""
        node = node_of(hello.session if name is None else name.encode())
        device = self.devices.get(node) or Device(node, name)
        stream = Stream(peer, hello.session, print_)
        if hello.probe:
            return device, stream
        while (before := device.stream) is not None and before.session != hello.session:
            if not await before.answers(PING_SECONDS):
                if device.stream is before:
                    break
                continue  # another one has come in its place meanwhile
            text = (
                f"{name}: two devices show its certificate, one at {before.peer} and one at {peer}, and the second is "
                "shut out; is one the copy of the other's card? Give the second a certificate of its own: bouquet keys "
                "add OTHER-NAME"
            )
            with contextlib.suppress(WireError):
                before.outbox.put(notice={"text": text})
            raise TurnedAway(Refused.IN_USE, text)
        if self.options.admission is not None and self.options.admission.names.get(print_ or "") != name:
            raise TurnedAway(Refused.NOT_REGISTERED, "its certificate was removed")
        self.devices[node] = device
        if (before := device.stream) is not None:
            self.replies.interrupt(device)
            self.close(before)
        now = time.time()
        # Of what it says only so much as is used: it stays when the device has gone.
        device.hello = Hello(release=plain(hello.release, 60), tags=tags_of([*hello.tags]))
        device.stream, device.since, device.seen, device.left = stream, now, now, False
        self._streams.add(stream)
        self._welcomed[peer] = stream
        self._upkeep.has_changed = True
        stream.outbox.put(welcome=self._welcome_frame(node))
        self._upkeep.renew(device)
        holds = {*hello.holds}
        for one in [*device.tasks.values()]:
            self._send(device, one, one.task.id in holds)
        return device, stream

    def _welcome_frame(self, node: int) -> fleet_pb2.Welcome:
        return fleet_pb2.Welcome(major=MAJOR, minor=MINOR, release=RELEASE, inline_bytes=INLINE_BYTES, node=node)

    async def _write(self, context: Any, stream: Stream) -> None:
        try:
            while (frame := await stream.outbox.next()) is not None:
                await context.write(frame)
                del frame  # else it would be held until there is another, of each device
        except Exception:  # the connection is lost, or a file is gone that was to be sent
            self.close(stream)

    async def _read(self, context: Any, device: Device, stream: Stream) -> None:
        while True:
            try:
                data = await context.read()
            except grpc.RpcError:
                return
            if data is grpc.aio.EOF:
                return
            self._take(device, stream, frame_of(data))
            del data  # in the same way
            if device.left:
                return
            await stream.pace.keep()

    def _take(self, device: Device, stream: Stream, frame: DeviceFrame) -> None:
        device.seen = time.time()
        kind = frame.WhichOneof("frame")
        if kind == "goodbye":
            device.left = True
        elif kind == "pong":
            stream.answered()
        elif kind == "reply":
            self.replies.on_reply(device, stream, frame.reply)
        elif kind == "chunk":
            self.replies.on_chunk(device, frame.chunk)
        elif kind == "credit":
            self._on_credit(stream, frame.credit)
        elif kind == "not_now":
            self.replies.on_not_now(device, frame.not_now)

    def _lost(self, device: Device, stream: Stream) -> None:
        self._streams.discard(stream)
        if self._welcomed.get(stream.peer) is stream:
            del self._welcomed[stream.peer]
        stream.over.set()
        self._upkeep.has_changed = True
        if device.stream is stream:
            device.stream, device.seen = None, time.time()
            self.replies.interrupt(device)

    def tell(self, device: Device, **what: Any) -> None:
        """Send a frame to a device that is there. One that has not read for long is sent away."""
        if (stream := device.stream) is not None:
            try:
                stream.outbox.put(**what)
            except WireError as error:
                self._refusals.add(device.name or stream.peer, str(error))
                self.close(stream)

    def close(self, stream: Stream) -> None:
        """End a connection, when what is waiting for it is sent."""
        stream.outbox.close()
        stream.over.set()
        if stream.reading is not None:
            stream.reading.cancel()

    # --- tasks and replies -----------------------------------------------------------------------------------

    def _send(self, device: Device, one: Dispatch, holds: bool) -> None:
        if (stream := device.stream) is None:
            return
        if self.run is not None and stream.told_run != self.run.id:
            stream.told_run = self.run.id
            self.tell(device, run=self.run)
        about = one.task.content
        data = self.contents.data(about)

        def frame() -> fleet_pb2.ServerFrame:  # made when it is its turn: a fleet's frames take no memory before
            made = fleet_pb2.ServerFrame(task=one.task)
            made.task.seconds = max(0.0, one.until - time.monotonic())
            if data is not None and not holds:
                made.task.content.data = data
            return made

        stream.outbox.put_later(frame)
        if data is None:
            stream.outbox.offer(Outgoing(one.task.id, self.contents.file(about), about.size))

    def _on_credit(self, stream: Stream, credit: fleet_pb2.Credit) -> None:
        if self.run is not None and credit.id == self.run.code and credit.HasField("offset"):
            stream.outbox.offer(Outgoing(credit.id, self.options.folder / BUNDLE, self.run.bundle.size))
        stream.outbox.credit(credit)
