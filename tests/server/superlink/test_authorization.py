"""What a registered device may do with what is not its own: over gRPC, with Flower's own Fleet API and its database.

The server's side is Flower's grid and its Runtime API functions, in the same process.
"""

import importlib
import math
import time
from types import SimpleNamespace

import grpc
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client.grpc_rere_client.node_auth_client_interceptor import NodeAuthClientInterceptor
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor import NodeAuthServerInterceptor
from flwr.server.superlink.fleet.message_handler import message_handler
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.task_identity import TaskIdentity

from common import protocol
from server.superlink import authorization, fleet_door, grid, object_trees
from tests.helpers.superlink_in_memory import Link
from tests.helpers.wire_device import Reply, WireDevice

SUPERLINK = importlib.import_module("flwr.superlink.cli.flower_superlink")
TTL = 3600.0
NOBODY = "ab" * 32


class Device(WireDevice):
    """A scripted device of a federation without TLS, and what it was given last."""

    def __init__(self, federation, name):
        keys = generate_key_pairs()
        self.public_key = public_key_to_bytes(keys[1])
        federation.link.state.create_node(NOOP_FLWR_AID, "", self.public_key, 0)
        plain = grpc.insecure_channel(federation.server.bound_address)
        self.channel = grpc.intercept_channel(plain, NodeAuthClientInterceptor(*keys))
        self.stub = FleetStub(self.channel)
        self.heartbeat_interval = 600.0
        self.node = Node(node_id=self.activate())
        self.close = plain.close

    def reply(self, instruction, content=None):
        TaskIdentity.node_id = self.node.node_id
        made = Message(content or RecordDict(), reply_to=instruction)
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        return Reply.of(made)

    def given(self):
        """What SuperLink announces to it, of which nothing is pulled."""
        return self.stub.PullMessages(PullMessagesRequest(node=self.node))

    def pulls(self, run, identifier):
        """Whether it gets an object."""
        request = PullObjectRequest(node=self.node, run_id=run, object_id=identifier)
        return self.stub.PullObject(request).object_available

    def confirms(self, run, identifier):
        request = ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=identifier)
        self.stub.ConfirmMessageReceived(request)

    def announces(self, reply, tree):
        """A reply with any tree."""
        reply.announced.metadata.message_id = reply.announced.metadata.message_id or tree.object_id
        request = PushMessagesRequest(node=self.node, messages_list=[reply.announced], message_object_trees=[tree])
        return self.stub.PushMessages(request)


class Federation:
    """A server and two devices, of which one, mallory, is not honest."""

    def __init__(self, layout, database):
        self.link = Link(layout, str(database))
        self.run = self.link.run_id
        self.server = SUPERLINK._run_fleet_api_grpc_rere(
            "127.0.0.1:0",
            self.link.states,
            self.link.states.objectstore_factory,
            True,
            None,
            [NodeAuthServerInterceptor(self.link.states)],
        )
        self.honest, self.mallory = Device(self, "honest"), Device(self, "mallory")

    def push(self, *devices, content=None):
        """The server's messages to these; their ids."""
        messages = [
            Message(content or RecordDict(), dst_node_id=device.node.node_id, message_type="train", ttl=TTL)
            for device in devices
        ]
        self.link.grid.push_messages(messages)
        return [message.metadata.message_id for message in messages]

    def forget_replies(self):
        """Have the server wait no more for replies that are announced and not there."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grid, "time", SimpleNamespace(time=lambda: time.time() + TTL + 1))
            self.link.grid._take([])

    def end(self):
        self.honest.close()
        self.mallory.close()
        self.server.stop(None).wait()


@pytest.fixture
def federation(monkeypatch, layout, tmp_path):
    monkeypatch.setattr(grid, "SOON", 0.05)
    # A run that nobody has started: a started one ends when its ServerApp is not heard of for a minute.
    monkeypatch.setattr(message_handler, "check_abort", lambda *_: None)
    monkeypatch.setattr(SUPERLINK, "generic_create_grpc_server", None)
    fleet_door.install(10_000_000)
    # Undone after the test.
    monkeypatch.setattr(SqlLinkState, "store_message_and_object_tree", SqlLinkState.store_message_and_object_tree)
    object_trees.install()
    made = Federation(layout, tmp_path / "state.db")
    yield made
    made.end()


def refused(call, *arguments):
    """Whether the door refuses a call."""
    try:
        call(*arguments)
    except grpc.RpcError as error:
        return error.code() is grpc.StatusCode.PERMISSION_DENIED
    return False


def taken(federation, identifiers, seconds=60):
    """The server's replies, once all are there."""
    found = []
    for _ in range(20 * seconds):
        found += federation.link.grid.pull_messages(identifiers)
        if len(found) == len(identifiers):
            return found
        time.sleep(0.05)
    raise AssertionError(found)


def test_messages_go_to_and_fro_and_nothing_stays(federation, initial):
    content = RecordDict({protocol.ARRAYS: initial})
    both = (federation.honest, federation.mallory)
    for _ in range(2):  # the same objects once more
        identifiers = federation.push(*both, content=content)
        for device in both:
            device.push(device.reply(device.pull(), content))
        assert not any(reply.has_error() for reply in taken(federation, identifiers))
        assert len(federation.link.state.object_store) == 0


def test_an_announcement_that_is_repeated_is_taken(federation):
    """As gRPC does where the answer was lost."""
    identifiers = federation.push(federation.honest)
    reply = federation.honest.reply(federation.honest.pull())
    federation.honest.announces(reply, reply.top.seal({}))
    federation.honest.push(reply)
    (message,) = taken(federation, identifiers)
    assert not message.has_error()


def test_nobody_replies_as_another(federation):
    _, theirs = federation.push(federation.mallory, federation.honest)
    instruction = federation.mallory.pull()
    reply = federation.mallory.reply(instruction)
    reply.announced.metadata.src_node_id = federation.honest.node.node_id
    reply.announced.metadata.reply_to_message_id = theirs
    was_refused = refused(federation.mallory.push, reply)
    assert federation.link.grid.pull_messages([theirs]) == []
    assert was_refused


def test_nobody_instructs_as_the_server(federation):
    federation.push(federation.mallory)
    reply = federation.mallory.reply(federation.mallory.pull())
    told = reply.announced.metadata
    told.src_node_id, told.dst_node_id = SUPERLINK_NODE_ID, federation.honest.node.node_id
    told.reply_to_message_id = ""
    was_refused = refused(federation.mallory.push, reply)
    assert federation.honest.pull() is None
    assert was_refused


def test_nobody_deletes_what_is_for_another(federation):
    _, theirs = federation.push(federation.mallory, federation.honest)
    was_refused = refused(federation.mallory.confirms, federation.run, theirs)
    assert federation.honest.pull() is not None
    assert was_refused


@pytest.mark.parametrize("as_root", [True, False])
def test_nobody_makes_a_message_for_another_a_part_of_a_reply_with_which_it_goes(federation, as_root):
    mine, theirs = federation.push(federation.mallory, federation.honest)
    instruction = federation.mallory.pull()
    known = ObjectTree(object_id=theirs, children=[ObjectTree(object_id=instruction.content.object_id)])
    tree = known if as_root else ObjectTree(object_id=NOBODY, children=[known])
    federation.mallory.announces(federation.mallory.reply(instruction), tree)
    federation.link.grid.pull_messages([mine])
    federation.forget_replies()
    assert federation.honest.pull() is not None


def test_nobody_gets_what_another_sends(federation):
    federation.push(federation.mallory, federation.honest)
    federation.mallory.pull()
    secret = RecordDict({"config": ConfigRecord({"samples": 7})})
    federation.honest.push(federation.honest.reply(federation.honest.pull(), secret))
    assert refused(federation.mallory.pulls, federation.run, secret["config"].object_id)


def test_nobody_uploads_in_anothers_session(federation):
    federation.push(federation.mallory, federation.honest)
    shared = RecordDict({"config": ConfigRecord({"samples": 7})})
    reply = federation.honest.reply(federation.honest.pull(), shared)
    objects = {}
    answer = federation.honest.announces(reply, reply.top.seal(objects))
    for identifier in answer.objects_to_push:
        was_refused = refused(federation.mallory.push_object, federation.run, "", identifier, objects[identifier])
        assert federation.honest.push_object(federation.run, answer.session_id, identifier, objects[identifier])
        assert was_refused


@pytest.mark.parametrize(("uploaded", "itself"), [(True, False), (False, False), (False, True)])
def test_what_devices_say_of_the_servers_next_objects_does_not_count(federation, initial, uploaded, itself):
    """Told beforehand, each with children that it has not, as parts of a reply or as the reply itself."""
    content = RecordDict({protocol.ARRAYS: initial, "config": ConfigRecord({"server-round": 2})})
    objects = get_all_nested_objects(content)
    identifiers = federation.push(federation.mallory)
    reply = federation.mallory.reply(federation.mallory.pull())
    lies = [ObjectTree(object_id=each, children=[ObjectTree(object_id=NOBODY)]) for each in objects]
    tree = lies.pop() if itself else ObjectTree(object_id="cd" * 32, children=lies)
    answer = federation.mallory.announces(reply, tree)
    if uploaded:
        for each, item in objects.items():
            federation.mallory.push_object(federation.run, answer.session_id, each, item.deflate())
    federation.push(federation.mallory, federation.honest, content=content)
    for device in (federation.honest, federation.mallory):
        assert device.pull().content["config"]["server-round"] == 2
    assert all(message.has_error() for message in federation.link.grid.pull_messages(identifiers))
    federation.forget_replies()
    assert len(federation.link.state.object_store) == 0


@pytest.mark.parametrize("uploaded", [True, False])
def test_what_another_can_know_of_a_reply_gets_through(federation, uploaded):
    """Its few numbers, which are the same for all devices where scores are withheld."""
    _, theirs = federation.push(federation.mallory, federation.honest)
    content = RecordDict({"metrics": MetricRecord({"num-examples": 1}), "config": ConfigRecord({"secret": "x"})})
    known = content["metrics"]
    reply = federation.mallory.reply(federation.mallory.pull())
    tree = reply.top.seal({})
    tree.children.append(ObjectTree(object_id=known.object_id, children=[ObjectTree(object_id=NOBODY)]))
    answer = federation.mallory.announces(reply, tree)
    if uploaded:
        federation.mallory.push_object(federation.run, answer.session_id, known.object_id, known.deflate())
    federation.honest.push(federation.honest.reply(federation.honest.pull(), content))
    (message,) = taken(federation, [theirs])
    assert message.content["metrics"]["num-examples"] == 1


def test_a_device_takes_nothing_from_what_the_server_is_sending(federation):
    """Announced and not there yet, when no content says what is below it."""
    federation.push(federation.mallory, content=RecordDict())
    reply = federation.mallory.reply(federation.mallory.pull())
    sent = RecordDict({"config": ConfigRecord({"server-round": 2})})
    upload = federation.link.PushObject
    federation.link.PushObject = lambda request: refused(federation.mallory.announces, reply, bare) or upload(request)
    bare = reply.top.seal({})
    bare.children.append(ObjectTree(object_id=sent.object_id))
    federation.push(federation.honest, content=sent)
    assert federation.honest.pull().content["config"]["server-round"] == 2


@pytest.mark.parametrize("no_time", [{"created_at": math.nan}, {"ttl": math.nan}, {"created_at": math.inf}])
def test_a_reply_without_a_time_ends_nothing(federation, no_time):
    mine, theirs = federation.push(federation.mallory, federation.honest)
    reply = federation.mallory.reply(federation.mallory.pull())
    for name, value in no_time.items():
        setattr(reply.announced.metadata, name, value)
    was_refused = refused(federation.mallory.push, reply)
    federation.honest.push(federation.honest.reply(federation.honest.pull()))
    (message,) = federation.link.grid.pull_messages([mine, theirs])
    assert message.metadata.src_node_id == federation.honest.node.node_id
    assert was_refused


def test_what_is_announced_is_short(federation):
    federation.push(federation.mallory)
    reply = federation.mallory.reply(federation.mallory.pull())
    reply.announced.metadata.group_id = "x" * 2_000_000
    assert refused(federation.mallory.push, reply)


def test_a_reply_of_too_many_objects_is_not_taken_down(federation, monkeypatch):
    monkeypatch.setattr(authorization, "MOST_OBJECTS", 10)
    federation.push(federation.mallory)
    reply = federation.mallory.reply(federation.mallory.pull())
    objects = [ObjectTree(object_id=f"{number:064x}") for number in range(10)]
    stored = len(federation.link.state.object_store)
    assert refused(federation.mallory.announces, reply, ObjectTree(object_id=NOBODY, children=objects))
    assert len(federation.link.state.object_store) == stored


def test_what_is_announced_is_one_message_by_its_own_name(federation):
    federation.push(federation.mallory)
    reply = federation.mallory.reply(federation.mallory.pull())
    tree = reply.top.seal({})
    reply.announced.metadata.message_id = NOBODY
    assert refused(federation.mallory.announces, reply, tree)
    nothing = PushMessagesRequest(node=federation.mallory.node)
    assert refused(federation.mallory.stub.PushMessages, nothing)
