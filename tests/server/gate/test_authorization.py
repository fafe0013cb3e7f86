"""What a registered device may do with what is not its own: over gRPC, with Flower's own Fleet API and its database.

The server's side is Flower's grid and its Runtime API functions, in the same process.
"""

import math
import os
import time

import grpc
import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from client.supernode.fleet_connection import Signature
from common import protocol
from server.gate.limits import CALLS_OF_A_KEY, OBJECTS_AS_A_CALL, SOON
from server.superlink.link_state import TIMES_GIVEN
from tests.helpers.waiting_for import eventually

MOST_OBJECTS = 100
TTL = 3600.0
NOBODY = "ab" * 32


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


def test_so_is_one_that_the_server_has_begun_to_take(federation):
    """A gate that is killed after SuperLink has the announcement: the server knows it, the device does not."""
    identifiers = federation.push(federation.honest)
    reply = federation.honest.reply(federation.honest.pull(), RecordDict({"config": ConfigRecord({"samples": 7})}))
    objects = {}
    tree = reply.top.seal(objects)
    first = federation.honest.announces(reply, tree)
    assert not federation.link.grid.pull_messages(identifiers)  # it has been announced, and nothing of it is there
    answer = federation.honest.announces(reply, tree)
    assert sorted(answer.objects_to_push) == sorted(first.objects_to_push) == sorted(objects)
    for identifier, content in objects.items():
        assert federation.honest.push_object(federation.run, answer.session_id, identifier, content)
    (message,) = taken(federation, identifiers)
    assert message.content["config"]["samples"] == 7
    assert len(federation.link.state.object_store) == 0


def test_nobody_announces_once_more_what_another_has_announced(federation):
    identifiers = federation.push(federation.honest)
    reply = federation.honest.reply(federation.honest.pull())
    tree = reply.top.seal(objects := {})
    first = federation.honest.announces(reply, tree)
    federation.link.grid.pull_messages(identifiers)
    with pytest.raises(grpc.RpcError):
        federation.mallory.announces(reply, tree)
    for identifier, content in objects.items():
        assert federation.honest.push_object(federation.run, first.session_id, identifier, content)
    assert not taken(federation, identifiers)[0].has_error()


def test_a_message_that_did_not_arrive_is_given_again(federation):
    """And not for ever, nor when it did arrive."""
    (mine,) = federation.push(federation.honest)
    given = [federation.honest.given() for _ in range(TIMES_GIVEN + 1)]
    assert [[message.metadata.message_id for message in each.messages_list] for each in given] == [
        *[[mine]] * TIMES_GIVEN,
        [],
    ]
    federation.push(federation.honest)
    assert federation.honest.pull() is not None
    assert federation.honest.pull() is None


def test_a_new_message_is_given_before_one_that_did_not_arrive(federation):
    federation.push(federation.honest)
    federation.honest.given()
    (mine,) = federation.push(federation.honest, content=RecordDict({"config": ConfigRecord({"round": 2})}))
    assert federation.honest.pull().metadata.message_id == mine
    assert federation.honest.pull() is None


def test_devices_do_not_notice_that_the_gate_was_started_again(federation):
    """Between any two of a device's calls."""
    (mine,) = federation.push(federation.honest)
    federation.honest.given()
    federation.server.again()
    given = federation.honest.given()
    assert given.messages_list[0].metadata.message_id == mine
    federation.server.again()
    assert federation.honest.pulls(federation.run, mine)
    federation.server.again()
    federation.honest.confirms(federation.run, mine)
    federation.server.again()
    federation.honest.confirms(federation.run, mine)  # whose answer was lost
    assert not federation.honest.given().messages_list
    federation.push(federation.honest)
    reply = federation.honest.reply(federation.honest.pull(), RecordDict({"config": ConfigRecord({"samples": 7})}))
    objects = {}
    answer = federation.honest.announces(reply, reply.top.seal(objects))
    for identifier in answer.objects_to_push:
        federation.server.again()
        federation.honest.push_object(federation.run, answer.session_id, identifier, objects[identifier])
    (message,) = taken(federation, [reply.announced.metadata.reply_to_message_id])
    assert message.content["config"]["samples"] == 7


@pytest.mark.parametrize("left", [b"\x12\xff", b"\x12\x00"], ids=["cut off", "a message without its tree"])
def test_a_file_that_a_disk_has_damaged_keeps_nobody_out(federation, left):
    federation.push(federation.honest)
    federation.honest.given()
    (federation.server.options.kept / str(federation.honest.node.node_id)).write_bytes(left)
    federation.server.again()
    (message,) = federation.push(federation.honest)
    assert federation.honest.given().messages_list[0].metadata.message_id == message


def test_a_file_that_cannot_be_read_keeps_nobody_out(federation):
    (federation.server.options.kept / str(federation.honest.node.node_id)).mkdir()  # to read it is an OSError
    federation.server.again()
    (message,) = federation.push(federation.honest)
    assert federation.honest.given().messages_list[0].metadata.message_id == message


def test_a_folder_that_cannot_be_listed_keeps_nobody_out(federation):
    folder = federation.server.options.kept
    folder.rename(folder.with_name("away"))
    folder.write_bytes(b"")  # a file in its place: neither made nor listed
    federation.server.again()
    (message,) = federation.push(federation.honest)
    assert federation.honest.given().messages_list[0].metadata.message_id == message


def test_what_the_gate_keeps_is_one_file_a_device(federation):
    for _ in range(3):
        federation.push(federation.honest, federation.mallory)
        federation.honest.pull()
        federation.mallory.given()
    assert {file.stem for file in federation.server.options.kept.iterdir()} == {
        str(device.node.node_id) for device in (federation.honest, federation.mallory)
    }


def test_a_disk_that_is_full_is_said_once_and_devices_do_not_notice(federation, monkeypatch):
    lines = []
    monkeypatch.setattr(federation.server.gate._relay._authorization, "_say", lines.append)
    folder = federation.server.options.kept
    folder.rename(folder.with_name("away"))
    federation.push(federation.honest, federation.mallory)
    for device in (federation.honest, federation.mallory):
        assert device.pull()
    assert len(lines) == 1


def test_a_held_look_gets_a_message_when_there_is_one(federation, monkeypatch):
    """And SuperLink is asked when it comes, and when it has said that there is something."""
    asked = []
    find = federation.link.state.get_message_ins
    monkeypatch.setattr(federation.link.state, "get_message_ins", lambda *a, **k: asked.append(1) or find(*a, **k))
    request = PullMessagesRequest(node=federation.honest.node)
    look = federation.honest.stub.PullMessages.future(request, metadata=[("bouquet-hold", "30")], timeout=60)
    eventually(lambda: federation.honest.node.node_id in federation.server.gate._waiting._held, "it is held")
    federation.push(federation.mallory)  # for another
    (mine,) = federation.push(federation.honest)
    assert look.result().messages_list[0].metadata.message_id == mine
    assert len(asked) == 2


def test_answers_that_a_device_does_not_read_count_as_its_calls(federation):
    content = RecordDict({"large": ConfigRecord({"bytes": os.urandom(2_000_000)})})
    federation.push(federation.mallory, content=content)
    federation.mallory.given()
    # Its own connection, whose window does not grow: nothing is taken in but what is read.
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
    channel = grpc.insecure_channel(federation.server.address, options=options)
    federation.server.channels.append(channel)
    pull = grpc.intercept_channel(channel, AsStream(federation.mallory.keys)).unary_stream(
        "/flwr.proto.Fleet/PullObject", request_serializer=PullObjectRequest.SerializeToString
    )
    request = PullObjectRequest(
        node=federation.mallory.node, run_id=federation.run, object_id=content["large"].object_id
    )
    relay, answered = federation.server.gate._relay, []
    ask = relay._ask

    async def counted(*call):
        answer = await ask(*call)
        answered.append(answer)
        return answer

    relay._ask = counted
    calls = [pull(request, timeout=600) for _ in range(CALLS_OF_A_KEY)]
    eventually(lambda: len(answered) == CALLS_OF_A_KEY, "all are answered")
    with pytest.raises(grpc.RpcError) as error:
        federation.mallory.given()
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    for call in calls:
        call.cancel()
    eventually(lambda: not relay.turns._calls, "all are over")
    assert federation.mallory.given().messages_list  # it may call again, and gets what it has not confirmed


class AsStream(grpc.UnaryStreamClientInterceptor):
    """Signs a call whose answer is read as a stream: when it is asked for."""

    def __init__(self, keys):
        self.signer = Signature(keys)

    def intercept_unary_stream(self, continuation, details, request):
        return self.signer.intercept_unary_unary(continuation, details, request)


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


def test_a_reply_of_too_many_objects_is_not_taken_down(federation):
    federation.push(federation.mallory)
    reply = federation.mallory.reply(federation.mallory.pull())
    objects = [ObjectTree(object_id=f"{number:064x}") for number in range(MOST_OBJECTS)]
    stored = len(federation.link.state.object_store)
    assert refused(federation.mallory.announces, reply, ObjectTree(object_id=NOBODY, children=objects))
    assert len(federation.link.state.object_store) == stored


def test_what_is_announced_is_one_message_by_its_own_name(federation):
    federation.push(federation.mallory)
    reply = federation.mallory.reply(federation.mallory.pull())
    tree = reply.top.seal({})
    reply.announced.metadata.message_id = NOBODY
    assert refused(federation.mallory.announces, reply, tree)
    reply.announced.metadata.message_id = tree.object_id
    for messages, trees in [(0, 0), (2, 1), (1, 2), (2, 2)]:
        request = PushMessagesRequest(
            node=federation.mallory.node,
            messages_list=[reply.announced] * messages,
            message_object_trees=[tree] * trees,
        )
        assert refused(federation.mallory.stub.PushMessages, request)


def test_objects_that_are_announced_count_as_calls(federation):
    federation.push(federation.mallory)
    reply = federation.mallory.reply(federation.mallory.pull())
    pace = federation.server.gate._relay.turns._keys[federation.mallory.public_key]
    pace.left = SOON
    objects = [ObjectTree(object_id=f"{number:064x}") for number in range(MOST_OBJECTS - 1)]
    federation.mallory.announces(reply, ObjectTree(object_id=NOBODY, children=objects))
    assert pace.left <= SOON - 1 - MOST_OBJECTS / OBJECTS_AS_A_CALL


def test_of_a_run_that_is_over_nothing_stays_in_the_gates_hand(federation):
    federation.push(federation.mallory)
    federation.mallory.given()
    kept = federation.server.options.kept / str(federation.mallory.node.node_id)
    assert kept.exists()
    with pytest.raises(grpc.RpcError):
        federation.mallory.stub.GetRun(GetRunRequest(node=federation.mallory.node, run_id=federation.run + 1))
    assert not kept.exists()
    assert federation.mallory.node.node_id not in federation.server.gate._relay._authorization._given
