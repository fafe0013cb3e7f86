"""SuperLink's state: what it keeps in its database, and messages and objects in memory."""

import math
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
from fastapi import HTTPException
from flwr.common.constant import NOOP_FLWR_AID, ErrorCode, Status, SubStatus
from flwr.server.superlink.linkstate import in_memory_linkstate, sql_linkstate
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.corestate import in_memory_corestate, sql_corestate
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_object_tree,
    iterate_object_tree,
)
from sqlalchemy import event

from common import protocol
from server.fleet.superlink_db import connections
from server.superlink import durable_state, link_state
from tests.helpers.superlink_in_memory import answer, push, reply_of
from tests.helpers.waiting_for import eventually


def errors(link, identifiers):
    """The codes of what the server gets for its messages, by message."""
    found = link.state.get_message_res(set(identifiers), link.run_id)
    return {one.metadata.reply_to_message_id: one.error.code if one.has_error() else None for one in found}


def test_a_message_is_found_once_and_by_its_node_alone(link):
    first, second = link.node(), link.node()
    (identifier,) = push(link, first)
    assert link.state.get_message_ins(second, 1) == []
    assert [one.metadata.message_id for one in link.state.get_message_ins(first, 1)] == [identifier]
    link.state.object_store.delete(identifier)  # the node says that it has it
    assert link.state.get_message_ins(first, 1) == []


def test_what_a_node_does_not_say_that_it_has_is_given_again_until_it_has_answered(link):
    node = link.node()
    push(link, node)
    (message,) = link.state.get_message_ins(node, 1)
    assert link.state.get_message_ins(node, 1) == [message]
    answer(link, message, node)
    assert link.state.get_message_ins(node, 1) == []
    (identifier,) = push(link, node, round=2)
    assert link.state.get_message_ins(node, 1)[0].metadata.message_id == identifier
    link.state.delete_messages({identifier})
    assert link.state.get_message_ins(node, 1) == []
    assert link.state._given == {}


def test_what_was_lost_is_given_again_though_a_notice_was_given_since(link):
    node = link.node()
    identifiers = [push(link, node, kind=kind)[0] for kind in ("train", protocol.NOTICE)]
    assert [link.state.get_message_ins(node, 1)[0].metadata.message_id for _ in range(2)] == identifiers
    link.state.object_store.delete(identifiers[1])  # that one has come
    assert [link.state.get_message_ins(node, 1)[0].metadata.message_id for _ in range(2)] == [identifiers[0]] * 2
    link.state.object_store.delete(identifiers[0])
    assert link.state.get_message_ins(node, 1) == []
    assert link.state._given == {}


def test_messages_come_in_their_order(link):
    node = link.node()
    identifiers = [push(link, node, round=number)[0] for number in range(3)]
    assert [link.state.get_message_ins(node, 1)[0].metadata.message_id for _ in range(3)] == identifiers


def test_a_message_is_not_given_until_all_of_it_is_there(link):
    node, upload = link.node(), link.PushObject
    seen = []
    link.PushObject = lambda request: seen.append(link.state.get_message_ins(node, 1)) or upload(request)
    push(link, node)
    assert len(seen) > 1
    assert not any(seen)
    assert link.state.get_message_ins(node, 1)


def test_the_gate_is_told_of_each_node_once_its_message_is_whole(link):
    nodes, upload, early = [link.node(), link.node()], link.PushObject, []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as gate:
        gate.bind("\0test-link-state-looks")
        gate.settimeout(60)
        link.state.tell = link_state.Teller("test-link-state-looks")

        def uploads(request):
            early.extend(node for node in nodes if not link.state._lacking)
            return upload(request)

        link.PushObject = uploads
        push(link, *nodes)
        assert {int.from_bytes(gate.recv(100), "big") for _ in nodes} == set(nodes)
        assert not early
        gate.setblocking(False)
        with pytest.raises(BlockingIOError):
            gate.recv(100)
    link.PushObject = upload
    push(link, *nodes, round=2)  # nobody listens


def test_a_reply_is_found_by_its_message_once_and_then_nothing_is_left(link):
    node, silent = link.node(), link.node()
    identifiers = push(link, node, silent)
    link.announce(node)()
    (reply,) = link.grid.pull_messages(identifiers)
    assert reply.metadata.reply_to_message_id == identifiers[0]
    assert link.grid.pull_messages(identifiers[1:]) == []
    link.state.delete_messages({identifiers[1]})
    assert (len(link.state.object_store), link.state.object_store.held_bytes) == (0, 0)
    assert (link.state.num_message_ins(), link.state.num_message_res()) == (0, 0)
    assert [link.state._inboxes, link.state._lacking, link.state._lacked] == [{}, {}, {}]


def test_a_second_reply_and_another_nodes_are_not_taken(link):
    node, other = link.node(), link.node()
    push(link, node)
    (message,) = link.state.get_message_ins(node, 1)
    assert link.state.store_message_res(reply_of(message, other)) is None
    assert link.state.store_message_res(reply_of(message, node))
    assert link.state.store_message_res(reply_of(message, node, round=2)) is None


def later(monkeypatch, seconds):
    """Flower's clock in the state, so much later: a number, or what says it when it is looked at."""
    ahead = seconds if callable(seconds) else lambda: seconds
    for module in (in_memory_linkstate, in_memory_corestate, sql_linkstate, sql_corestate, link_state, durable_state):
        monkeypatch.setattr(module, "now", lambda: now() + timedelta(seconds=ahead()))


def test_what_has_expired_is_an_error_and_what_it_took_is_free(link, monkeypatch):
    node = link.node()
    (identifier,) = push(link, node, ttl=10.0)
    link.announce(node)()
    later(monkeypatch, 11)
    assert errors(link, [identifier]) == {identifier: ErrorCode.MESSAGE_UNAVAILABLE}
    link.state._sweep()
    assert link.state.num_message_res() == 0
    assert len(link.state.object_store) == 1  # the error itself


def test_a_message_that_expires_is_not_given(link, monkeypatch):
    node = link.node()
    push(link, node, ttl=10.0)
    later(monkeypatch, 11)
    assert link.state.get_message_ins(node, 1) == []
    assert link.state.object_store.held_bytes == 0


def test_an_upload_that_was_given_up_is_forgotten(link, monkeypatch):
    nodes = [link.node(), link.node()]
    identifiers = push(link, *nodes)
    link.announce(nodes[0])  # and no part of it comes
    link.announce(nodes[1])()
    link.state.start_session(link.run_id)
    later(monkeypatch, 200)
    link.state._sweep()
    assert link.state._object_push_sessions == {}
    assert [reply.metadata.reply_to_message_id for reply in link.grid.pull_messages(identifiers)] == identifiers[1:]


def test_a_node_that_is_gone_or_removed_is_an_error(link, monkeypatch):
    quiet, removed = link.node(), link.node()
    identifiers = push(link, quiet, removed)
    link.state.delete_node("", removed)
    assert errors(link, identifiers) == {identifiers[1]: ErrorCode.NODE_UNAVAILABLE}
    later(monkeypatch, 3000)
    assert errors(link, identifiers[:1]) == {identifiers[0]: ErrorCode.NODE_UNAVAILABLE}
    assert link.state.get_nodes(link.run_id) == set()


def test_with_a_run_its_messages_go(link):
    node = link.node()
    push(link, node)
    assert link.state.finish_task(link.task_id, SubStatus.COMPLETED, "")
    assert link.state.get_run_status({link.run_id})[link.run_id].status == Status.FINISHED
    assert (link.state.num_message_ins(), link.state.object_store.held_bytes) == (0, 0)
    assert link.state.get_task_by_token(link.token) is None


def test_a_serverapp_that_takes_long_to_start_is_not_turned_away_for_ever(link, monkeypatch):
    link.state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
    (task,) = link.state.get_tasks(statuses=[Status.PENDING])

    def started(begun, seconds):
        """Whether a ServerApp that took so long to start, from `begun` on, may run."""
        later(monkeypatch, begun)
        token = link.state.claim_task(task.task_id)
        later(monkeypatch, begun + seconds)
        link.state._next_clean_up = 0.0
        valid = link.state.activate_task(task.task_id)
        assert valid == (link.state.get_task_by_token(token) is not None)
        return valid

    assert not started(0, 45)
    assert started(45, 45)


def test_nodes_keys_and_runs_outlive_a_restart_and_messages_do_not(start):
    link = start()
    node = link.state.create_node(NOOP_FLWR_AID, "", b"key", 0)
    removed = link.state.create_node(NOOP_FLWR_AID, "", b"removed", 0)
    assert link.state.activate_node(node, 30.0)
    link.state.delete_node(NOOP_FLWR_AID, removed)
    (identifier,) = push(link, node)
    link.state.store_traffic(link.run_id, bytes_sent=7, bytes_recv=5)
    link.state.get_run_info(run_ids=[link.run_id])  # somebody asks, so that it is written down

    again = start()
    assert again.run_id != link.run_id
    assert again.state.get_node_id_by_public_key(b"key") == node
    assert again.state.get_node_id_by_public_key(b"removed") is None
    assert not again.state.activate_node(removed, 30.0)
    with pytest.raises(ValueError, match="in use"):
        again.state.create_node(NOOP_FLWR_AID, "", b"removed", 0)
    assert again.state.get_nodes(again.run_id) == {node}
    (run,) = again.state.get_run_info(run_ids=[link.run_id])
    assert (run.status.status, run.bytes_sent, run.bytes_recv) == (Status.RUNNING, 7, 5)
    assert again.state.get_task_by_token(link.token).run_id == link.run_id
    assert again.state.get_message_ins(node, 1) == []
    found = again.state.get_message_res({identifier}, link.run_id)
    assert [one.error.code for one in found] == [ErrorCode.MESSAGE_UNAVAILABLE]


def test_a_reply_to_a_message_from_before_a_restart_is_not_taken_and_harms_nobody(start):
    link = start()
    node = link.node()
    push(link, node)
    (message,) = link.state.get_message_ins(node, 1)
    again = start()
    reply = reply_of(message, node)
    session = again.state.start_session(link.run_id)
    assert again.state.store_message_and_object_tree(reply, get_object_tree(reply), session) == (False, [])
    assert len(again.state.object_store) == 0


def test_what_others_read_of_nodes_is_in_the_database_at_once(link, tmp_path, monkeypatch):
    node = link.state.create_node(NOOP_FLWR_AID, "", b"key", 0)
    read = lambda: connections(tmp_path / "state.db")[node]  # noqa: E731
    assert (read().status, read().key) == ("registered", b"key")
    link.state.activate_node(node, 30.0)
    assert read().online(time.time())
    link.state.acknowledge_node_heartbeat(node, 600.0)
    assert read().patience == 1200.0
    later(monkeypatch, 3000)
    assert link.state.get_nodes(link.run_id) == set()
    assert read().status == "offline"
    assert link.state.acknowledge_node_heartbeat(node, 30.0)
    assert (read().status, link.state.get_nodes(link.run_id)) == ("online", {node})
    link.state.delete_node(NOOP_FLWR_AID, node)
    assert not read().registered


def test_where_the_memory_is_full_devices_try_again_and_the_server_goes_on(link):
    said = []
    link.state.say = said.append
    nodes = [link.node(), link.node()]
    identifiers = push(link, *nodes)
    messages = [link.state.get_message_ins(node, 1)[0] for node in nodes]
    answer(link, messages[0], nodes[0])
    link.state.most_bytes = 2 * link.state.object_store.held_bytes - 2
    for _ in range(2):
        with pytest.raises(HTTPException) as refused:
            answer(link, messages[1], nodes[1])
        assert refused.value.status_code == 503
    assert len(said) == 1
    assert "Messages take" in said[0]
    assert len(link.grid.pull_messages(identifiers)) == 1
    answer(link, messages[1], nodes[1])
    assert len(link.grid.pull_messages(identifiers[1:])) == 1


def test_an_object_for_which_there_is_no_room_is_not_taken_and_can_come_later(link):
    said = []
    link.state.say = said.append
    node = link.node()
    identifiers = push(link, node)
    upload, room = link.announce(node), link.state.most_bytes
    link.state.most_bytes = link.state.object_store.held_bytes
    with pytest.raises(link_state.NoRoom):
        upload()
    assert "Messages take" in said[0]
    link.state.most_bytes = room
    upload()
    assert len(link.grid.pull_messages(identifiers)) == 1


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 1e308])
def test_seconds_that_cannot_be_count_for_nothing(link, seconds):
    for given in (2.0, seconds, 3.0):
        link.state.add_clientapp_runtime(link.run_id, given)
    (run,) = link.state.get_run_info(run_ids=[link.run_id])
    assert run.clientapp_runtime == 5.0


def test_runs_and_tokens_are_asked_of_the_database_once_a_second(link, monkeypatch):
    statements = []
    monkeypatch.setattr(durable_state, "FRESH_SECONDS", 3600.0)
    link.state._running, link.state._tasks = {}, {}
    event.listen(link.state._engine, "before_cursor_execute", lambda *told: statements.append(told[2]))
    node = link.node()
    for number in range(3):
        statements.clear()
        identifiers = push(link, node, round=number)
        link.announce(node)()
        assert len(link.grid.pull_messages(identifiers)) == 1
        link.state.get_task_by_token(link.token)
        link.state.get_run_status({link.run_id})
    assert statements == []


def test_nothing_is_written_to_the_database_while_others_wait(link, monkeypatch):
    held = []
    monkeypatch.setattr(
        sql_linkstate.SqlLinkState, "_cleanup_expired_task_tokens", lambda state: held.append(state.lock._is_owned())
    )
    node = link.node()

    def anew():
        link.state._running, link.state._next_clean_up = {}, 0.0

    anew()
    push(link, node)
    (message,) = link.state.get_message_ins(node, 1)
    anew()
    answer(link, message, node)
    anew()
    link.state._sweep()
    assert held
    assert not any(held)


def test_many_devices_at_once_under_one_server(link):
    """Threads, as SuperLink has them: nothing is lost, nothing is given twice, nothing stays, nothing hangs."""
    devices, rounds = 12, 6
    nodes = [link.node() for _ in range(devices)]
    got = {node: [] for node in nodes}
    over = threading.Event()

    def device(node):
        while not over.is_set():
            link.state.acknowledge_node_heartbeat(node, 1000)
            for message in link.state.get_message_ins(node, 1):
                got[node].append(message.metadata.message_id)
                for part in tree_of(link, message):
                    assert link.state.get_object(link.run_id, part)
                link.state.object_store.delete(message.metadata.message_id)
                answer(link, message, node)
            time.sleep(0.001)

    with ThreadPoolExecutor(devices) as pool:
        running = [pool.submit(device, node) for node in nodes]
        try:
            for number in range(rounds):
                identifiers = set(push(link, *nodes, round=number))
                waiting = set(identifiers)
                while waiting:
                    link.state.get_nodes(link.run_id)
                    for reply in link.grid.pull_messages(waiting):
                        assert not reply.has_error()
                        waiting.discard(reply.metadata.reply_to_message_id)
                    assert not any(one.done() for one in running), [one.exception() for one in running if one.done()]
        finally:
            over.set()
        for one in running:
            one.result()
    assert [len(set(found)) for found in got.values()] == [rounds] * devices == [len(found) for found in got.values()]
    assert (len(link.state.object_store), link.state.object_store.held_bytes) == (0, 0)


def tree_of(link, message):
    tree = link.state.object_store.get_object_tree(message.metadata.message_id)
    return [part.object_id for part in iterate_object_tree(tree)]


class Clock:
    """The clock of the machine, as Flower and the state read it; nothing ticks but what a test lets pass."""

    def __init__(self, monkeypatch):
        self.ahead = 0.0
        parts = {"time": self.time, "monotonic": time.monotonic, "sleep": time.sleep}
        monkeypatch.setattr(durable_state, "time", SimpleNamespace(**parts))
        later(monkeypatch, lambda: self.ahead)

    def time(self):
        return time.time() + self.ahead


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(durable_state, "_watch_clock", lambda state: None)
    return Clock(monkeypatch)


def test_a_server_that_slept_has_its_run_and_its_devices_when_it_wakes(clock, start):
    link = start()
    node, gone = link.state.create_node("", "", b"1", 0), link.state.create_node("", "", b"2", 0)
    link.state.acknowledge_node_heartbeat(node, 30)
    link.state.acknowledge_node_heartbeat(gone, 30)
    identifiers = push(link, node)
    clock.ahead += 90
    # What it did just then, or another thread does first: nobody is taken for gone.
    assert link.state.get_nodes(link.run_id) == {node, gone}
    link.state._next_clean_up = 0.0
    link.state._cleanup_expired_task_tokens()
    # A call of the ServerApp, of which its token is looked at first.
    assert link.state.get_task_by_token(link.token).task_id == link.task_id
    assert link.state.acknowledge_task_heartbeat(link.task_id)
    assert link.state.get_run_status({link.run_id})[link.run_id].status == Status.RUNNING
    assert errors(link, identifiers) == {}
    known = sql_linkstate.SqlLinkState.get_node_info(link.state, node_ids=[node, gone])
    assert [one.online_until > clock.time() for one in known] == [True, True]
    # From now on who does not say that it is there is gone as ever.
    link.state.acknowledge_node_heartbeat(node, 30)
    for _ in range(8):
        clock.ahead += 9
        link.state.make_up_for_gap()
        link.state.acknowledge_node_heartbeat(node, 30)
    assert link.state.get_nodes(link.run_id) == {node}
    link.state._next_clean_up = 0.0
    link.state._tasks = {}
    assert link.state.get_task_by_token(link.token) is None  # no heartbeat of it for 72 s


def test_a_clock_that_is_set_back_keeps_nobody_who_is_gone(clock, start):
    link = start()
    node = link.state.create_node("", "", b"1", 0)
    link.state.acknowledge_node_heartbeat(node, 30)
    clock.ahead -= 7200
    link.state.make_up_for_gap()
    assert link.state.get_nodes(link.run_id) == {node}
    for _ in range(7):
        clock.ahead += 9
        link.state.make_up_for_gap()
    assert link.state.get_nodes(link.run_id) == set()


def test_what_stood_still_is_made_up_for_without_anybody_who_asks(start, monkeypatch):
    monkeypatch.setattr(durable_state, "CLOCK_SECONDS", 0.01)
    link = start()
    link.state._clock -= 3600
    eventually(lambda: link.state._clock > time.time() - 60, "the clock was looked at")
    assert link.state._gap() == 0.0


def test_a_gap_that_cannot_be_written_is_made_up_for_later(clock, start, monkeypatch):
    def locked():
        raise OSError("locked")

    link = start()
    node = link.state.create_node("", "", b"1", 0)
    link.state.acknowledge_node_heartbeat(node, 30)
    clock.ahead += 7200
    with monkeypatch.context() as broken:
        broken.setattr(link.state, "session", locked)
        with pytest.raises(OSError, match="locked"):
            link.state.make_up_for_gap()
    assert link.state.get_nodes(link.run_id) == {node}
    link.state.make_up_for_gap()
    assert link.state.get_nodes(link.run_id) == {node}
    assert link.state.nodes[node].online_until > clock.time()
