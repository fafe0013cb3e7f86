"""Contents both ways over gRPC: inside their frames and in chunks, cut anywhere and gone on with."""

import hashlib
import tracemalloc
from types import SimpleNamespace

import pytest

from bouquet.common.errors import RunFailed, RunStopped
from bouquet.common.settings import Settings
from bouquet.common.wire.flower import content_bytes
from bouquet.common.wire.transfer import CHUNK_BYTES, INLINE_BYTES, WINDOW_BYTES, content_of
from bouquet.federation import run as run_module
from tests.helpers.served_fleet import LAYOUT, content
from tests.helpers.waiting_for import eventually

LARGE = 10 * CHUNK_BYTES + 17


SIZES = [INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 3 * CHUNK_BYTES, 3 * CHUNK_BYTES + 1, LARGE]


@pytest.mark.parametrize("size", SIZES)
def test_a_content_of_any_size_comes_whole_both_ways(fleet, size):
    device = fleet.welcome()
    identifier = fleet.push(device, content(size, b"s"))
    task, came = device.task()
    assert task.id == identifier
    assert came == content_bytes(content(size, b"s"))
    assert bool(task.content.data) == (size <= INLINE_BYTES)
    offsets = device.deliver(identifier, content_bytes(content(size, b"d")))
    (reply,) = fleet.pull(identifier)
    assert content_bytes(reply.content) == content_bytes(content(size, b"d"))
    assert (reply.metadata.src_node_id, reply.metadata.reply_to_message_id) == (device.node, identifier)
    assert offsets == ([] if size <= INLINE_BYTES else [*range(0, size, CHUNK_BYTES)])
    assert fleet.in_loop(fleet.is_clean)
    assert not [*fleet.service_folder.glob("*.content")]


def test_a_device_takes_as_many_chunks_as_it_gives_credit_for_from_where_it_likes(fleet):
    device = fleet.welcome()
    identifier = fleet.push(device, content(LARGE))
    device.wait_for("task")
    sent = content_bytes(content(LARGE))
    for offset, end, sizes in [(0, 5, [5]), (LARGE - 9, LARGE, [9]), (7, 7 + CHUNK_BYTES + 1, [CHUNK_BYTES, 1])]:
        device.send(credit={"id": identifier, "offset": offset, "end": end})
        for size in sizes:
            chunk = device.wait_for("chunk")
            assert (chunk.offset, chunk.data) == (offset, sent[offset : offset + size])
            offset += size
    device.send(credit={"id": identifier, "end": 8 + CHUNK_BYTES + 1})  # without an offset: from there on
    assert device.wait_for("chunk").offset == 8 + CHUNK_BYTES
    assert not [frame for frame in device.frames if frame.HasField("chunk")]


def test_a_server_lets_a_reply_be_no_further_ahead_than_its_window(fleet):
    device = fleet.welcome()
    identifier = fleet.push(device)
    reply = content_bytes(content(LARGE))
    device.send(reply={"id": identifier, "content": content_of(reply)})
    credit = device.wait_for("credit")
    assert (credit.offset, credit.end) == (0, WINDOW_BYTES)
    at, end = 0, credit.end
    while at < LARGE:
        device.send(chunk={"id": identifier, "offset": at, "data": reply[at : min(at + CHUNK_BYTES, end)]})
        at = min(at + CHUNK_BYTES, end)
        if at == end and end < LARGE:
            while end == at:
                end = device.wait_for("credit").end
            assert end - at <= WINDOW_BYTES
    assert content_bytes(fleet.pull(identifier)[0].content) == reply


@pytest.mark.parametrize("restart", [False, True])
def test_a_reply_goes_on_at_nine_tenths_after_a_cut_and_a_restart_of_the_server(fleet, restart):
    device = fleet.welcome()
    identifier = fleet.push(device)
    reply = content_bytes(content(LARGE))
    device.deliver(identifier, reply, until=9 * CHUNK_BYTES)
    eventually(lambda: fleet.known(device).tasks[identifier].incoming.at == 9 * CHUNK_BYTES, "so much is there")
    device.close(goodbye=False)
    eventually(lambda: fleet.known(device).stream is None, "the connection is lost")
    if restart:
        fleet.stop()
        fleet.start()
    device.connect(holds=[identifier])
    device.wait_for("welcome")
    assert fleet.push(device) == identifier if restart else True
    assert not device.wait_for("task").content.data
    assert device.deliver(identifier, reply) == [9 * CHUNK_BYTES, 10 * CHUNK_BYTES]
    assert content_bytes(fleet.pull(identifier)[0].content) == reply
    assert fleet.in_loop(fleet.is_clean)


@pytest.mark.parametrize("end", [SystemExit(143), KeyboardInterrupt(), RunFailed("over"), RunStopped("over")])
def test_what_has_come_outlives_a_signal_to_the_server_and_not_its_runs_end(fleet, monkeypatch, tmp_path, end):
    device = fleet.welcome()

    def rounds(grid, *_):
        identifier = fleet.push(device)
        device.deliver(identifier, content_bytes(content(LARGE)), until=9 * CHUNK_BYTES)
        raise end

    monkeypatch.setattr(run_module, "run_rounds", rounds)
    run, settings = tmp_path / "run", Settings()
    run.mkdir()
    with pytest.raises(type(end)):
        run_module.do_run(fleet.grid, settings, run, False, SimpleNamespace(layout=LAYOUT, record=None))
    tasks = fleet.in_loop(lambda: [*fleet.known(device).tasks])
    assert len([*fleet.service_folder.glob("*.part")]) == len(tasks) == (not isinstance(end, Exception))
    fleet.stop()
    device.wait_for_end()
    assert [frame for frame in device.frames if frame.HasField("cancel")] == [] or isinstance(end, Exception)


def test_no_stream_keeps_the_last_frame_that_it_sent_or_read(fleet):
    devices, data = [fleet.welcome() for _ in range(8)], content_bytes(content(INLINE_BYTES))

    files = [tracemalloc.Filter(True, f"*/{name}.py", all_frames=True) for name in ("server/service/*", "transfer")]

    def held():
        return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(files).traces)

    tracemalloc.start(2)
    identifiers = [fleet.push(device, content(INLINE_BYTES)) for device in devices]
    for device in devices:
        device.task()
    eventually(lambda: held() < 4 * INLINE_BYTES, "what was sent is gone")
    for device, identifier in zip(devices, identifiers, strict=True):
        device.deliver(identifier, data)
        fleet.pull(identifier)
    eventually(lambda: held() < 4 * INLINE_BYTES, "what was read is gone")
    tracemalloc.stop()


@pytest.mark.parametrize("restart", [False, True])
def test_a_task_goes_on_where_its_device_has_it(fleet, restart):
    device = fleet.welcome()
    records = content(LARGE, b"s")
    identifier = fleet.push(device, records)
    device.wait_for("task")
    device.send(credit={"id": identifier, "offset": 0, "end": 9 * CHUNK_BYTES})
    came = b"".join(device.wait_for("chunk").data for _ in range(9))
    device.close(goodbye=False)
    eventually(lambda: fleet.known(device).stream is None, "the connection is lost")
    if restart:
        fleet.stop()
        fleet.start()
    device.connect()
    device.wait_for("welcome")
    if restart:
        assert fleet.push(device, records) == identifier
    task = device.wait_for("task")
    came += device.fetch(task.id, task.content, len(came))
    assert came == content_bytes(records)
    assert hashlib.sha256(came).digest() == task.content.sha256


def test_what_has_another_sha256_than_was_said_begins_anew(fleet):
    device = fleet.welcome()
    identifier = fleet.push(device)
    reply, other = (content_bytes(content(LARGE, kind)) for kind in (b"a", b"b"))
    device.send(reply={"id": identifier, "content": content_of(reply)})
    at = 0
    while at < LARGE:
        end = device.wait_for("credit").end
        for offset in range(at, end, CHUNK_BYTES):
            device.send(
                chunk={"id": identifier, "offset": offset, "data": other[offset : min(offset + CHUNK_BYTES, end)]}
            )
        at = end
    begins = device.wait_for("credit")
    while not begins.HasField("offset"):
        begins = device.wait_for("credit")
    assert begins.offset == 0
    device.close(goodbye=False)
    device.connect()
    assert device.deliver(identifier, reply)[0] == 0
    assert content_bytes(fleet.pull(identifier)[0].content) == reply


def credit_beyond(device, identifier):
    device.send(credit={"id": identifier, "offset": 0, "end": LARGE + 1})


def credit_backwards(device, identifier):
    device.send(credit={"id": identifier, "offset": 2, "end": 1})


def chunk_beyond(device, identifier):
    announce(device, identifier)
    device.wait_for("credit")
    for at in range(0, LARGE, CHUNK_BYTES):  # beyond the end at last, whatever credit there is meanwhile
        device.send(chunk={"id": identifier, "offset": at, "data": b"x" * CHUNK_BYTES})


def chunk_elsewhere(device, identifier):
    announce(device, identifier)
    device.send(chunk={"id": identifier, "offset": 1, "data": b"x"})


def empty_chunk(device, identifier):
    announce(device, identifier)
    device.send(chunk={"id": identifier, "offset": 0})


def announce(device, identifier):
    device.send(reply={"id": identifier, "content": {"size": LARGE, "sha256": b"x" * 32}})


def partly_inside(device, identifier):
    device.send(reply={"id": identifier, "content": {"size": LARGE, "sha256": b"x" * 32, "data": b"x"}})


def of_another_length(device, identifier):
    device.send(reply={"id": identifier, "content": {"size": 5, "sha256": hashlib.sha256(b"x").digest(), "data": b"x"}})


def of_another_sha256(device, identifier):
    device.send(reply={"id": identifier, "content": {"size": 1, "sha256": b"x" * 32, "data": b"x"}})


def without_sha256(device, identifier):
    device.send(reply={"id": identifier, "content": {"size": 1, "data": b"x"}})


def with_nothing(device, identifier):
    device.send(reply={"id": identifier})


def for_a_long_id(device, _):
    device.send(reply={"id": "x" * 1000, "error": {"code": 1}})


@pytest.mark.parametrize(
    "attack",
    [
        *(credit_beyond, credit_backwards, chunk_beyond, chunk_elsewhere, empty_chunk, partly_inside),
        *(of_another_length, of_another_sha256, without_sha256, with_nothing, for_a_long_id),
    ],
)
def test_what_does_not_fit_what_was_said_ends_the_connection_and_no_other(fleets, attack):
    fleet = fleets("mallory", "garden")
    mallory, garden = fleet.welcome("mallory"), fleet.welcome("garden")
    identifier = fleet.push(mallory, content(LARGE))
    mallory.wait_for("task")
    attack(mallory, identifier)
    assert "cannot be read" in " ".join(mallory.wait_for_end())
    assert any(line.startswith("mallory is refused") for line in fleet.said), fleet.said
    other = fleet.push(garden)
    assert garden.task()[0].id == other  # and the service goes on
    mallory.connect()
    mallory.deliver(identifier, b"")  # also with mallory
    assert fleet.pull(identifier)[0].has_content()
