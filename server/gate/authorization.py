"""What a device may ask of SuperLink's Fleet API beside being who it is: its own messages, and what belongs to them.

SuperLink checks which node asks, and not what for (flwr 1.41). Whoever knows the name of an object may take it, upload
it for another, or, where it is a message, delete it; and a message is taken from any sender, even from the server.
Objects are named by their content's digest, which others can know or guess.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import grpc
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from google.protobuf.message import DecodeError

from server.gate.superlink_api import Refused

MOST_BYTES = 2**20  # of a message without its objects: their names, and the reason of an error


@dataclass(frozen=True)
class Given:
    """The message that a node was last given: its name and its objects' names."""

    message: str
    objects: frozenset[str]


class Authorization:
    """Says of each call of a node whether it may; remembers for that what the node was last given to do.

    A device works on one message at a time. Of messages with the same content, the objects are kept once. What is in
    hand is kept in a folder, too: a device does not notice that the gate was restarted. ``most_objects`` is how many a
    device's message may have.
    """

    def __init__(self, folder: Path, most_objects: int, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._most_objects = most_objects
        self._say, self._is_kept = say, True
        self._given: dict[int, Given] = {}
        self._objects: WeakValueDictionary[tuple[str, ...], frozenset[str]] = WeakValueDictionary()
        files: list[Path] = []
        with self._keeping():
            folder.mkdir(parents=True, exist_ok=True)
            files = list(folder.iterdir())
        for file in files:
            # One that a disk has damaged costs its device a message; an error here would keep all of them out.
            with contextlib.suppress(DecodeError, IndexError, OSError, ValueError):
                if not file.suffix and (given := self._read(file.read_bytes())) is not None:
                    self._given[int(file.name)] = given

    def note(self, node: int, answer: bytes) -> bool:
        """What SuperLink answers to a node that looks for a message; whether there is one."""
        given = self._read(answer)
        if given is not None:
            self._given[node] = given
            with self._keeping():
                part = self._folder / f"{node}.part"
                part.write_bytes(answer)
                part.rename(self._folder / str(node))
        return given is not None

    def forget(self, node: int) -> None:
        """SuperLink wants no more of the message that this node has."""
        if self._given.pop(node, None) is not None:
            with self._keeping():
                (self._folder / str(node)).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[None]:
        """Of a disk that is full, no device notices anything unless the gate is started again; said once."""
        try:
            yield
        except OSError as error:
            if self._is_kept:
                self._say(f"[gate] What devices are given is not kept for a restart: {error}.")
            self._is_kept = False

    def check(self, request: Any) -> int:
        """How many objects ``request`` announces. Raises `Refused` where the node that sends it may not."""
        problem, objects = None, 0
        if isinstance(request, PushMessagesRequest):
            problem, objects = _announcement(request), _number_of_objects(request, self._most_objects + 1)
            if objects > self._most_objects:
                problem = f"The message has more than {self._most_objects} objects"
        elif isinstance(request, PushObjectRequest) and not request.session_id:
            problem = "An object without the session in which it was asked for"
        elif isinstance(request, PullObjectRequest | ConfirmMessageReceivedRequest):
            given = self._given.get(request.node.node_id, Given("", frozenset()))
            if isinstance(request, ConfirmMessageReceivedRequest):
                problem = None if request.message_object_id == given.message else "It is not this device's message"
            elif request.object_id != given.message and request.object_id not in given.objects:
                problem = "It belongs to no message for this device"
        if problem is not None:
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, problem, problem)
        return objects

    def _read(self, answer: bytes) -> Given | None:
        pulled = PullMessagesResponse.FromString(answer)
        if not pulled.messages_list:
            return None
        message, tree = pulled.messages_list[0], pulled.message_object_trees[0]  # SuperLink gives one at a time
        below = tuple(child.object_id for child in tree.children)
        objects = self._objects.get(below)
        if objects is None:
            objects = frozenset(part.object_id for child in tree.children for part in iterate_object_tree(child))
            self._objects[below] = objects
        return Given(message.metadata.message_id, objects)


def _announcement(request: PushMessagesRequest) -> str | None:
    """Why a message that is announced is none of the node's."""
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        return "It is not one message"
    (message,), (tree,) = request.messages_list, request.message_object_trees
    if message.metadata.src_node_id != request.node.node_id:
        return "The message is in another's name"
    if not (math.isfinite(message.metadata.created_at) and math.isfinite(message.metadata.ttl)):
        return "The message has no time"  # the database keeps none, and the server's next question for replies fails
    if message.metadata.message_id != tree.object_id:
        return "The message is not the object that is announced"
    if (size := request.ByteSize()) > MOST_BYTES:
        return f"What is announced of the message takes {size} bytes"
    return None


def _number_of_objects(request: PushMessagesRequest, most: int) -> int:
    every = (part for tree in request.message_object_trees for part in iterate_object_tree(tree))
    return sum(1 for _ in islice(every, most))
