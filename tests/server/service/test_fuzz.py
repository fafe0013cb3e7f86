"""Conversations that Hypothesis makes up, on the stream of a registered device: another's task is done all the same.

`make fuzz` does so for an hour; what has failed once stays in ``.hypothesis`` and is tried first.
"""

import os
import resource

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bouquet.common.texts import CONTROLS
from bouquet.common.wire.fleet_pb2 import DeviceFrame
from bouquet.common.wire.flower import content_bytes
from bouquet.common.wire.transfer import CHUNK_BYTES, INLINE_BYTES, content_of
from tests.helpers.served_fleet import content
from tests.helpers.waiting_for import eventually

EXAMPLES = int(os.environ.get("BOUQUET_FUZZ", "25"))
SMALL = content_bytes(content(1000))
TASK = "the id of its task"

ids = st.one_of(st.just(TASK), st.text(max_size=70))
sizes = st.one_of(
    st.sampled_from([0, 1, 1000, INLINE_BYTES, INLINE_BYTES + 1, 2**63, 2**64 - 1]), st.integers(0, 10**6)
)
digests = st.one_of(st.just(content_of(SMALL).sha256), st.binary(max_size=40))
data = st.one_of(st.just(SMALL), st.just(bytes(CHUNK_BYTES)), st.binary(max_size=300))
contents = st.fixed_dictionaries({"size": sizes, "sha256": digests, "data": data})
errors = st.fixed_dictionaries({"code": st.integers(-(2**63), 2**63 - 1), "reason": st.text(max_size=400)})
FRAMES = {
    "hello": st.fixed_dictionaries({"session": st.binary(max_size=70), "holds": st.lists(ids, max_size=3)}),
    "reply": st.one_of(
        st.fixed_dictionaries({"id": ids, "content": st.one_of(st.just(content_of(SMALL)), contents)}),
        st.fixed_dictionaries({"id": ids, "error": errors}),
    ),
    "chunk": st.fixed_dictionaries({"id": ids, "offset": sizes, "data": data}),
    "credit": st.fixed_dictionaries({"id": ids, "end": sizes}, optional={"offset": sizes}),
    "not_now": st.fixed_dictionaries({"id": ids, "reason": st.text(max_size=400), "seconds": st.floats()}),
    "pong": st.just({}),
    "goodbye": st.fixed_dictionaries({"reason": st.text(max_size=400)}),
}
said = st.one_of(*(st.tuples(st.just(kind), what) for kind, what in FRAMES.items()), st.binary(max_size=100))


def is_harmless(text):
    """One line, in which nothing steers a terminal."""
    return "\n" not in text and not CONTROLS.search(text)


def test_whatever_one_device_says_the_others_task_is_done_and_nothing_is_left(fleets):
    fleet = fleets("mallory", "garden")
    garden, mallory = fleet.welcome("garden"), fleet.welcome("mallory")

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(said, min_size=1, max_size=8))
    def talk(frames):
        task, other = fleet.push(mallory), fleet.push(garden)
        for frame in frames:
            if isinstance(frame, bytes):
                mallory.send_bytes(frame)
                continue
            kind, what = frame
            named = {key: task if value == TASK else value for key, value in what.items()}
            mallory.send_bytes(DeviceFrame(**{kind: named}).SerializeToString())
        garden.deliver(other, SMALL)
        assert fleet.pull(other)[0].has_content()
        mallory.close(goodbye=False)
        for reply in fleet.grid.pull_messages([task]):
            assert reply.metadata.src_node_id == mallory.node
            assert reply.has_content() or (is_harmless(reply.error.reason) and len(reply.error.reason) < 2000)
        fleet.grid.give_up([task])
        eventually(fleet.is_clean, "nothing is left")
        mallory.connect()
        mallory.wait_for("welcome")
        garden.frames.clear()

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + 200_000
    talk()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < most
    assert all(is_harmless(line) for line in fleet.said)
    assert not any("Looking after the devices failed" in line for line in fleet.said)
