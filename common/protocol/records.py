"""The records of a message's content by kind.

Flower's own views (`content.config_records` and its like) check and write back each record whenever one looks: more
than a third of all writes to records in a simulated round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

_ENTRY_BYTES, _NUMBER_BYTES = 64, 8  # about what a value takes beside itself, and what a number is
_NUMBERS = (float, int, bool)
Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)


def records_of(content: RecordDict, kind: type[Record]) -> dict[str, Record]:
    """The records of one kind by name, in the content's order; a dictionary of its own."""
    return {name: record for name, record in content.items() if isinstance(record, kind)}


def size_of(content: Mapping[str, Mapping[str, Any]]) -> int:
    """Bytes that a message's content takes, about: its texts, bytes and numbers, and what holds each of them.

    Nothing is written for it, and no array decoded; Flower's own `count_bytes` raises an error for an empty text.
    """
    size = 0
    for name, record in content.items():
        size += len(name)
        for key, value in record.items():
            size += _ENTRY_BYTES + len(key) + (_NUMBER_BYTES if type(value) in _NUMBERS else _size(value))
    return size


def config_of(content: RecordDict, name: str) -> Mapping[str, Any]:
    """The values of the `ConfigRecord` of this name; empty where there is none."""
    record = content.get(name)
    return record if isinstance(record, ConfigRecord) else {}


def _size(value: Any) -> int:
    if isinstance(value, Array):
        return len(value.data) + len(value.dtype) + len(value.stype) + _NUMBER_BYTES * len(value.shape)
    if isinstance(value, list):
        texts = sum(map(len, value)) if value and isinstance(value[0], str | bytes) else 0
        return _NUMBER_BYTES * len(value) + texts
    return len(value) if isinstance(value, str | bytes) else _NUMBER_BYTES
