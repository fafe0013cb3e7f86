"""Contents both ways over gRPC: inside their frames and in chunks, cut anywhere and gone on with."""

import asyncio
import errno
import hashlib
import os
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import Message

from bouquet.common.errors import RunFailed, RunStopped
from bouquet.common.protocol.error_replies import cannot_be_read
from bouquet.common.settings import Settings
from bouquet.common.wire.flower import content_bytes
from bouquet.common.wire.transfer import CHUNK_BYTES, INLINE_BYTES, WINDOW_BYTES, Incoming, content_of
from bouquet.federation import run as run_module
from bouquet.server.service import replies as replies_module
from bouquet.strategies.base.exchange import UNDELIVERED, Patience, exchange
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

    def check():
        files = [tracemalloc.Filter(True, f"*/{name}.py", all_frames=True) for name in ("server/service/*", "transfer")]
        held = tracemalloc.take_snapshot().filter_traces(files)
        assert sum(trace.size for trace in held.traces) < 4 * INLINE_BYTES

    tracemalloc.start(2)
    identifiers = [fleet.push(device, content(INLINE_BYTES)) for device in devices]
    for device in devices:
        device.task()
    check()
    for device, identifier in zip(devices, identifiers, strict=True):
        device.deliver(identifier, data)
        fleet.pull(identifier)
    check()
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


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["open", "pwrite", "replace", "write_bytes"])
def test_a_full_disk_costs_the_reply_that_has_no_room_and_nothing_else(fleet, monkeypatch, where):
    device, other = fleet.welcome(), fleet.welcome()
    identifiers = [fleet.push(device), fleet.push(other)]
    with monkeypatch.context() as disk:
        if where == "write_bytes":  # a small one, when those in memory are too many
            disk.setattr(replies_module, "MEMORY_BYTES", 0)
            disk.setattr(Path, "write_bytes", full)
        elif where == "open":
            disk.setattr("bouquet.common.wire.transfer.os.open", full)
        else:
            disk.setattr(f"bouquet.common.wire.transfer.os.{where}", full)
        device.deliver(identifiers[0], content_bytes(content(1000 if where == "write_bytes" else LARGE)))
    other.deliver(identifiers[1], content_bytes(content(LARGE)))
    replies = fleet.pull(*identifiers)
    assert [reply.has_error() for reply in replies] == [True, False]
    assert cannot_be_read(replies[0])
    assert "No space left" in replies[0].error.reason
    assert any("No space left" in line for line in fleet.said)
    assert fleet.in_loop(fleet.is_clean)


def test_a_full_disk_costs_the_tasks_that_have_no_room_and_not_the_run(fleet, monkeypatch):
    devices = [fleet.welcome(), fleet.welcome()]
    messages = [Message(content(LARGE), dst_node_id=one.node, message_type="train", ttl=3600.0) for one in devices]
    write = Path.write_bytes

    def half(path, data):
        write(path, data[: LARGE // 2])
        full()

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_bytes", half)
        assert exchange(fleet.grid, messages, Patience()) == ([], {one.node: UNDELIVERED for one in devices})
    assert fleet.said == ["The tasks of 2 devices cannot be kept: No space left on device"]
    assert not [*fleet.service_folder.glob("*.content")]
    assert fleet.push(devices[0], content(LARGE)) == devices[0].task()[0].id


def test_small_replies_beyond_a_number_of_bytes_wait_on_the_disk(fleet, monkeypatch):
    monkeypatch.setattr(replies_module, "MEMORY_BYTES", 2500)
    device = fleet.welcome()
    identifiers = [fleet.push(device, content(500 + k)) for k in range(4)]
    for identifier in identifiers:
        device.deliver(identifier, content_bytes(content(1000)))
    assert fleet.in_loop(lambda: (fleet.service.replies.memory, fleet.service.replies.disk)) == (2000, 2000)
    assert len([*fleet.service_folder.glob("*.reply")]) == 2
    assert all(content_bytes(reply.content) == content_bytes(content(1000)) for reply in fleet.pull(*identifiers))
    assert fleet.in_loop(fleet.is_clean)


def test_large_replies_wait_for_room_and_for_nobody_who_has_gone(fleet, monkeypatch):
    monkeypatch.setattr(replies_module, "DISK_SHARE", 0.0)  # one at a time
    slow, *others = (fleet.welcome() for _ in range(3))
    reply = content_bytes(content(LARGE))
    identifiers = [fleet.push(device) for device in (slow, *others)]
    slow.send(reply={"id": identifiers[0], "content": content_of(reply)})
    slow.wait_for("credit")
    for number, (device, identifier) in enumerate(zip(others, identifiers[1:], strict=True), start=1):
        device.send(reply={"id": identifier, "content": content_of(reply)})
        eventually(lambda number=number: len(fleet.service.replies.waiting) == number, "it waits, in this order")
    slow.close(goodbye=False)  # and what it had reserved is free
    others[0].wait_for("credit")
    fleet.grid.give_up([identifiers[1]])
    others[1].wait_for("credit")
    others[1].connect()  # with the old connection still open
    others[1].deliver(identifiers[2], reply)
    assert content_bytes(fleet.pull(identifiers[2])[0].content) == reply
    slow.connect()
    slow.deliver(identifiers[0], reply)
    fleet.pull(identifiers[0])
    assert fleet.in_loop(fleet.is_clean)


def test_of_replies_that_are_never_whole_one_part_is_kept_and_none_when_nobody_waits(fleet):
    device = fleet.welcome()
    identifiers = [fleet.push(device), fleet.push(device), fleet.push(device)]

    def parts():
        return sorted(file.name[:32] for file in fleet.service_folder.glob("*.part"))

    for sha256 in (b"a" * 32, b"b" * 32):
        for identifier in identifiers:
            device.send(reply={"id": identifier, "content": {"size": LARGE, "sha256": sha256}})
            device.wait_for("credit", id=identifier)
            device.send(chunk={"id": identifier, "offset": 0, "data": b"x" * CHUNK_BYTES})
        device.close(goodbye=False)
        device.connect()
        device.wait_for("welcome")
    eventually(lambda: parts() == sorted(identifiers), "one is left of each")
    fleet.grid.give_up([identifiers[0]])
    device.send(reply={"id": identifiers[1], "error": {"code": 2}})
    eventually(lambda: parts() == identifiers[2:], "of the third alone")
    (fleet.service_folder / f"{'0' * 32}.reply.6161.part").write_bytes(b"of a run before a restart")
    fleet.grid.end()
    eventually(lambda: not parts(), "none are left")


def test_a_bundle_is_sent_to_who_asks_and_a_new_one_ends_the_transfer(fleet):
    device = fleet.welcome()
    bundle = os.urandom(LARGE)
    fleet.begin(8, bundle)
    fleet.push(device)
    about = device.wait_for("run").bundle
    assert device.fetch(device.runs[8].code, about) == bundle
    device.send(credit={"id": device.runs[8].code, "offset": 0, "end": CHUNK_BYTES})
    device.wait_for("chunk")
    (fleet.service_folder / "code.zip").write_bytes(b"shorter")
    device.send(credit={"id": device.runs[8].code, "end": LARGE})
    device.wait_for_end()  # it would wait for the rest for ever
    device.connect()
    device.wait_for("task")


def test_a_reply_whose_device_is_lost_while_it_is_checked_is_there_all_the_same(fleet, monkeypatch):
    """And one that was given up meanwhile leaves nothing."""
    finish, may_finish, begun = Incoming.finish, asyncio.Event(), []

    def slowly(incoming):
        begun.append(incoming.id)
        asyncio.run_coroutine_threadsafe(may_finish.wait(), fleet.grid.loop).result()
        return finish(incoming)

    monkeypatch.setattr(Incoming, "finish", slowly)
    device = fleet.welcome()
    reply = content_bytes(content(LARGE))
    identifiers = [fleet.push(device), fleet.push(device)]
    for identifier in identifiers:
        device.send(reply={"id": identifier, "content": content_of(reply)})
    at = dict.fromkeys(identifiers, 0)
    while len(begun) < 2:
        try:
            credit = device.wait_for("credit", seconds=0.1)
        except TimeoutError:
            continue
        for offset in range(at[credit.id], credit.end, CHUNK_BYTES):
            part = reply[offset : min(offset + CHUNK_BYTES, credit.end)]
            device.send(chunk={"id": credit.id, "offset": offset, "data": part})
        at[credit.id] = credit.end
    device.close(goodbye=False)
    eventually(lambda: fleet.known(device).stream is None, "the connection is lost")
    device.connect()
    device.wait_for("welcome")  # of what is given up before, it would not be told
    device.send(reply={"id": identifiers[0], "content": content_of(reply)})
    fleet.grid.give_up([identifiers[1]])
    device.wait_for("cancel", id=identifiers[1])
    fleet.grid.loop.call_soon_threadsafe(may_finish.set)
    device.wait_for("received", id=identifiers[0])
    assert content_bytes(fleet.pull(identifiers[0])[0].content) == reply
    eventually(lambda: fleet.in_loop(fleet.is_clean), "nothing is left")


def test_what_is_damaged_again_is_unreadable_and_asked_for_no_more(fleet):
    device = fleet.welcome()
    identifier = fleet.push(device)
    said, damaged = bytes(300_000), bytes(299_999) + b"x"
    device.send(reply={"id": identifier, "content": content_of(said)})
    for _ in range(2):
        credit = device.wait_for("credit", id=identifier)
        assert credit.offset == 0
        for at in range(0, len(damaged), 100_000):
            device.send(chunk={"id": identifier, "offset": at, "data": damaged[at : at + 100_000]})
    (reply,) = fleet.pull(identifier)
    assert reply.error.reason == "The reply cannot be read. Twice it was not what its SHA-256 says."
    device.wait_for("received", id=identifier)
    eventually(fleet.is_clean, "clean")
