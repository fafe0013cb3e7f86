"""What a reply takes in memory, told from its objects before a message is made of them.

A device's bytes may be few and what becomes of them much: an array may name one chunk a million times, and an entry of
two bytes becomes a Python object. So the two are bounded apart: what is no larger afterwards than before, by the
model, and all else by a megabyte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from flwr.app import Array, ConfigRecord
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.recorddict_pb2 import ConfigRecordValue
from flwr.supercore.constant import HEAD_BODY_DIVIDER
from flwr.supercore.inflatable.inflatable_object import (
    get_object_head_values_from_object_content,
    iterate_object_tree,
)

from common.errors import BouquetError
from common.parameters.layout import ParameterLayout
from server.superlink.object_store import ENTRY_BYTES

_BESIDE = 2**20  # bytes
_BESIDE_EACH = 1024  # and for each tensor: a name, a head and two digests
_OBJECTS = 1000
_MOST_ITEMS, _FEW = 1000, 8  # entries of a record; parts of an entry
_ITEM, _VALUE, _BYTES = 1, 2, ConfigRecordValue.BYTES_FIELD_NUMBER


class UnreadableReply(BouquetError):
    """A reply of which no message can be made."""


@dataclass(frozen=True)
class Room:
    """The most that a reply may take: bytes of ``arrays``, bytes ``beside`` them, and ``objects``."""

    arrays: int
    beside: int
    objects: int

    @classmethod
    def of(cls, layout: ParameterLayout) -> Room:
        """For one model, whichever way it is written."""
        number = len(layout.tensors)
        arrays = layout.most_bytes
        return cls(arrays + _BESIDE, number * _BESIDE_EACH + _BESIDE, arrays // 2**20 + 4 * number + _OBJECTS)

    @property
    def all_in_all(self) -> int:
        """Bytes that a reply takes at most where it is kept until the server has it."""
        return self.arrays + self.beside + ENTRY_BYTES * self.objects

    def check_tree(self, tree: ObjectTree) -> None:
        """Raise `UnreadableReply` for too many objects, before any of them is asked for."""
        if sum(1 for _ in islice(iterate_object_tree(tree), self.objects + 1)) > self.objects:
            raise UnreadableReply(f"It has more than {self.objects} objects.")

    def check_bytes(self, count: int) -> None:
        """Raise `UnreadableReply` for too many bytes, before the rest of them is asked for."""
        if count > self.arrays + self.beside:
            raise UnreadableReply(f"It takes more than {self.arrays + self.beside} bytes.")

    def check(self, objects: Mapping[str, bytes]) -> None:
        """Raise `UnreadableReply`, or whatever it is that goes wrong, for objects that would become too large."""
        arrays = beside = 0
        for content in objects.values():
            kind, children, _ = get_object_head_values_from_object_content(content)
            if kind == ArrayChunk.__qualname__:
                continue
            body = memoryview(content)[content.find(HEAD_BODY_DIVIDER) + 1 :]
            beside += len(content)
            if kind == ConfigRecord.__qualname__:
                beside -= _plain_bytes(body)
            if beside > self.beside:
                raise UnreadableReply(f"It takes more than {self.beside} bytes beside its arrays.")
            if kind == Array.__qualname__:
                arrays += sum(len(objects[children[index]]) for index in json.loads(bytes(body))["arraychunk_ids"])
        if arrays > self.arrays:
            raise UnreadableReply(f"Its arrays take {arrays} bytes; here they are at most {self.arrays}.")


def _plain_bytes(record: memoryview) -> int:
    """Bytes of the ``bytes`` values in a serialised ConfigRecord, such as a packed model."""
    values = (value for item in _fields(record, _ITEM, _MOST_ITEMS) for value in _fields(item, _VALUE, _FEW))
    return sum(len(given) for value in values for given in _fields(value, _BYTES, _FEW))


def _fields(message: memoryview, number: int, most: int) -> Iterator[memoryview]:
    """The parts of a serialised message that have this number, of which nothing is copied."""
    at = 0
    for _ in range(most):
        if at >= len(message):
            return
        tag, at = _varint(message, at)
        kind = tag & 7
        size, at = _varint(message, at) if kind == 2 else (0, at)
        if kind == 0:
            _, at = _varint(message, at)
        elif kind == 2 and tag >> 3 == number:
            yield message[at : at + size]
        at += {0: 0, 1: 8, 2: size, 5: 4}[kind]
    if at < len(message):
        raise UnreadableReply(f"A record of it has more than {most} entries.")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
    return value, at
