"""Replies as they arrive, against Flower's own state and Runtime API functions, in memory."""

import pytest
from flwr.app import Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.corestate import in_memory_corestate
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.superlink.servicer.runtime import runtime_handlers

from experiments.simulation.inline_grid import InlineGrid
from server.superlink import grid
from server.superlink.grid import ArrivingGrid, as_they_arrive
from server.superlink.link_state import NoRoom
from strategies.base.exchange import Patience, exchange
from tests.helpers.superlink_in_memory import Link

TTL = 3600.0


@pytest.fixture
def link(monkeypatch, layout):
    monkeypatch.setattr(grid, "SOON", 0.05)
    return Link(layout)


def push(link, *nodes):
    messages = [Message(RecordDict(), dst_node_id=node, message_type="train", ttl=TTL) for node in nodes]
    link.grid.push_messages(messages)
    return [m.metadata.message_id for m in messages]


def nodes_of(replies):
    return {reply.metadata.src_node_id for reply in replies}


def test_a_reply_that_is_never_whole_holds_nobody_and_is_given_up_at_the_deadline(link, monkeypatch):
    dead, one, two = link.node(), link.node(), link.node()
    push_messages = link.grid.push_messages

    def answered(messages):
        identifiers = push_messages(messages)
        link.announce(dead)(1)
        link.announce(one)()
        link.announce(two)()
        return identifiers

    monkeypatch.setattr(link.grid, "push_messages", answered)
    patience = Patience(timeout=TTL, straggler_factor=2, straggler_grace=0.3)
    messages = [Message(RecordDict(), dst_node_id=n, message_type="train", ttl=TTL) for n in (dead, one, two)]
    replies, silent = exchange(link.grid, messages, patience)
    assert nodes_of(replies) == {one, two}
    assert list(silent) == [dead]
    assert silent[dead].startswith("No reply within ")  # twice the time that the half took


def test_the_rest_of_a_reply_may_come_later_and_no_part_is_taken_twice(link):
    node = link.node()
    identifiers = push(link, node)
    instruction = len(link.state.object_store)
    upload = link.announce(node)
    upload(1)
    assert link.grid.pull_messages(identifiers) == []
    upload()
    (reply,) = link.grid.pull_messages(identifiers)
    assert reply.content["config"]["node"] == node
    assert reply.metadata.reply_to_message_id == identifiers[0]
    assert link.grid.announced == {}
    assert len(link.pulled) == len(set(link.pulled)) > 1
    assert len(link.state.object_store) == instruction  # the reply is gone from there


def test_what_comes_a_moment_after_its_announcement_is_waited_for(link, monkeypatch):
    monkeypatch.setattr(grid, "SOON", 60.0)
    node = link.node()
    identifiers = push(link, node)
    upload = link.announce(node)
    monkeypatch.setattr(grid.time, "sleep", lambda seconds: upload(1))
    assert nodes_of(link.grid.pull_messages(identifiers)) == {node}


def test_what_superlink_has_given_up_is_an_error_in_the_nodes_place(link, monkeypatch):
    node = link.node()
    identifiers = push(link, node)
    monkeypatch.setattr(in_memory_corestate, "OBJECT_PUSH_SESSION_TTL_SECONDS", -1)
    link.announce(node)
    (reply,) = link.grid.pull_messages(identifiers)
    assert reply.has_error()
    assert reply.metadata.reply_to_message_id == identifiers[0]
    assert reply.metadata.src_node_id == SUPERLINK_NODE_ID
    assert link.grid.announced == {}


def test_what_nobody_can_wait_for_any_more_is_forgotten_here_and_there(link, monkeypatch):
    node = link.node()
    identifiers = push(link, node)
    link.announce(node)(1)
    assert link.grid.pull_messages(identifiers) == []
    stored = len(link.state.object_store)
    now = grid.time.time()
    monkeypatch.setattr(grid.time, "time", lambda: now + TTL + 1)
    assert link.grid.pull_messages([]) == []
    assert link.grid.announced == {}
    assert len(link.state.object_store) < stored


def test_a_part_that_superlink_did_not_take_is_pushed_again(link, monkeypatch):
    node = link.node()
    put, tried = link.state.object_store.put, []

    def locked_at_first(identifier, content):
        tried.append(identifier)
        if len(tried) < 3:
            raise OSError("database is locked")
        put(identifier, content)

    monkeypatch.setattr(link.state.object_store, "put", locked_at_first)
    monkeypatch.setattr(grid.time, "sleep", lambda seconds: None)
    identifiers = push(link, node)
    link.announce(node)()
    assert nodes_of(link.grid.pull_messages(identifiers)) == {node}


def test_a_part_whose_first_answer_was_lost_is_there(link, monkeypatch):
    def twice(request, state, task):
        push_object(request, state, task)
        return push_object(request, state, task)

    push_object = runtime_handlers.push_object
    monkeypatch.setattr(runtime_handlers, "push_object", twice)
    node = link.node()
    identifiers = push(link, node)
    link.announce(node)()
    assert nodes_of(link.grid.pull_messages(identifiers)) == {node}


def test_a_message_of_which_superlink_never_takes_a_part_is_not_delivered(link, monkeypatch):
    pauses = []
    monkeypatch.setattr(grid.time, "sleep", pauses.append)
    first, second = link.node(), link.node()
    whole, partly = (Message(RecordDict(), dst_node_id=node, message_type="train", ttl=TTL) for node in (first, second))
    # Parts are pushed side by side, and no more of them once one was refused: so the whole message comes first.
    link.grid.push_messages([whole])
    store = link.state.store_object
    refused = {part for part in get_all_nested_objects(partly) if part != whole.content.object_id}
    monkeypatch.setattr(link.state, "store_object", lambda *given: given[2] not in refused and store(*given))
    assert link.grid.push_messages([whole, partly]) == [whole.metadata.message_id, ""]
    assert set(grid.PAUSES) <= set(pauses)
    patience = Patience(timeout=TTL, straggler_factor=2, straggler_grace=0.3)
    again = Message(RecordDict(), dst_node_id=second, message_type="train", ttl=TTL)
    monkeypatch.setattr(link.state, "store_object", lambda *_: False)
    assert exchange(link.grid, [again], patience) == (
        [],
        {second: "The message could not be delivered: SuperLink did not take all of it."},
    )


def test_where_a_message_has_no_room_that_is_what_the_record_says(link, monkeypatch):
    pauses = []
    monkeypatch.setattr(grid.time, "sleep", pauses.append)
    node = link.node()
    message = Message(RecordDict(), dst_node_id=node, message_type="train", ttl=TTL)

    def full(*_):
        raise NoRoom(507)

    store = link.state.store_object
    monkeypatch.setattr(link.state, "store_object", full)
    assert exchange(link.grid, [message], Patience(timeout=TTL)) == (
        [],
        {node: "The message could not be delivered: the server's memory for messages is full."},
    )
    assert set(grid.PAUSES) <= set(pauses)
    monkeypatch.setattr(link.state, "store_object", store)
    gone = Message(RecordDict(), dst_node_id=12345, message_type="train", ttl=TTL)
    assert exchange(link.grid, [gone], Patience(timeout=TTL)) == (
        [],
        {12345: "The message could not be delivered: the node is not connected."},
    )


def test_only_the_grid_of_a_real_run_is_changed(link, layout):
    inline = InlineGrid({})
    assert as_they_arrive(inline, layout) is inline
    assert isinstance(link.grid, ArrivingGrid)
