"""What a device remembers of the models that it was sent."""

import numpy as np

from bouquet.client.state.device_state import DeviceState
from bouquet.client.state.store import FolderStore
from bouquet.client.uploads.compression import CopyMemory
from bouquet.common.compression.delta import Copy
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ARRAYS, STANDARD, Payload, Received
from bouquet.common.protocol.compressed import UPLOADED, Unpacked

LAYOUT = ParameterLayout.of({"w.weight": np.zeros((1, 4), dtype=np.float32)})


def state_of(folder):
    return DeviceState(FolderStore(folder, durable=False))


def received(vector, round_=1, step=0, start="received", codec="float32", copies=None):
    models = {ARRAYS: (vector, LAYOUT.layers)}
    unpacked = Unpacked(models, codec, step, frozenset(), copies or {}, frozenset())
    payloads = {ARRAYS: Payload(vector)}
    return Received(round_, "r", payloads, start, LAYOUT.layers, (), 0.0, STANDARD, False, {}, unpacked)


def test_a_model_that_began_with_what_was_received_leaves_no_copy(tmp_path):
    memory, sent = CopyMemory(state_of(tmp_path), LAYOUT), np.ones(4, dtype=np.float32)
    trained = np.float32([9, 2, -1, 2])
    for round_, from_received in enumerate((True, False), 1):
        message = received(sent, round_, start="personal", codec="int8", copies={ARRAYS: Copy(sent, LAYOUT.layers)})
        _, copies = memory.answer("r", message, trained, True, seed=0, from_received=from_received)
        assert (UPLOADED in copies) is not from_received


def test_the_copies_of_the_round_before_outlast_all_messages_of_a_round(tmp_path):
    """A server that was restarted repeats the round from its first message."""
    vectors = [np.full(4, i, dtype=np.float32) for i in range(3)]
    copies = [Copy(vector, LAYOUT.layers) for vector in vectors]
    for (round_, step), vector, copy in zip([(1, 0), (2, 0), (2, 1)], vectors, copies, strict=True):
        message = received(vector, round_, step, copies={ARRAYS: copy})
        CopyMemory(state_of(tmp_path), LAYOUT).answer("r", message, None, True, seed=0)
    assert state_of(tmp_path).array_versions("r", "copies") == [2 * 16 + 1, 2 * 16, 16]
    found = CopyMemory(state_of(tmp_path), LAYOUT).find("r", copies[0].digest)
    assert found.vector.tolist() == vectors[0].tolist()
