"""Replies to tasks: as they come, checked, each counted once; and where they wait until they are read."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bouquet.common.protocol.error_replies import NOT_NOW_ERROR, UNREADABLE_ERROR
from bouquet.common.texts import plain
from bouquet.common.wire import fleet_pb2
from bouquet.common.wire.content_size import Room
from bouquet.common.wire.transfer import Incoming, WireError, is_whole
from bouquet.server.service.devices import Contents, Device, Dispatch, Reply, Stream

MEMORY_BYTES = 16 * 2**20  # of small replies that wait; what is more waits on the disk
DISK_SHARE = 0.5  # of what is free: large replies that are on their way or wait
LONGEST_ID = 64  # of a task


class Tell(Protocol):
    """Sends a frame to a device that is there."""

    def __call__(self, device: Device, **what: Any) -> None:
        """``what`` is one field of a `ServerFrame`."""


@dataclass
class ReplyReceiver:
    """What has come of the replies, and what of them waits. Every method is called in the service's event loop.

    ``answered`` is called with each task that has its reply; ``memory`` and ``disk`` are bytes of replies that wait.
    """

    folder: Path
    contents: Contents
    report: Callable[[str], None]
    tell: Tell
    begin_work: Callable[[Coroutine[Any, Any, None]], None]
    answered: Callable[[Dispatch], None]
    room: Room | None = None  # for one reply
    waiting: dict[str, tuple[Device, Dispatch]] = field(default_factory=dict)  # large replies without room
    memory: int = 0
    disk: int = 0

    def clear(self) -> None:
        """A run is over: what is left on the disk of replies goes, also of those before a restart."""
        for file in self.folder.glob("*.reply*"):
            file.unlink(missing_ok=True)

    def taken(self, one: Dispatch) -> None:
        """A reply is read: there is room for others."""
        if one.reserved:
            self._release(one)
        elif one.reply is not None:
            self.memory -= len(one.reply.data)

    def interrupt(self, device: Device) -> None:
        """What has come of its replies stays; the rest comes on its next connection."""
        for one in device.tasks.values():
            self.waiting.pop(one.task.id, None)
            if one.incoming is not None and not one.is_checked:
                self._let_go(one)

    def _let_go(self, one: Dispatch) -> None:
        """What has come of a reply stays, and takes no room that others wait for."""
        if one.incoming is not None:
            one.incoming.close()
            one.incoming = None
            self._release(one)

    def on_not_now(self, device: Device, said: fleet_pb2.NotNow) -> None:
        """A device's owner lets it not work now: that is the answer."""
        if (one := device.tasks.get(said.id)) is not None:
            seconds = round(said.seconds) if 0 <= said.seconds < 1e7 else 0
            self.answer(device, one, Reply(error=(NOT_NOW_ERROR, f"{seconds} {plain(said.reason)}")))

    def on_reply(self, device: Device, stream: Stream, reply: fleet_pb2.Reply) -> None:
        """A reply, or the head of a large one; one to a task that is answered is only acknowledged."""
        one = device.tasks.get(reply.id)
        if one is None:  # answered before, or nobody waits for it any more
            if len(reply.id) > LONGEST_ID:
                raise WireError("a reply to what is no task")
            self.tell(device, received={"id": reply.id})
            return
        if reply.HasField("error"):
            self.answer(device, one, Reply(error=(reply.error.code, plain(reply.error.reason))))
            return
        if one.said_on is stream:
            return  # said twice
        about = reply.content
        if self.room is not None and about.size > self.room.size:
            self._unreadable(device, one, f"It takes {about.size} bytes; here it may take {self.room.size}.")
        elif not is_whole(about):
            one.about, one.said_on = about, stream
            if not one.is_checked:
                self._await_room(device, one)
        elif self.memory + about.size <= MEMORY_BYTES:
            self.memory += about.size
            self.answer(device, one, Reply(data=about.data))
        else:
            file = self._file(one)
            try:
                file.write_bytes(about.data)
            except OSError as error:
                file.unlink(missing_ok=True)
                self._no_room(device, one, error)
                return
            self._reserve(one, about.size)
            self.answer(device, one, Reply(file=file))

    def _await_room(self, device: Device, one: Dispatch) -> None:
        self.waiting[one.task.id] = (device, one)
        self._go_on()

    def _go_on(self) -> None:
        """Let large replies come for which there is room."""
        while self.waiting:
            identifier, (device, one) = next(iter(self.waiting.items()))
            size = one.about.size
            if self.disk and self.disk + size > DISK_SHARE * shutil.disk_usage(self.folder).free:
                return
            del self.waiting[identifier]
            try:
                one.incoming = incoming = Incoming(identifier, one.about, self._file(one))
            except OSError as error:
                self._no_room(device, one, error)
                continue
            if one.part not in (None, incoming.part):  # another content than on its last connection
                one.part.unlink(missing_ok=True)
            one.part = incoming.part
            self._reserve(one, size)
            if incoming.is_complete:
                self.begin_work(self._complete(device, one, incoming))
            else:
                self.tell(device, credit=incoming.begin())

    def _reserve(self, one: Dispatch, size: int) -> None:
        one.reserved = size
        self.disk += size

    def _release(self, one: Dispatch) -> None:
        if one.reserved:
            self.disk -= one.reserved
            one.reserved = 0
            asyncio.get_running_loop().call_soon(self._go_on)

    def _no_room(self, device: Device, one: Dispatch, error: OSError) -> None:
        self.report(f"A reply of {device.name or device.node} cannot be kept: {error.strerror}")
        self._unreadable(device, one, f"The server's disk: {error.strerror}.")

    def on_chunk(self, device: Device, chunk: fleet_pb2.Chunk) -> None:
        """A part of a large reply."""
        one = device.tasks.get(chunk.id)
        if one is None or (incoming := one.incoming) is None:
            return  # given up meanwhile
        try:
            if (more := incoming.add(chunk)) is not None:
                self.tell(device, credit=more)
        except OSError as error:
            self._no_room(device, one, error)
            return
        if incoming.is_complete:
            self.begin_work(self._complete(device, one, incoming))

    async def _complete(self, device: Device, one: Dispatch, incoming: Incoming) -> None:
        """Check a reply that is there; meanwhile its device may be lost, or come back, and it may be given up."""
        problem: Exception | None = None
        one.is_checked = True
        try:
            file = await asyncio.to_thread(incoming.finish)
        except (OSError, WireError) as error:
            problem = error
        one.is_checked = False
        if device.tasks.get(one.task.id) is not one:  # it was given up
            incoming.drop()
            incoming.file.unlink(missing_ok=True)
            self._let_go(one)
        elif isinstance(problem, OSError):
            self._no_room(device, one, problem)
        elif problem is not None and one.is_damaged:
            self._unreadable(device, one, "Twice it was not what its SHA-256 says.")
        elif problem is not None:
            one.is_damaged = True
            self._let_go(one)
            if one.said_on is device.stream:
                self._await_room(device, one)
        else:
            one.incoming = None
            self.answer(device, one, Reply(file=file))

    def _unreadable(self, device: Device, one: Dispatch, why: str) -> None:
        self.answer(device, one, Reply(error=(UNREADABLE_ERROR, f"The reply cannot be read. {why}")))

    def answer(self, device: Device, one: Dispatch, reply: Reply) -> None:
        """A task has its reply, once."""
        self.forget(device, one.task.id)
        one.reply = reply
        self.tell(device, received={"id": one.task.id})
        self.answered(one)

    def forget(self, device: Device, identifier: str) -> None:
        """The device has this task no more."""
        one = device.tasks.pop(identifier)
        self.waiting.pop(identifier, None)
        if not one.is_checked:
            self._let_go(one)
            if one.part is not None:
                one.part.unlink(missing_ok=True)
        if device.stream is not None:
            device.stream.outbox.withdraw(identifier)
        self.contents.release(one.task.content)

    def _file(self, one: Dispatch) -> Path:
        return self.folder / f"{one.task.id}.reply"
