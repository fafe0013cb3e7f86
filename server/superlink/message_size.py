"""How many bytes Flower makes of the records of a message."""

from collections.abc import Mapping
from typing import Any, cast

from flwr.app import RecordDict
from flwr.common.serde import recorddict_to_proto


def wire_bytes(records: Mapping[str, Any]) -> int:
    """Bytes of these records on the wire, as protobuf."""
    # Of what it is given it asks for no more than its items; a RecordDict would check each of them once more.
    return recorddict_to_proto(cast(RecordDict, records)).ByteSize()
