"""The records of a message's content by kind.

Flower's own views (`content.config_records` and its like) check and write back each record whenever one looks: more
than a third of all writes to records in a simulated round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)


def records_of(content: RecordDict, kind: type[Record]) -> dict[str, Record]:
    """The records of one kind by name, in the content's order; a dictionary of its own."""
    return {name: record for name, record in content.items() if isinstance(record, kind)}


def config_of(content: RecordDict, name: str) -> Mapping[str, Any]:
    """The values of the `ConfigRecord` of this name; empty where there is none."""
    record = content.get(name)
    return record if isinstance(record, ConfigRecord) else {}
