"""Why the number of objects that a device's message may have is a constant: no model's layout comes near it."""

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.proto.fleet_pb2 import PushMessagesRequest

from common import protocol
from common.parameters.layout import ParameterLayout
from common.settings import load_settings
from experiments.simulation.inline_grid import InlineGrid
from server.gate.authorization import MOST_BYTES
from server.gate.main import Options
from server.run.build import build_strategy
from tests.helpers.wire_device import Reply

InlineGrid({})  # gives Flower's Message its sender
CHUNK_BYTES = 5 * 2**20  # of an array in an object of its own; below it an array is one


@pytest.mark.parametrize("tensors", [2, 20_000])
def test_a_reply_has_as_many_objects_whatever_tensors_the_model_has(tensors):
    layout = ParameterLayout.of({f"layer{number}.weight": np.zeros(2, dtype=np.float32) for number in range(tensors)})
    joined = build_strategy(load_settings(None)).joins_tensors
    arrays = protocol.to_record(layout, np.zeros(layout.dim, dtype=np.float32), joined=joined)
    question = Message(RecordDict(), dst_node_id=1, message_type="train")
    reply = Reply.of(protocol.reply(question, "garden-pi", {protocol.NUM_EXAMPLES: 1}, arrays))
    objects = {}
    tree = reply.top.seal(objects)
    announced = PushMessagesRequest(messages_list=[reply.announced], message_object_trees=[tree])
    assert len(objects) == 7
    assert announced.ByteSize() < MOST_BYTES / 100


def test_bytes_make_objects_and_no_server_has_memory_for_a_model_that_makes_too_many():
    size = 3 * CHUNK_BYTES
    vector = np.arange(size // 4, dtype=np.float32)
    arrays = protocol.to_record(ParameterLayout.of({"w": vector}), vector)
    question = Message(RecordDict(), dst_node_id=1, message_type="train")
    objects = {}
    Reply.of(protocol.reply(question, "garden-pi", {}, arrays)).top.seal(objects)
    assert sum(len(content) >= CHUNK_BYTES for content in objects.values()) == 3
    assert Options.most_objects * CHUNK_BYTES > 50e9
