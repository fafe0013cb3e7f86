"""The ServerApp's connection to SuperLink: replies that are announced before they are there, and uploads that are tried
again.

A device announces a reply to SuperLink and then uploads its parts. Whoever takes the reply meanwhile, as Flower's grid
does, waits for the rest of it with all other replies behind it: of a device that died while it uploaded, until
SuperLink gives the upload up, after three minutes (flwr 1.39, `OBJECT_PUSH_SESSION_TTL_SECONDS`). Here such a reply is
set aside and looked at again each time that it is asked for, so that a round's deadline counts for it as for any other.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable
from logging import WARNING
from typing import Any, cast

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.common.serde_utils import metadata_from_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.serverapp import Grid
from flwr.supercore import log
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.superlink.grid.http_grid import HttpGrid

from common.parameters.layout import ParameterLayout
from common.protocol.error_replies import NO_ROOM, UNREADABLE_ERROR
from common.system.flower_backoff import PAUSES
from server.superlink.reply_size import Room, UnreadableReply

FIRST_LOOK, LAST_LOOK = 0.02, 0.2  # seconds; doubles from one to the other
NOT_TAKEN = "SuperLink did not take all of it"
REPLY_BYTES = "bouquet-reply-bytes"  # header: what a reply may take
SOON = 1.0  # seconds in which the rest of a reply comes where nothing is wrong, and for which a look waits


class _NotYet(Exception):
    """A part of a reply is not there."""


class _Announced:
    """What a grid needs of SuperLink for one reply; parts that have arrived are kept and not asked for again."""

    def __init__(self, superlink: Any, answer: PullAppMessagesResponse, room: Room) -> None:
        self.superlink, self.answer, self.room = superlink, answer, room
        self.since = time.monotonic()
        self.parts: dict[str, PullObjectResponse] = {}
        self.taken = 0  # bytes
        self.is_here = False  # all of it; then what goes wrong with it is its device's doing
        self.metadata = metadata_from_proto(answer.messages_list[0].metadata)
        self.valid_until = (
            self.metadata.created_at + self.metadata.ttl
        )  # as its instruction, whatever the device's clock

    def PullMessages(self, _: PullAppMessagesRequest) -> PullAppMessagesResponse:
        """The reply's announcement, which SuperLink gives only once."""
        self.room.check_tree(self.answer.message_object_trees[0])
        return self.answer

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        """A part; raises `_NotYet` where it is announced and not there."""
        if (known := self.parts.get(request.object_id)) is not None:
            return known
        response: PullObjectResponse = self.superlink.PullObject(request)
        if response.object_found and not response.object_available:
            raise _NotYet
        self.parts[request.object_id] = response
        self.taken += len(response.object_content)
        self.room.check_bytes(self.taken)
        return response

    def ConfirmMessageReceived(self, request: ConfirmMessageReceivedRequest) -> Any:
        """Let SuperLink forget the reply; what follows is that a message is made of it."""
        done = self.superlink.ConfirmMessageReceived(request)
        self.is_here = True
        self.room.check({identifier: part.object_content for identifier, part in self.parts.items()})
        self.parts.clear()
        return done

    def told(self, message: Message) -> Message:
        """The reply with the metadata that SuperLink announced, or Flower's error, which is none of the device's."""
        if not self.is_here:
            return message
        if not isinstance(message, Message) or not (message.has_error() or isinstance(message.content, RecordDict)):
            raise UnreadableReply("It is no message.")
        content, error = (None, message.error) if message.has_error() else (message.content, None)
        return make_message(self.metadata, content, error)

    def unreadable(self, problem: Exception) -> Message:
        """The error in the place of a reply of which no message can be made."""
        said = str(problem) if isinstance(problem, UnreadableReply) else f"{type(problem).__name__}: {problem}"
        return make_message(self.metadata, error=Error(UNREADABLE_ERROR, f"The reply cannot be read. {said[:200]}"))


class ArrivingGrid(HttpGrid):
    """A grid of Flower's, over its connection, whose `pull_messages` gives the replies of which all is there."""

    def __init__(self, grid: HttpGrid, room: Room) -> None:
        self.room = room
        self.superlink: Any = grid._runtime_client  # connects, so that both have one connection
        vars(self).update(vars(grid))
        self.superlink._client.headers[REPLY_BYTES] = str(room.all_in_all)
        self._client = cast(Any, PatientSuperLink(self.superlink))
        self.undelivered: dict[str, str] = {}  # by message, why SuperLink did not take it, of those pushed last
        self.announced: dict[str, _Announced] = {}  # by the message that they answer

    def _try_push_messages(self, run_id: int, messages: Iterable[Message]) -> list[str]:
        """Flower's, but a message of which SuperLink does not take all, as for want of room, is just not delivered."""
        asked = list(messages)
        superlink = cast(PatientSuperLink, self._client)
        self.undelivered = {}
        try:
            return super()._try_push_messages(run_id, asked)
        except ObjectPushError as problem:
            log(WARNING, f"[grid] SuperLink did not take all of a message. {problem}")
            partly = {
                m.metadata.message_id for m in asked if not superlink.lacking.isdisjoint(get_all_nested_objects(m))
            }
            self.undelivered = dict.fromkeys(partly, superlink.why)
            return ["" if taken in partly else taken for taken in superlink.delivered]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that are whole; of one that has only just been announced, the rest is waited for a moment."""
        asked = list(message_ids)
        self._take([identifier for identifier in asked if identifier not in self.announced])
        found: list[Message] = []
        look = FIRST_LOOK
        while True:
            missing = [identifier for identifier in asked if identifier in self.announced]
            found += [message for identifier in missing for message in self._whole(identifier)]
            began = [self.announced[identifier].since for identifier in missing if identifier in self.announced]
            if not began or time.monotonic() >= max(began) + SOON:
                return found
            time.sleep(look)
            look = min(2 * look, LAST_LOOK)

    def _take(self, asked: list[str]) -> None:
        """Take what is announced of these replies, and forget what nobody can wait for any more."""
        for identifier in [i for i, reply in self.announced.items() if not reply.valid_until >= time.time()]:
            self._forget(self.announced.pop(identifier))
        if asked:
            found = self.superlink.PullMessages(PullAppMessagesRequest(message_ids=asked))
            for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                answer = PullAppMessagesResponse(messages_list=[message], message_object_trees=[tree])
                self.announced[message.metadata.reply_to_message_id] = _Announced(self.superlink, answer, self.room)

    def _whole(self, identifier: str) -> Iterable[Message]:
        """The reply to a message where all of it is there, or an error where it never will be, or cannot be read."""
        reply = self.announced[identifier]
        one = copy.copy(self)
        one._client = cast(Any, reply)
        try:
            found = [reply.told(message) for message in HttpGrid.pull_messages(one, [identifier])]
        except _NotYet:
            return ()
        except Exception as problem:
            if not reply.is_here:
                if not isinstance(problem, UnreadableReply):
                    raise  # SuperLink's, not the device's
                self._forget(reply)
            found = [reply.unreadable(problem)]
        del self.announced[identifier]
        return found

    def _forget(self, reply: _Announced) -> None:
        """Let SuperLink drop the parts of a reply."""
        self.superlink.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self.node, run_id=self.run.run_id, message_object_id=reply.metadata.message_id
            )
        )


def as_they_arrive(grid: Grid, layout: ParameterLayout) -> Grid:
    """The grid of a real run so that it waits for no reply, and bears any; other grids as they are.

    ``layout`` is the model's, by which it is judged how much a reply may take.
    """
    return ArrivingGrid(grid, Room.of(layout)) if isinstance(grid, HttpGrid) else grid


class PatientSuperLink:
    """A connection to SuperLink whose ``PushObject`` is tried again until the part is there.

    ``delivered`` has the ids of the messages pushed last, ``lacking`` those of their parts that are not there yet, and
    ``why`` the reason of that.
    """

    def __init__(self, superlink: Any) -> None:
        self.superlink = superlink
        self.delivered: list[str] = []
        self.lacking: set[str] = set()
        self.why = NOT_TAKEN

    def __getattr__(self, name: str) -> Any:
        return getattr(self.superlink, name)

    def PushMessages(self, request: PushAppMessagesRequest) -> PushAppMessagesResponse:
        """Announce messages."""
        self.why = NOT_TAKEN
        answer: PushAppMessagesResponse = self.superlink.PushMessages(request)
        self.delivered, self.lacking = list(answer.message_ids), set(answer.objects_to_push)
        return answer

    def PushObject(self, request: PushObjectRequest) -> PushObjectResponse:
        """Store a part; ``stored`` is False where it is still not there after the last try."""
        stored = self._push(request)
        for pause in PAUSES:
            if stored:
                break
            time.sleep(pause)
            stored = self._push(request)
        if stored:
            self.lacking.discard(request.object_id)
        return PushObjectResponse(stored=stored)

    def _push(self, request: PushObjectRequest) -> bool:
        try:
            if self.superlink.PushObject(request).stored:
                return True
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.INSUFFICIENT_STORAGE:
                raise
            self.why = NO_ROOM
            return False
        there = PullObjectRequest(node=request.node, run_id=request.run_id, object_id=request.object_id)
        return bool(self.superlink.PullObject(there).object_available)
