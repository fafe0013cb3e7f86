"""Flower's messages outside of Flower's processes: the one file that takes what Flower keeps to itself.

A strategy makes a `flwr.app.Message`, a ClientApp answers one with another. Flower's own processes carry them with
names that are not public; between our two ends the content travels as Flower's protobuf writes it, and each end makes
the message around it anew. What that takes, and why:

- ``recorddict_to_proto``, ``recorddict_from_proto`` and the protobuf ``RecordDict``: the bytes of a content;
- ``TaskIdentity``: whom a new message is from, asked by the constructor of every message;
- ``SUPERLINK_NODE_ID``: the server's own number there, which no device may have;
- ``Run``: what a `flwr.serverapp.Grid` has to answer with for its run;
- ``Metadata._message_id``: set by whoever carries a message, as Flower's own grids do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

SERVER_NODE = SUPERLINK_NODE_ID


def speak_as_server(run: int = 1) -> None:
    """From now on messages that this process makes are the server's."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, SERVER_NODE


def empty_run() -> Run:
    """A run of which a `flwr.serverapp.Grid` says nothing."""
    return Run.create_empty(0)


def sent(message: Message, identifier: str) -> Message:
    """Give a message the id under which it travels."""
    message.metadata.__dict__["_message_id"] = identifier
    return message


def instruction(content: bytes, identifier: str, run: int, node: int, kind: str, group: str, ttl: float) -> Message:
    """On a device: the message that a task holds. Raises what protobuf does for bytes that are no content."""
    speak_as_server(run)
    return sent(Message(content_of(content), dst_node_id=node, message_type=kind, ttl=ttl, group_id=group), identifier)


def reply_to(message: Message, content: bytes) -> Message:
    """On the server: a device's reply. Raises what protobuf and Flower do for bytes that are no content."""
    return Message(content_of(content), reply_to=message)


def error_reply(message: Message, code: int, reason: str) -> Message:
    """A reply that carries an error."""
    return Message(Error(code=code, reason=reason), reply_to=message)


def content_bytes(content: RecordDict) -> bytes:
    """A content as it travels."""
    return bytes(recorddict_to_proto(content).SerializeToString())


def content_of(data: bytes) -> RecordDict:
    """The inverse of `content_bytes`. Raises what protobuf and Flower do for bytes that are no content."""
    return recorddict_from_proto(ProtoRecordDict.FromString(data))


def wire_bytes(records: Mapping[str, Any]) -> int:
    """Bytes of these records on the wire, as protobuf."""
    # Of what it is given it asks for no more than its items; a RecordDict would check each of them once more.
    return int(recorddict_to_proto(cast(RecordDict, records)).ByteSize())
