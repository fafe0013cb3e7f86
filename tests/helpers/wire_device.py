"""A device that speaks the service's own bytes over gRPC, below every agent: it sends whatever frames a test wants.

Its methods are called from a test's own thread; a thread beside it reads what the server says and answers its Pings::

    device = WireDevice("127.0.0.1:9092", Path("keys/devices/mallory"), name="mallory")  # None: without TLS
    device.wait_for("welcome")
    task, content = device.task()  # whole
    device.deliver(task.id, b"...")  # until the server has it: inside the frame or in chunks
    device.send(reply={"id": task.id, "error": {"code": 2, "reason": "no"}})
    device.send_bytes(b"\\xff")  # no frame at all
    device.close()

`answering` does this in a thread, with a handler such as `bouquet.experiments.simulation.inline_grid.scripted_client`
makes.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
from flwr.app import Message

from bouquet.common.wire.fleet_pb2 import Credit, DeviceFrame, ServerFrame, Task
from bouquet.common.wire.flower import content_bytes, instruction
from bouquet.common.wire.transfer import CHUNK_BYTES, MAJOR, METHOD, MINOR, content_of

SECONDS = 120.0  # for which anything is waited; no test needs them where all is well


class Ended(Exception):
    """The stream has ended; its arguments are what the server refused the device for."""


class WireDevice:
    """A device, connected when it is made; ``keys`` holds its ``device.key``, ``device.crt`` and ``ca.crt``.

    ``session`` is new unless given; ``hello`` are other fields of its Hello, which is not sent where it is None.
    ``frames`` is what the server said and nobody has waited for. It answers Pings while ``is_alive``.
    """

    def __init__(
        self, address: str, keys: Path | None = None, *, name: str = "device", session: bytes = b"", hello: Any = ()
    ) -> None:
        self.address, self.keys, self.name = address, keys, name
        self.session, self.hello = session or os.urandom(16), hello
        self.is_alive = True
        self.connect()

    def connect(self, **hello: Any) -> None:
        """Come again, on a new connection, with the same session and other fields of its Hello where they are given."""
        options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
        if self.keys is None:
            self.channel = grpc.insecure_channel(self.address, options)
        else:
            files = [(self.keys / name).read_bytes() for name in ("ca.crt", "device.key", "device.crt")]
            self.channel = grpc.secure_channel(self.address, grpc.ssl_channel_credentials(*files), options)
        self.frames: list[ServerFrame] = []
        self.node, self.runs = 0, dict[int, Any]()
        self._news, self._ended, self._sending = threading.Condition(), threading.Event(), queue.SimpleQueue[Any]()
        if self.hello is not None:
            said = {"major": MAJOR, "minor": MINOR, "release": "test", "session": self.session}
            self.send(hello=said | dict(self.hello) | hello)
        self.call = self.channel.stream_stream(METHOD)(iter(self._sending.get, None))
        args = self.call, self._news, self._ended, self.frames  # of this connection, whatever comes after it
        threading.Thread(target=self._read, args=args, daemon=True).start()

    def _read(self, call: Any, news: threading.Condition, ended: threading.Event, frames: list[ServerFrame]) -> None:
        with contextlib.suppress(grpc.RpcError):
            for data in call:
                frame = ServerFrame.FromString(data)
                if (kind := frame.WhichOneof("frame")) == "ping" and self.is_alive:
                    self.send(pong={})
                elif kind == "welcome":
                    self.node = frame.welcome.node
                elif kind == "run":
                    self.runs[frame.run.id] = frame.run
                with news:
                    frames.append(frame)
                    news.notify_all()
        with news:
            ended.set()
            news.notify_all()

    def send(self, **what: Any) -> None:
        """Send a frame."""
        self.send_bytes(DeviceFrame(**what).SerializeToString())

    def send_bytes(self, data: bytes) -> None:
        """Send what need not be a frame."""
        self._sending.put(data)

    def wait_for(self, *kinds: str, id: str | None = None, seconds: float = SECONDS) -> Any:
        """What the next frame of one of these kinds (and of this id) says; it is taken out of ``frames``.

        Raises `Ended` where the stream ends first, and `TimeoutError`.
        """

        def found() -> Any:
            for frame in self.frames:
                said = getattr(frame, frame.WhichOneof("frame") or "", None)
                if frame.WhichOneof("frame") in kinds and id in (None, getattr(said, "id", None)):
                    self.frames.remove(frame)
                    return said
            if self._ended.is_set():
                raise Ended(*[frame.refused.text for frame in self.frames if frame.HasField("refused")])
            return None

        with self._news:
            if (said := self._news.wait_for(found, seconds)) is None:
                raise TimeoutError(f"{self.name} waits for {kinds}, and was told {self.frames}")
        return said

    def wait_for_end(self, seconds: float = SECONDS) -> list[str]:
        """Return once the server has ended the stream: what it refused the device for."""
        try:
            self.wait_for("nothing", seconds=seconds)
        except Ended as ended:
            return list(ended.args)

    def task(self, seconds: float = SECONDS) -> tuple[Task, bytes]:
        """The next task and the whole of its content."""
        task: Task = self.wait_for("task", seconds=seconds)
        return task, self.fetch(task.id, task.content)

    def fetch(self, identifier: str, about: Any, offset: int = 0) -> bytes:
        """A content from ``offset`` on: what came inside, or what comes in chunks."""
        if about.data or not about.size:
            return bytes(about.data[offset:])
        self.send(credit={"id": identifier, "offset": offset, "end": about.size})
        found = bytearray()
        while offset + len(found) < about.size:
            chunk = self.wait_for("chunk", id=identifier)
            assert chunk.offset == offset + len(found)
            found += chunk.data
        return bytes(found)

    def deliver(self, identifier: str, data: bytes, until: int | None = None) -> list[int]:
        """Reply to a task, until the server has it or wants none; the offsets of the chunks that this took.

        With ``until`` the chunks end there, and the rest of the reply does not come.
        """
        self.send(reply={"id": identifier, "content": content_of(data)})
        at, offsets = 0, list[int]()
        while isinstance(said := self.wait_for("credit", "received", "cancel", id=identifier), Credit):
            at = said.offset if said.HasField("offset") else at
            while at < said.end:
                if at == until:
                    return offsets
                part = data[at : min(at + CHUNK_BYTES, said.end)]
                self.send(chunk={"id": identifier, "offset": at, "data": part})
                offsets.append(at)
                at += len(part)
        return offsets

    def close(self, goodbye: bool = True) -> None:
        """Go: with a goodbye, or as a device does whose connection is cut."""
        if goodbye:
            self.send(goodbye={"reason": "it ends"})
            with contextlib.suppress(TimeoutError):
                self.wait_for_end(5.0)
        self._sending.put(None)
        self.call.cancel()
        self.channel.close()


Answer = Message | bytes | tuple[int, str] | Callable[[WireDevice, Task], None] | None
Script = Callable[[Message, Message], Answer]


@contextlib.contextmanager
def answering(
    device: WireDevice, handler: Callable[[Message], Message | None], script: Script | None = None
) -> Iterator[list[str]]:
    """Answer every task in a thread until the block ends; yields what the server refused the device for.

    ``script(instruction, reply)`` may change the reply and give it back. It may give another Message, the bytes of a
    content, code and reason of an error, None for silence, or a function of device and task that sends frames itself.
    A device whose stream ends comes back, with the same session.
    """
    over, refused = threading.Event(), list[str]()

    def answer() -> None:
        task, content = device.task(seconds=1.0)
        told = instruction(content, task.id, task.run, device.node, task.type, task.group, max(1.0, task.seconds))
        said: Answer = handler(told)
        if script is not None and isinstance(said, Message):
            said = script(told, said)
        if isinstance(said, Message):
            said = (said.error.code, said.error.reason) if said.has_error() else content_bytes(said.content)
        if isinstance(said, tuple):
            device.send(reply={"id": task.id, "error": {"code": said[0], "reason": said[1]}})
        elif isinstance(said, bytes):
            device.deliver(task.id, said)
        elif said is not None:
            said(device, task)

    def serve() -> None:
        while not over.is_set():
            try:
                answer()
            except TimeoutError:
                continue
            except Ended as ended:
                refused.extend(map(str, ended.args))
                if not over.wait(0.2):
                    device.close(goodbye=False)
                    device.connect()

    thread = threading.Thread(target=serve, name=device.name, daemon=True)
    thread.start()
    try:
        yield refused
    finally:
        over.set()
        thread.join(SECONDS)
        device.close()
