"""What one device may have on its way to the server: as much as replies to the run take, whatever it announces."""

import asyncio

import httpx
import pytest
from fastapi import HTTPException
from flwr.app import ConfigRecord
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.runtime_pb2 import PushAppMessagesRequest
from flwr.supercore.constant import TASK_TOKEN_HEADER
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.superlink import main as superlink

from server.superlink.grid import REPLY_BYTES
from server.superlink.link_state import REPLIES
from server.superlink.short_way import ShortWay
from tests.helpers.superlink_in_memory import answer, push, reply_of

PART_BYTES = 100_000


class Upload:
    """A reply to a device's next message, announced with so many parts, which are uploaded one by one.

    Below it are objects that never come, too, so that it is never whole; a server that takes it waits for the first.
    """

    def __init__(self, link, node, parts, number, never=1):
        (message,) = link.state.get_message_ins(node, 1)
        records = [ConfigRecord({"part": bytes([number, part]) * (PART_BYTES // 2)}) for part in range(parts)]
        self.link, self.node = link, node
        self.contents = {record.object_id: record.deflate() for record in records}
        reply = reply_of(message, node)
        reply.metadata.__dict__["_message_id"] = f"{number:064x}"
        tree = ObjectTree(object_id=reply.metadata.message_id)
        tree.children.extend(ObjectTree(object_id=f"{number * 1_000_000 + each:064x}") for each in range(1, never + 1))
        tree.children.extend(ObjectTree(object_id=each) for each in self.contents)
        self.session = link.state.start_session(link.run_id)
        assert link.state.store_message_and_object_tree(reply, tree, self.session)[0]

    def put(self):
        """Upload all; how many bytes the server then holds of the device."""
        for name, content in self.contents.items():
            assert self.link.state.store_object(self.link.run_id, self.session, name, content)
        return self.link.state.objects.brought_by(self.node)


def refused(call, *given):
    with pytest.raises(HTTPException) as error:
        call(*given)
    return error.value.status_code, error.value.detail


@pytest.fixture
def a_reply(link):
    """The most that a reply takes, in bytes."""
    return link.grid.room.all_in_all


def test_one_device_takes_its_part_of_the_room_and_the_others_are_served(link, a_reply):
    said = []
    link.state.say = said.append
    hostile, honest = link.node(), link.node()
    identifiers = push(link, hostile, honest)
    link.state.most_bytes = 10 * a_reply
    upload = Upload(link, hostile, 250, 1)
    for _ in range(2):
        status, why = refused(upload.put)
        assert (status, str(REPLIES * a_reply) in why) == (413, True)
    (message,) = link.state.get_message_ins(honest, 1)
    answer(link, message, honest)
    assert [reply.metadata.src_node_id for reply in link.grid.pull_messages(identifiers)] == [honest]
    assert REPLIES * a_reply - PART_BYTES < link.state.objects.brought_by(hostile) <= REPLIES * a_reply
    assert len(said) == 1
    assert f"Node {hostile} has" in said[0]


def test_what_is_only_announced_counts(link, a_reply):
    hostile = link.node()
    push(link, hostile)
    objects = REPLIES * a_reply // 512 + 1
    assert refused(Upload, link, hostile, 0, 1, objects)[0] == 413
    assert link.state.objects.brought_by(hostile) == 0
    assert link.state._devices == link.state._object_push_sessions == {}


def test_replies_of_this_round_and_the_last_have_room_and_what_was_given_up_makes_it(link, a_reply):
    node = link.node()
    parts = a_reply // PART_BYTES
    held = []
    for number in (1, 2, 3):
        push(link, node, round=number)
        held.append(Upload(link, node, parts - 1, number).put())
    assert held[0] < a_reply
    assert held[1:] == [2 * held[0], held[0]]  # it works on one at a time: both others were given up


def test_what_came_too_late_makes_room_for_the_next_reply(link, a_reply):
    """Of a device that is late in each round: its replies are whole, and nobody asks for them."""
    node, held = link.node(), []
    for number in range(5):
        (identifier,) = push(link, node, round=number)
        (message,) = link.state.get_message_ins(node, 1)
        answer(link, message, node, part=bytes([number]) * (a_reply - PART_BYTES))
        held.append(link.state.objects.brought_by(node) // (a_reply - PART_BYTES))
    assert held == [1, 2, 2, 2, 2]
    (reply,) = link.grid.pull_messages([identifier])
    assert reply.metadata.src_node_id == node
    assert link.state.num_message_res() == 1  # the last before it


def test_what_the_server_has_taken_is_nobodys(link):
    node = link.node()
    for number in range(3):
        (identifier,) = push(link, node, round=number)
        upload = link.announce(node)
        assert link.state.objects.brought_by(node) > 0
        upload()
        assert len(link.grid.pull_messages([identifier])) == 1
        assert link.state.objects.brought_by(node) == 0
    assert not link.state.objects._devices


def test_what_the_server_sends_itself_is_no_devices(link):
    """Such as the one reply to a round, sent to all as the next model."""
    node, other = link.node(), link.node()
    push(link, node)
    upload = link.announce(node)
    upload()
    push(link, other, node=node)
    held = link.state.objects.brought_by(node)
    link.state.delete_messages(link.state.get_message_ids_from_run_id(link.run_id))
    assert 0 == link.state.objects.brought_by(node) < held


def test_a_part_that_comes_once_more_is_taken(link):
    """As a device sends it where the answer was lost."""
    node = link.node()
    push(link, node)
    upload = Upload(link, node, 3, 1)
    assert upload.put() == upload.put()
    (name, _), *_ = upload.contents.items()
    assert not link.state.store_object(link.run_id, upload.session, name, b"something else")


def test_superlink_learns_from_the_server_what_a_reply_takes(link):
    app = superlink.create_app()
    app.state.linkstate_factory = app.state.runtime_state_factory = link.states
    request = PushAppMessagesRequest().SerializeToString()
    told = {"content-type": PROTOBUF_MEDIA_TYPE, REPLY_BYTES: "12345"}

    async def post(**more):
        transport = httpx.ASGITransport(app=ShortWay(app))
        async with httpx.AsyncClient(transport=transport, base_url="http://superlink") as client:
            await client.post("/v1/runtime/push-messages", content=request, headers={**told, **more})
        return link.state._reply_bytes.get(link.run_id)

    assert link.grid.superlink._client.headers[REPLY_BYTES] == str(link.grid.room.all_in_all)
    assert asyncio.run(post(**{TASK_TOKEN_HEADER: "guessed"})) is None
    assert asyncio.run(post(**{TASK_TOKEN_HEADER: link.token})) == 12345
