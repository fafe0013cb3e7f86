"""Replies that are announced before they are there, and those of which the rest never comes.

A device announces a reply to SuperLink and then uploads its parts. Whoever takes the reply meanwhile, as Flower's grid
does, waits for the rest of it with all other replies behind it: of a device that died while it uploaded, until
SuperLink gives the upload up, after three minutes (flwr 1.39, `OBJECT_PUSH_SESSION_TTL_SECONDS`). Here such a reply is
set aside and looked at again each time that it is asked for, so that a round's deadline counts for it as for any other.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable
from typing import Any, cast

from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.serverapp import Grid
from flwr.superlink.grid.http_grid import HttpGrid

from server.pushing import PatientSuperLink

FIRST_LOOK, LAST_LOOK = 0.02, 0.2  # seconds; doubles from one to the other
SOON = 1.0  # seconds in which the rest of a reply comes where nothing is wrong, and for which a look waits


class _NotYet(Exception):
    """A part of a reply is not there."""


class _Announced:
    """What a grid needs of SuperLink for one reply; parts that have arrived are kept and not asked for again."""

    def __init__(self, superlink: Any, answer: PullAppMessagesResponse) -> None:
        self.superlink, self.answer = superlink, answer
        self.since = time.monotonic()
        self.parts: dict[str, PullObjectResponse] = {}
        metadata = answer.messages_list[0].metadata
        self.identifier: str = metadata.message_id
        self.valid_until: float = metadata.created_at + metadata.ttl  # as its instruction, whatever the device's clock

    def PullMessages(self, _: PullAppMessagesRequest) -> PullAppMessagesResponse:
        """The reply's announcement, which SuperLink gives only once."""
        return self.answer

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        """A part; raises `_NotYet` where it is announced and not there."""
        if (known := self.parts.get(request.object_id)) is not None:
            return known
        response: PullObjectResponse = self.superlink.PullObject(request)
        if response.object_found and not response.object_available:
            raise _NotYet
        self.parts[request.object_id] = response
        return response

    def ConfirmMessageReceived(self, request: ConfirmMessageReceivedRequest) -> Any:
        """Let SuperLink forget the reply."""
        return self.superlink.ConfirmMessageReceived(request)


class ArrivingGrid(HttpGrid):
    """A grid of Flower's, over its connection, whose `pull_messages` gives the replies of which all is there."""

    def __init__(self, grid: HttpGrid) -> None:
        self.superlink: Any = grid._runtime_client  # connects, so that both have one connection
        vars(self).update(vars(grid))
        self._client = cast(Any, PatientSuperLink(self.superlink))
        self.announced: dict[str, _Announced] = {}  # by the message that they answer

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
        for identifier in [i for i, reply in self.announced.items() if reply.valid_until < time.time()]:
            reply = self.announced.pop(identifier)
            reply.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(
                    node=self.node, run_id=self.run.run_id, message_object_id=reply.identifier
                )
            )
        if asked:
            found = self.superlink.PullMessages(PullAppMessagesRequest(message_ids=asked))
            for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                answer = PullAppMessagesResponse(messages_list=[message], message_object_trees=[tree])
                self.announced[message.metadata.reply_to_message_id] = _Announced(self.superlink, answer)

    def _whole(self, identifier: str) -> Iterable[Message]:
        """The reply to a message where all of it is there, or Flower's error where it never will be."""
        one = copy.copy(self)
        one._client = cast(Any, self.announced[identifier])
        try:
            found = HttpGrid.pull_messages(one, [identifier])
        except _NotYet:
            return ()
        del self.announced[identifier]
        return found


def as_they_arrive(grid: Grid) -> Grid:
    """The grid of a real run so that it waits for no reply; any other as it is, whose replies are whole at once."""
    return ArrivingGrid(grid) if isinstance(grid, HttpGrid) else grid
