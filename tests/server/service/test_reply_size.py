"""What a registered device can put into the content of a reply: at worst its own error, in little memory."""

import tracemalloc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.proto.recorddict_pb2 import ConfigRecord as ConfigProto
from flwr.proto.recorddict_pb2 import ConfigRecordValue, SintList
from flwr.proto.recorddict_pb2 import RecordDict as RecordsProto

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol.error_replies import UNREADABLE_ERROR
from bouquet.common.wire.content_size import Room, UnreadableContent
from bouquet.common.wire.flower import content_bytes
from tests.helpers.served_fleet import LAYOUT

MEGABYTE = 2**20


def config(**values):
    items = [ConfigProto.Item(key=key, value=value) for key, value in values.items()]
    record = ConfigProto(items=items)
    return RecordsProto(items=[RecordsProto.Item(key="r", config_record=record)]).SerializeToString()


def nested(*path, inside):
    """Bytes as the parts of one another: numbers of fields, outermost first."""
    for number in reversed(path):
        size, length = len(inside), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        inside = bytes([number << 3 | 2]) + length + bytes([size]) + inside
    return inside


ATTACKS = {
    "garbage": b"\xff" * 40,
    "a length beyond the end": b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    "a varint without an end": b"\x0a" + b"\xff" * 1000,
    "a group": b"\x0b" * 1000,
    "cut": content_bytes(RecordDict({"r": ConfigRecord({"k": b"x" * 1000})}))[:-500],
    "many numbers": config(packed=ConfigRecordValue(sint_list=SintList(vals=[1000] * (MEGABYTE * 3 // 4)))),
    "many records": nested(1, inside=b"") * (MEGABYTE * 2),
    "many entries": nested(1, 4, inside=b"\x0a\x00" * (MEGABYTE * 3 // 4)),
    "bytes in many entries": nested(1, 4, inside=nested(1, 2, 6, inside=b"1234") * (MEGABYTE // 8)),
    "many parts of an entry": nested(1, inside=b"\x22\x00" * MEGABYTE),
    "many bytes": config(packed=ConfigRecordValue(bytes=b"x" * (LAYOUT.most_bytes + 2 * MEGABYTE))),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_cannot_be_read_is_its_devices_error_in_little_memory(fleet, attack):
    mallory, garden = fleet.welcome(), fleet.welcome()
    first, second = fleet.push(mallory), fleet.push(garden)
    mallory.deliver(first, ATTACKS[attack])
    garden.deliver(second, content_bytes(RecordDict({"r": ConfigRecord({"k": 1})})))
    tracemalloc.start()
    replies = {reply.metadata.src_node_id: reply for reply in fleet.pull(first, second)}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert replies[garden.node].content["r"]["k"] == 1
    error = replies[mallory.node].error
    assert (error.code, len(error.reason) < 300) == (UNREADABLE_ERROR, True)
    assert replies[mallory.node].metadata.reply_to_message_id == first
    assert peak < 8 * MEGABYTE + len(ATTACKS[attack])
    assert fleet.in_loop(fleet.is_clean)


def test_an_honest_reply_of_the_largest_size_is_read(fleet):
    device = fleet.welcome()
    identifier, room = fleet.push(device), Room.of(LAYOUT)
    content = {
        "arrays": ArrayRecord({"w": Array("float32", (1,), "numpy.ndarray", b"x" * (room.arrays - MEGABYTE))}),
        "packed": ConfigRecord({"packed": b"x" * MEGABYTE}),
    }
    device.deliver(identifier, content_bytes(RecordDict(content)))
    (reply,) = fleet.pull(identifier)
    assert len(reply.content["packed"]["packed"]) == MEGABYTE


def test_arrays_and_the_rest_are_bounded_apart():
    room = Room(arrays=1000, beside=1000, tensors=1)
    room.check(config(a=ConfigRecordValue(bytes=b"x" * 1000)))
    with pytest.raises(UnreadableContent, match="Its arrays take 1001 bytes"):
        room.check(config(a=ConfigRecordValue(bytes=b"x" * 1001)))
    with pytest.raises(UnreadableContent, match="beside its arrays"):
        room.check(config(a=ConfigRecordValue(string="x" * 1000)))


def test_a_mask_that_is_packed_as_floats_has_room():
    layout = ParameterLayout.of({"w": np.zeros(4, np.float32), "mask": np.zeros(4 * MEGABYTE, bool)})
    Room.of(layout).check_bytes(4 * layout.dim)
