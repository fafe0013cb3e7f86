"""A server that a test writes: it speaks the service's own bytes, and says and breaks whatever the test wants.

::

    async with WireServer() as server:  # certificates: Path of `bouquet keys`, for mutual TLS
        link = await server.link()  # the next connection, which has said Hello and is welcome
        await link.give(task(b"content"))  # with `RUN` before it, and a large content as far as there is credit
        reply, content = await link.reply()
        await link.say(received={"id": reply.id})
        link.cut()
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import grpc

from bouquet.common.trust.code import own_code
from bouquet.common.wire.fleet_pb2 import Content, DeviceFrame, Hello, Reply, Run, ServerFrame, Task
from bouquet.common.wire.transfer import CHUNK_BYTES, METHOD, content_of

SECONDS = 120.0  # that anything may take
LATER = b"\xba\x3e\x03abc"  # field 999


def a_run(**changes: Any) -> Run:
    return Run(**{"id": 7, "settings": json.dumps({}), "code": own_code(), "release": "bouquet-fl 9"} | changes)


def a_task(content: bytes | Content = b"content", **changes: Any) -> Task:
    about: dict[str, Any] = {"id": os.urandom(16).hex(), "run": 7, "type": "train", "seconds": 600.0}
    about["content"] = content_of(content) if isinstance(content, bytes) else content
    return Task(**about | changes)


class Link:
    """One connection of a device, and all that it has said, ``heard``."""

    def __init__(self, context: Any) -> None:
        self.context, self.heard, self.over = context, asyncio.Queue[DeviceFrame](), asyncio.Event()
        self.hello = Hello()

    async def say(self, raw: bytes | None = None, **frame: Any) -> None:
        """Send a frame, with a field of a later minor version, or any bytes."""
        await self.context.write(ServerFrame(**frame).SerializeToString() + LATER if raw is None else raw)

    async def hear(self, *kinds: str) -> Any:
        """The next frame of one of these kinds; others are passed over."""
        while True:
            frame = await asyncio.wait_for(self.heard.get(), SECONDS)
            if (kind := frame.WhichOneof("frame")) in kinds:
                return getattr(frame, kind)

    async def give(self, task: Task, content: bytes = b"", run: Run | None = None, upto: int | None = None) -> int:
        """Send a run and a task, and its large ``content`` to its end, or ``upto`` some byte; where it began."""
        await self.say(run=run or a_run())
        await self.say(task=task)
        return await self.send(task.id, content, upto) if content else 0

    async def send(self, identifier: str, content: bytes, upto: int | None = None) -> int:
        """Send a content as far as there is credit."""
        credit = await self.hear("credit")
        begin = at = credit.offset
        last = len(content) if upto is None else upto
        while at < last:
            if at == credit.end:
                credit = await self.hear("credit")
            end = min(at + CHUNK_BYTES, credit.end, last)
            await self.say(chunk={"id": identifier, "offset": at, "data": content[at:end]})
            at = end
        return begin

    async def reply(self, has: bytes = b"", upto: int | None = None) -> tuple[Reply, bytes]:
        """The next reply with its content, of which the server ``has`` a part already; no more than ``upto`` of it."""
        reply = await self.hear("reply")
        size = reply.content.size if upto is None else upto
        if reply.HasField("error") or reply.content.data:
            return reply, reply.content.data
        await self.say(credit={"id": reply.id, "offset": len(has), "end": size})
        while len(has) < size:
            chunk = await self.hear("chunk")
            assert (chunk.id, chunk.offset) == (reply.id, len(has))
            has += chunk.data
        assert upto is not None or hashlib.sha256(has).digest() == reply.content.sha256
        return reply, has

    def cut(self) -> None:
        """End the connection without a word."""
        self.over.set()


class WireServer:
    """Listens on loopback until the block ends; ``certificates`` has ``ca.crt``, ``server.crt`` and ``server.key``."""

    def __init__(self, certificates: Path | None = None, welcome: bool = True) -> None:
        self.certificates, self.welcome, self.links = certificates, welcome, asyncio.Queue[Link]()

    async def __aenter__(self) -> WireServer:
        self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        service, method = METHOD.strip("/").split("/")
        handlers = {method: grpc.stream_stream_rpc_method_handler(self._connect)}
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        if self.certificates is None:
            port = self.server.add_insecure_port("127.0.0.1:0")
        else:
            key, own, authority = (
                (self.certificates / name).read_bytes() for name in ("server.key", "server.crt", "ca.crt")
            )
            credentials = grpc.ssl_server_credentials([(key, own)], authority, require_client_auth=True)
            port = self.server.add_secure_port("127.0.0.1:0", credentials)
        self.address = f"127.0.0.1:{port}"
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop(0)

    async def _connect(self, _requests: Any, context: Any) -> None:
        link = Link(context)
        listening = asyncio.ensure_future(self._listen(link))
        await link.over.wait()
        listening.cancel()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")

    async def _listen(self, link: Link) -> None:
        try:
            while (raw := await link.context.read()) is not grpc.aio.EOF:
                frame = DeviceFrame.FromString(raw)
                if frame.WhichOneof("frame") == "hello":
                    link.hello = frame.hello
                    if self.welcome:
                        await link.say(welcome={"major": 1, "minor": 9, "release": "bouquet-fl 9", "node": 3})
                        await link.say()  # a frame of that version
                    self.links.put_nowait(link)
                link.heard.put_nowait(frame)
        finally:
            link.over.set()

    async def link(self) -> Link:
        """The next connection."""
        return await asyncio.wait_for(self.links.get(), SECONDS)


def large(size: int) -> Content:
    """What a task says of a content of so many bytes."""
    return Content(size=size, sha256=bytes(32))
