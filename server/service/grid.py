"""A `flwr.serverapp.Grid` over the service: what a strategy sees of a fleet."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from bouquet.common import protocol
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol.error_replies import UNREADABLE_ERROR
from bouquet.common.protocol.records import config_of
from bouquet.common.wire import fleet_pb2
from bouquet.common.wire.content_size import Room, UnreadableContent
from bouquet.common.wire.fleet_pb2 import Task
from bouquet.common.wire.flower import content_bytes, empty_run, error_reply, reply_to, sent, speak_as_server
from bouquet.server.service.devices import Device, Dispatch
from bouquet.server.service.service import Service


class FleetGrid(Grid):
    """Tasks go out and replies come in through a `Service`, which lives in another thread's event ``loop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        speak_as_server()
        self.loop = loop
        self.service: Service
        self._news = threading.Condition()
        self._done: dict[str, Dispatch] = {}
        self._arrived = self._heard = 0  # replies, in all and when somebody waited last
        # That the same was sent to the same device, by the round that it says: of no round but 0, of what has none, and
        # the newest, after which none before it comes again in this run.
        self._times: dict[int, Counter[str]] = {0: Counter()}
        self._run = 0
        self._room: Room | None = None

    def begin(self, run: fleet_pb2.Run, layout: ParameterLayout) -> None:
        """A run begins, whose replies are models of this ``layout``."""
        self._run, self._room = run.id, Room.of(layout)
        self._times = {0: Counter()}
        speak_as_server(run.id)
        self.loop.call_soon_threadsafe(self.service.begin, run, self._room)

    def end(self) -> None:
        """The run is over: nobody waits for a reply any more."""
        self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._give_up({i for device in self.devices() for i in device.tasks} | {*self._done})
        self.service.replies.clear()

    def answered(self, one: Dispatch) -> None:
        """Called by the service with each task that has its reply."""
        with self._news:
            self._done[one.task.id] = one
            self._arrived += 1
            self._news.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait so long, or until there is a reply that was not there when this was called last."""
        with self._news:
            if self._heard == self._arrived:
                self._news.wait(seconds)
            self._heard = self._arrived

    # --- Flower's interface ------------------------------------------------------------------------------------

    def set_run(self, run: Any) -> None:
        """There is only one run at a time."""

    @property
    def run(self) -> Any:
        """An empty run: what there is to know of it is in our own record."""
        return empty_run()

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Build a message."""
        return Message(content, dst_node_id=dst_node_id, message_type=message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The devices that are connected, or lost their connection just now."""
        return [device.node for device in self.devices() if device.is_there()]

    def devices(self) -> list[Device]:
        """All that were ever connected to this server."""
        return list(self.service.devices.values())

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; the id of each, empty where the device is not there or the disk is full. A notice has none."""
        identifiers = []
        full: list[OSError] = []
        for message in messages:
            device = self.service.devices.get(message.metadata.dst_node_id)
            if device is None or not device.is_there():
                identifiers.append("")
                continue
            if message.metadata.message_type == protocol.NOTICE:
                text = str(config_of(message.content, protocol.CONFIG).get(protocol.TEXT, ""))
                self.loop.call_soon_threadsafe(self.service.notice, device.node, text)
                identifiers.append("")
                continue
            try:
                one = self._dispatch(message)
            except OSError as error:  # it costs these devices the round, and not the run
                full.append(error)
                identifiers.append("")
                continue
            identifiers.append(one.task.id)
            self.loop.call_soon_threadsafe(self.service.dispatch, [one])
        if full:
            self.service.options.report(f"The tasks of {len(full)} devices cannot be kept: {full[0].strerror}")
        return identifiers

    def _dispatch(self, message: Message) -> Dispatch:
        """A message as a task. Its id tells the same task again after a restart of the server."""
        about = message.metadata
        content = self.service.contents.keep(content_bytes(message.content))
        said = f"{self._run}/{about.dst_node_id}/{about.message_type}/{about.group_id}/{content.sha256.hex()}"
        round_ = int(config_of(message.content, protocol.CONFIG).get(protocol.ROUND, 0))
        if round_ not in self._times:
            self._times = {0: self._times[0], round_: Counter()}
        self._times[round_][said] += 1
        identifier = hashlib.sha256(f"{said}/{self._times[round_][said]}".encode()).hexdigest()[:32]
        sent(message, identifier)
        bare = copy.copy(message)
        bare.content = RecordDict()
        task = Task(id=identifier, run=self._run, type=about.message_type, group=about.group_id, content=content)
        return Dispatch(bare, task, time.monotonic() + about.ttl)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """The replies to these messages that have come, each once; what cannot be read is an error in its place."""
        for identifier in message_ids:
            with self._news:
                one = self._done.pop(identifier, None)
            if one is not None:
                yield self._message(one)

    def _message(self, one: Dispatch) -> Message:
        reply = one.reply
        assert reply is not None
        if reply.error is not None:
            return error_reply(one.message, *reply.error)
        try:
            data = reply.take()
            if self._room is not None:
                self._room.check(data)
            return reply_to(one.message, data)
        except Exception as problem:  # whatever protobuf and Flower raise for a device's bytes
            said = str(problem) if isinstance(problem, UnreadableContent) else f"{type(problem).__name__}: {problem}"
            return error_reply(one.message, UNREADABLE_ERROR, f"The reply cannot be read. {said[:200]}")
        finally:
            self.loop.call_soon_threadsafe(self.service.replies.taken, one)

    def give_up(self, message_ids: Iterable[str]) -> None:
        """Nobody waits for the replies to these messages any more: devices stop working on them."""
        self.loop.call_soon_threadsafe(self._give_up, {*message_ids})

    def _give_up(self, identifiers: set[str]) -> None:
        self.service.give_up(identifiers)  # and from now on none of them is answered
        with self._news:
            came = [self._done.pop(identifier) for identifier in identifiers & self._done.keys()]
        for one in came:
            if one.reply is not None and one.reply.file is not None:
                one.reply.file.unlink(missing_ok=True)
            self.service.replies.taken(one)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push, and wait for every reply that will come."""
        waiting = {identifier for identifier in self.push_messages(messages) if identifier}
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while waiting and time.monotonic() < deadline:
            for reply in self.pull_messages(list(waiting)):
                waiting.discard(reply.metadata.reply_to_message_id)
                replies.append(reply)
            self.wait(min(1.0, max(0.0, deadline - time.monotonic())) if waiting else 0.0)
        return replies
