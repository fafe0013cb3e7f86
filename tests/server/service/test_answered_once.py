"""A task has one reply, whatever breaks when; and what the grid says of devices, ids and replies."""

import gc
import threading

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from bouquet.common import protocol
from bouquet.common.protocol.error_replies import NOT_NOW_ERROR
from bouquet.common.wire.flower import content_bytes
from bouquet.common.wire.transfer import CHUNK_BYTES, INLINE_BYTES, Incoming, content_of
from bouquet.server.service import devices
from bouquet.server.service.devices import Dispatch, Stream
from tests.helpers.served_fleet import content
from tests.helpers.waiting_for import eventually
from tests.helpers.wire_device import SECONDS, answering

SMALL = content_bytes(content(1000))
LARGE = content_bytes(content(4 * CHUNK_BYTES))


def answered(fleet):
    """How many replies there were."""
    return fleet.in_loop(lambda: fleet.grid._arrived)


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_a_reply_that_is_sent_again_because_its_receipt_was_lost_counts_once(fleet, data):
    device = fleet.welcome()
    identifier = fleet.push(device)
    device.deliver(identifier, data)
    device.close(goodbye=False)
    device.connect()
    assert device.deliver(identifier, data) == []  # it is told at once that the server has it
    assert answered(fleet) == 1
    assert len(fleet.pull(identifier)) == 1
    assert not [*fleet.grid.pull_messages([identifier])]
    assert fleet.in_loop(fleet.is_clean)


def test_a_reply_that_is_said_twice_on_one_connection_counts_once(fleet):
    device = fleet.welcome()
    small, large = fleet.push(device), fleet.push(device)
    for identifier, data in ((small, SMALL), (large, LARGE)):
        device.send(reply={"id": identifier, "content": content_of(data)})
    device.deliver(large, LARGE)
    device.deliver(small, SMALL)
    fleet.pull(small, large)
    assert answered(fleet) == 2
    assert fleet.in_loop(fleet.is_clean)


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_a_reply_that_nobody_waits_for_any_more_is_dropped(fleet, data):
    device = fleet.welcome()
    early, late = fleet.push(device), fleet.push(device)
    device.deliver(early, data)
    if data is LARGE:
        device.deliver(late, data, until=2 * CHUNK_BYTES)
    fleet.grid.give_up([early, late])
    device.wait_for("cancel", id=late)
    device.send(reply={"id": late, "content": content_of(data)})
    device.wait_for("received", id=late)
    assert not [*fleet.grid.pull_messages([early, late])]
    assert fleet.in_loop(fleet.is_clean)


def test_a_task_whose_time_is_over_is_cancelled(fleet):
    device = fleet.welcome()
    identifier = fleet.push(device, ttl=0.01)
    device.wait_for("cancel", id=identifier)
    assert not fleet.known(device).tasks


def test_nobody_answers_for_another(fleet):
    garden, mallory = fleet.welcome(), fleet.welcome()
    identifier = fleet.push(garden)
    mallory.deliver(identifier, SMALL)
    mallory.deliver(identifier, LARGE)
    mallory.send(not_now={"id": identifier, "reason": "no"})
    mallory.send(chunk={"id": identifier, "data": b"x"})
    mallory.send(credit={"id": identifier, "offset": 0, "end": 1})
    own = fleet.push(mallory)
    mallory.deliver(own, SMALL)  # all that is before it is read
    assert [*fleet.known(garden).tasks] == [identifier]
    garden.deliver(identifier, SMALL)
    assert fleet.pull(identifier)[0].metadata.src_node_id == garden.node


STEPS = ["welcome", "run", "task", "part of the task", "reply", "part of the reply", "whole reply"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("restart", [False, True], ids=["cut", "restart"])
def test_a_task_is_answered_once_whatever_step_is_cut_off(fleet, step, restart):
    device = fleet.welcome()
    records = content(3 * CHUNK_BYTES)
    identifier = fleet.push(device, records)
    number = STEPS.index(step)
    if number >= 1:
        device.wait_for("run")
    if number >= 2:
        device.wait_for("task")
    if number >= 3:
        device.send(credit={"id": identifier, "offset": 0, "end": CHUNK_BYTES})
        device.wait_for("chunk")
    if number >= 4:
        until = {4: 0, 5: 2 * CHUNK_BYTES, 6: None}[number]
        device.deliver(identifier, LARGE, until=until)
    if restart:
        fleet.stop()
        fleet.start()
    device.close(goodbye=False)
    device.connect()
    device.wait_for("welcome")
    if restart:
        assert fleet.push(device, records) == identifier
    if restart or number < 6:
        task, told = device.task()
        assert (task.id, told) == (identifier, content_bytes(records))
        device.deliver(identifier, LARGE)
    assert len(fleet.pull(identifier)) == 1
    assert answered(fleet) == 1
    eventually(lambda: fleet.in_loop(fleet.is_clean), "nothing is left of it")


def test_ids_are_the_same_again_after_a_restart_and_else_differ(fleet):
    def ids(run):
        fleet.stop()
        fleet.start(run)
        one.connect()
        other.connect()
        one.wait_for("welcome")
        other.wait_for("welcome")
        first, second = content(100), content(100, b"y")
        return [
            fleet.push(one, first),
            fleet.push(one, first),  # the same again is another task
            fleet.push(one, second),
            fleet.push(one, first, kind="evaluate"),
            fleet.push(other, first),
        ]

    one, other = fleet.welcome(), fleet.welcome()
    before = ids(7)
    assert len({*before}) == 5
    assert ids(7) == before
    assert not {*ids(8)} & {*before}


def test_of_many_rounds_nothing_is_left_and_the_same_task_has_another_id(fleet):
    """With replies of every kind, a transfer cut off, what nobody answers, and a question that is asked throughout."""
    device, ids = fleet.welcome(), []

    def left():
        gc.collect()
        kinds = [type(one) for one in gc.get_objects()]
        return sum(map(len, fleet.grid._times.values())), *map(kinds.count, (Dispatch, Stream, Incoming))

    for round_ in range(1, 8):
        records = content(2 * CHUNK_BYTES)
        records[protocol.CONFIG] = ConfigRecord({protocol.ROUND: round_})
        small, large, failed, silent = (fleet.push(device, records) for _ in range(4))
        question = fleet.push(device, kind=protocol.IDENTIFY)
        ids += [small, large, failed, silent, question]
        device.deliver(small, SMALL)
        device.deliver(large, LARGE, until=CHUNK_BYTES)
        device.close(goodbye=False)
        device.connect(holds=[silent] * 100)
        device.deliver(large, LARGE)
        device.send(reply={"id": failed, "error": {"code": 2, "reason": "r"}})
        device.deliver(question, SMALL)
        fleet.pull(small, large, failed, question)
        fleet.grid.give_up([silent])
        device.wait_for("cancel", id=silent)
        eventually(lambda: len(fleet.service._streams) == 1, "the old connection is gone")
        if round_ == 2:
            before = left()
    eventually(lambda: all(now <= then for now, then in zip(left(), before, strict=True)), "nothing has grown")
    assert len({*ids}) == len(ids)
    assert fleet.in_loop(fleet.is_clean)
    assert (fleet.grid._done, fleet.service.contents._uses, [*fleet.service_folder.glob("*.content")]) == ({}, {}, [])


def test_who_is_there(fleet, monkeypatch):
    monkeypatch.setattr(devices, "BACK_SECONDS", SECONDS)
    lost, gone = fleet.welcome(), fleet.welcome()
    assert {*fleet.grid.get_node_ids()} == {lost.node, gone.node}
    gone.close()
    eventually(lambda: [*fleet.grid.get_node_ids()] == [lost.node], "who said goodbye is not there")
    lost.close(goodbye=False)
    eventually(lambda: fleet.known(lost).stream is None, "the loss is seen")
    assert [*fleet.grid.get_node_ids()] == [lost.node]  # it may be back at once
    identifier = fleet.push(lost)
    lost.connect()
    assert lost.wait_for("task").id == identifier
    lost.close(goodbye=False)
    eventually(lambda: fleet.known(lost).stream is None, "the loss is seen")
    monkeypatch.setattr(devices, "BACK_SECONDS", 0.0)
    assert [*fleet.grid.get_node_ids()] == []
    assert fleet.push(lost) == fleet.push(gone) == ""


def test_by_a_clock_that_was_set_back_nobody_is_there_for_longer():
    lost = devices.Device(1, None, seen=1000.0)
    assert [lost.is_there(lambda now=now: now) for now in (1000.0, 1000.0 + devices.BACK_SECONDS, 400.0)] == [
        True,
        False,
        False,
    ]


def test_a_device_that_does_not_work_now_says_when_it_is_to_be_asked_again(fleet):
    device = fleet.welcome()
    for seconds, said in (
        (90.4, "90 its owner rests"),
        (float("nan"), "0 its owner rests"),
        (1e300, "0 its owner rests"),
    ):
        identifier = fleet.push(device)
        device.send(not_now={"id": identifier, "reason": "its owner rests", "seconds": seconds})
        (reply,) = fleet.pull(identifier)
        assert (reply.error.code, reply.error.reason) == (NOT_NOW_ERROR, said)


def test_a_notice_reaches_its_device_and_has_no_reply(fleet):
    device = fleet.welcome()
    text = RecordDict({protocol.CONFIG: ConfigRecord({protocol.TEXT: "hello"})})
    assert fleet.push(device, text, kind=protocol.NOTICE) == ""
    assert device.wait_for("notice").text == "hello"


def test_who_waits_is_woken_by_a_reply(fleet):
    device = fleet.welcome()
    identifier = fleet.push(device)
    woken = threading.Event()

    def wait():
        fleet.grid.wait(3600.0)
        woken.set()

    threading.Thread(target=wait, daemon=True).start()
    device.deliver(identifier, SMALL)
    assert woken.wait(60)


def test_a_large_content_is_kept_once_for_all_devices_and_goes_when_nobody_needs_it(fleet):
    all_ = [fleet.welcome() for _ in range(3)]
    records = content(INLINE_BYTES + 1)
    tasks = [fleet.push(device, records) for device in all_]
    kept = [*fleet.service_folder.glob("*.content")]
    assert len(kept) == 1
    for device, identifier in zip(all_[:2], tasks, strict=False):
        device.deliver(identifier, SMALL)
    fleet.pull(*tasks[:2])
    assert kept[0].exists()
    fleet.grid.give_up(tasks[2:])
    all_[2].wait_for("cancel")
    assert not kept[0].exists()
    assert not fleet.service.contents._uses


def test_send_and_receive_has_what_comes_until_its_time_is_over(fleet):
    device, silent = fleet.welcome(), fleet.welcome()

    def handler(message):
        return Message(RecordDict({"c": ConfigRecord({"x": 1})}), reply_to=message)

    def message(node):
        return Message(RecordDict(), dst_node_id=node, message_type="train", ttl=3600.0)

    with answering(device, handler):
        (reply,) = fleet.grid.send_and_receive([message(device.node)])
        assert reply.content["c"]["x"] == 1
        assert fleet.grid.send_and_receive([message(silent.node)], timeout=0.0) == []
