"""What devices announce to SuperLink's state: it belongs to their replies, goes with them, and harms nobody else's."""

import threading

import pytest
from flwr.app import ConfigRecord
from flwr.common.constant import SubStatus
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.object_store import NoObjectInStoreError, in_memory_object_store

from server.superlink.link_state import NoRoom
from tests.helpers.superlink_in_memory import answer, push, reply_of


def test_objects_that_messages_piled_up_are_no_message(link):
    store = link.state.object_store
    for number in range(3000):
        below = [ObjectTree(object_id=f"{number:064x}")] if number else []
        store.preregister(link.run_id, ObjectTree(object_id=f"{number + 1:064x}", children=below))
    with pytest.raises(NoObjectInStoreError):
        store.get_object_tree(f"{3000:064x}")
    assert link.state.finish_task(link.task_id, SubStatus.COMPLETED, "")
    assert (len(store), store.held_bytes) == (0, 0)


def test_objects_that_are_each_twice_below_the_next_are_no_message(link):
    store, layers = link.state.object_store, 18
    for number in range(layers):
        store.preregister(link.run_id, tree(number + 1, tree(number), tree(number)))
    with pytest.raises(NoObjectInStoreError):
        store.get_object_tree(f"{layers:064x}")


def tree(number, *children):
    return ObjectTree(object_id=f"{number:064x}", children=children)


def announce(link, node, message, object_tree):
    """Whether a device's reply of these objects is taken."""
    reply = reply_of(message, node)
    reply.metadata.__dict__["_message_id"] = object_tree.object_id
    session = link.state.start_session(link.run_id)
    return link.state.store_message_and_object_tree(reply, object_tree, session)[0]


@pytest.mark.parametrize(
    "then",
    [
        tree(1, tree(2), tree(3, tree(4)), ObjectTree(object_id="no digest")),
        tree(1, tree(5, tree(6)), tree(7)),  # itself, with other children
        tree(1, tree(2, tree(8))),  # a part, with other children
        tree(1, tree(2), tree(9), tree(9, tree(10))),  # a part twice, and not the same
        tree(1, tree(11, tree(1)), tree(2)),  # below itself
        tree(12, tree(1, tree(2))),  # below another
    ],
)
def test_all_that_a_device_announces_goes_with_its_reply(link, then):
    node = link.node()
    (identifier,) = push(link, node)
    (message,) = link.state.get_message_ins(node, 1)
    announce(link, node, message, then)
    announce(link, node, message, tree(1, tree(2)))
    announce(link, node, message, then)
    link.state.delete_messages({identifier})
    assert (len(link.state.object_store), link.state.object_store.held_bytes) == (0, 0)


def test_a_reply_of_objects_too_deep_is_not_taken_and_nothing_stays_of_it(link):
    node = link.node()
    push(link, node)
    (message,) = link.state.get_message_ins(node, 1)
    held = len(link.state.object_store)
    deep = tree(1)
    for number in range(2, 60):
        deep = tree(number, deep)
    assert not announce(link, node, message, deep)
    assert (len(link.state.object_store), link.state.num_message_res()) == (held, 0)
    answer(link, message, node)


@pytest.mark.parametrize("known", [tree(2), tree(1, tree(2)), tree(1, tree(2, tree(3)))])
def test_what_a_device_announces_of_anothers_few_numbers_turns_nobody_away(link, known):
    hostile, honest = link.node(), link.node()
    push(link, hostile, honest)
    ((first,), (second,)) = (link.state.get_message_ins(node, 1) for node in (hostile, honest))
    assert announce(link, hostile, first, known)
    assert announce(link, honest, second, tree(4, tree(2)))
    assert link.state.object_store.get_object_tree(f"{4:064x}") == tree(4, tree(2))


def test_a_message_that_is_not_taken_changes_nothing_and_looks_through_nothing(link):
    class Counted(dict):
        looks = 0

        def items(self):
            self.looks += 1
            return super().items()

        def values(self):
            self.looks += 1
            return super().values()

    node, other = link.node(), link.node()
    push(link, node, other)
    ((message,), (another,)) = (link.state.get_message_ins(each, 1) for each in (node, other))
    store = link.state.object_store
    first = tree(1, *(tree(number, tree(number + 1)) for number in range(2, 60, 2)))
    assert announce(link, node, message, first)
    store.store = Counted(store.store)
    assert not announce(link, node, another, tree(100, *(tree(number) for number in range(2, 60, 2))))
    assert store.get_object_tree(f"{1:064x}") == first
    assert store.store.looks == 0


def test_no_object_is_deleted_while_a_message_is_announced_that_has_it(link, monkeypatch):
    store = link.state.object_store
    store.preregister(link.run_id, tree(1, tree(2)))
    is_valid = in_memory_object_store.is_valid_sha256_hash

    def confirm():
        if store.lock_store.acquire(blocking=False):  # where somebody else could
            store.delete(f"{1:064x}")
            store.lock_store.release()

    def meanwhile(identifier):
        if identifier == f"{3:064x}":  # that of what it has was looked at
            thread = threading.Thread(target=confirm)
            thread.start()
            thread.join()
        return is_valid(identifier)

    monkeypatch.setattr(in_memory_object_store, "is_valid_sha256_hash", meanwhile)
    store.preregister(link.run_id, tree(3, tree(2)))
    confirm()
    assert store.get_object_tree(f"{3:064x}") == tree(3, tree(2))


def test_what_goes_wrong_in_sweeping_ends_nothing(link, monkeypatch):
    said = []
    link.state.say = said.append
    monkeypatch.setattr(link.state, "_check_stored_messages", lambda *_: 1 / 0)
    assert link.state.finish_task(link.task_id, SubStatus.COMPLETED, "")
    assert "ZeroDivisionError" in said[0]


def test_an_upload_that_a_device_does_not_finish_leaves_room_for_the_server(link):
    node, other = link.node(), link.node()
    push(link, node)
    (message,) = link.state.get_message_ins(node, 1)
    records = [ConfigRecord({"part": bytes([number]) * 8000}) for number in range(20)]
    chunks = {record.object_id: record.deflate() for record in records}
    link.state.most_bytes = link.state.object_store.held_bytes + 100_000
    session = link.state.start_session(link.run_id)
    reply = reply_of(message, node)
    reply.metadata.__dict__["_message_id"] = f"{1:064x}"
    below = [ObjectTree(object_id=each) for each in chunks]
    assert link.state.store_message_and_object_tree(reply, tree(1, *below), session)[0]

    def upload():
        return [link.state.store_object(link.run_id, session, each, content) for each, content in chunks.items()]

    with pytest.raises(NoRoom):
        upload()
    push(link, other, secret=b"x" * 15_000)
    assert link.state.get_message_ins(other, 1)
