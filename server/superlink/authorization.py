"""What a device may ask of SuperLink's Fleet API beside being who it is: its own messages, and what belongs to them.

flwr 1.39 checks which node asks, and not what for. Whoever knows the name of an object may take it, upload it for
another, or, where it is a message, delete it; and a message is taken from any sender, even from the server. Objects are
named by their content's digest, which others can know or guess.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Any
from weakref import WeakValueDictionary

from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

MOST_OBJECTS = 10_000  # of a message; the largest models have some thousands, and writing down more locks the database
MOST_BYTES = 2**20  # of a message without its objects: their names, and the reason of an error


class Authorization:
    """Says of each call of a node whether it may; remembers for that what the node was last given to do.

    A device works on one message at a time. Of messages with the same content, the objects are kept once.
    """

    def __init__(self) -> None:
        self._given: dict[int, tuple[str, frozenset[str]]] = {}
        self._objects: WeakValueDictionary[tuple[str, ...], frozenset[str]] = WeakValueDictionary()

    def note(self, request: Any, answer: Any) -> None:
        """What SuperLink answers to a node's request, of which messages count."""
        if not isinstance(answer, PullMessagesResponse):
            return
        for message, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
            below = tuple(child.object_id for child in tree.children)
            objects = self._objects.get(below)
            if objects is None:
                objects = frozenset(part.object_id for child in tree.children for part in iterate_object_tree(child))
                self._objects[below] = objects
            self._given[request.node.node_id] = message.metadata.message_id, objects

    def problem(self, request: Any) -> str | None:
        """Why the node that sends ``request`` may not; None where it may."""
        if isinstance(request, PushMessagesRequest):
            return _announcement(request)
        if isinstance(request, PushObjectRequest):
            return None if request.session_id else "An object without the session in which it was asked for"
        if isinstance(request, PullObjectRequest | ConfirmMessageReceivedRequest):
            message, objects = self._given.get(request.node.node_id, ("", frozenset[str]()))
            if isinstance(request, ConfirmMessageReceivedRequest):
                return None if request.message_object_id == message else "It is not this device's message"
            if request.object_id != message and request.object_id not in objects:
                return "It belongs to no message for this device"
        return None


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
    if sum(1 for _ in islice(iterate_object_tree(tree), MOST_OBJECTS + 1)) > MOST_OBJECTS:
        return f"The message has more than {MOST_OBJECTS} objects"
    return None
