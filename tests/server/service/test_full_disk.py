"""Replies and tasks that have no room, and bundles of code."""

import asyncio
import errno
import os
from pathlib import Path

import pytest
from flwr.app import Message

from bouquet.common.protocol.error_replies import cannot_be_read
from bouquet.common.wire.flower import content_bytes
from bouquet.common.wire.transfer import CHUNK_BYTES, Incoming, content_of
from bouquet.server.service import replies as replies_module
from bouquet.strategies.base.exchange import UNDELIVERED, Patience, exchange
from tests.helpers.served_fleet import content
from tests.helpers.waiting_for import eventually

LARGE = 10 * CHUNK_BYTES + 17


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
