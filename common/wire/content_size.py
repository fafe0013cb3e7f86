"""What a content takes in memory, told from its bytes before a message is made of them, at either end.

Its bytes may be few and what becomes of them much: an entry of two bytes becomes a Python object. So the two are
bounded apart: what is no larger afterwards than before, by the model, and all else by a megabyte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bouquet.common.errors import BouquetError

if TYPE_CHECKING:  # it imports NumPy, which a device's agent does without
    from bouquet.common.parameters.layout import ParameterLayout

_BESIDE = 2**20  # bytes
_BESIDE_EACH = 1024  # and for each tensor: a name, a type and a shape
_MOST_RECORDS, _MOST_ITEMS, _FEW = 100, 1000, 8  # records; entries of a record beside its tensors; parts of an entry
# Numbers of fields in flwr/proto/recorddict.proto. The bytes of an array, and of a packed model in a ConfigRecord.
_ITEMS, _VALUE, _ARRAY_RECORD, _CONFIG_RECORD = 1, 2, 2, 4
_BYTES = {_ARRAY_RECORD: 4, _CONFIG_RECORD: 6}


class UnreadableContent(BouquetError):
    """A content of which no message can be made."""


@dataclass(frozen=True)
class Room:
    """The most that a content may take: bytes of ``arrays`` and bytes ``beside`` them; ``tensors`` in one record."""

    arrays: int
    beside: int
    tensors: int

    @classmethod
    def of(cls, layout: ParameterLayout, models: int = 1) -> Room:
        """For so many models, whichever way they are written."""
        number = len(layout.tensors)
        return cls(models * layout.most_bytes + _BESIDE, models * number * _BESIDE_EACH + _BESIDE, number)

    @property
    def size(self) -> int:
        """Bytes of a whole content."""
        return self.arrays + self.beside

    def check_bytes(self, count: int) -> None:
        """Raise `UnreadableContent` for too many bytes, before they are asked for."""
        if count > self.size:
            raise UnreadableContent(f"It takes {count} bytes; here it may take {self.size}.")

    def check(self, content: bytes) -> None:
        """Raise `UnreadableContent`, or whatever it is that goes wrong, for a content that would become too large."""
        self.check_bytes(len(content))
        arrays = 0
        for entry in _fields(memoryview(content), _ITEMS, _MOST_RECORDS):
            for kind, wanted in _BYTES.items():
                for record in _fields(entry, kind, _FEW):
                    for item in _fields(record, _ITEMS, self.tensors + _MOST_ITEMS):
                        for value in _fields(item, _VALUE, _FEW):
                            arrays += sum(len(given) for given in _fields(value, wanted, _MOST_ITEMS))
        if arrays > self.arrays:
            raise UnreadableContent(f"Its arrays take {arrays} bytes; here they are at most {self.arrays}.")
        if len(content) - arrays > self.beside:
            raise UnreadableContent(f"It takes more than {self.beside} bytes beside its arrays.")


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
        raise UnreadableContent(f"A record of it has more than {most} entries.")


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
