"""The gate before SuperLink's Fleet API: who gets in, what everybody else is answered, and what that costs."""

import asyncio
import gc
import json
import threading
import tracemalloc
from datetime import timedelta
from functools import partial

import grpc
import pytest
from flwr.common.constant import PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
from flwr.proto.control_pb2 import ListNodesRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.date import now

from client.supernode.fleet_connection import Signature
from client.supernode.registration import REGISTERED_CODE
from common.system.health import problem
from common.system.ports import free_port
from server.gate import identity, limits, main, relay
from server.gate.limits import CALLS_OF_A_KEY
from server.gate.superlink_api import Answer, headers_of
from tests.helpers.gated import MESSAGE_BYTES, GatedSuperLink
from tests.helpers.waiting_for import eventually

SECONDS = 60  # nobody waits so long; a call that is not answered fails the test


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(main, "say", lines.append)
    return lines


@pytest.fixture
def gate(tmp_path, said, monkeypatch):
    monkeypatch.setattr(identity, "ASK_SECONDS", 0.05)
    made = GatedSuperLink(tmp_path / "gate")
    made.device, made.public, made.node = made.pair(register=True)
    yield made
    made.end()


def refusal(call, request):
    with pytest.raises(grpc.RpcError) as error:
        call(request, timeout=SECONDS)
    return error.value.code(), error.value.details()


def activation(public, interval=30.0):
    return ActivateNodeRequest(public_key=public, heartbeat_interval=interval)


def test_a_registered_device_gets_in(gate):
    stub = gate.stub(gate.device)
    assert stub.ActivateNode(activation(gate.public), timeout=SECONDS).node_id == gate.node
    beat = SendNodeHeartbeatRequest(node=Node(node_id=gate.node), heartbeat_interval=30)
    assert stub.SendNodeHeartbeat(beat, timeout=SECONDS).success
    assert not stub.PullMessages(PullMessagesRequest(node=Node(node_id=gate.node)), timeout=SECONDS).messages_list


def lock_out(gate):
    """A stranger, whom nobody has registered, activates a device by its public key."""
    stranger, _ = gate.pair()
    return gate.stub(stranger).ActivateNode(activation(gate.public), timeout=SECONDS)


def test_a_stranger_does_not_lock_a_device_out(gate, said):
    with pytest.raises(grpc.RpcError, match="Failed to activate SuperNode"):
        lock_out(gate)
    assert gate.stub(gate.device).ActivateNode(activation(gate.public), timeout=SECONDS).node_id == gate.node
    (line,) = said
    assert "ActivateNode from ipv4:127.0.0.1:" in line


def test_a_device_does_not_lock_another_out(gate, said):
    other, _, theirs = gate.pair(register=True)
    stub = gate.stub(other)
    answer = refusal(stub.ActivateNode, activation(gate.public))
    assert answer == (grpc.StatusCode.UNAUTHENTICATED, identity.ANOTHERS_KEY)
    assert any("signed for the key SHA256:" in line for line in said)
    for call, request in [
        (stub.DeactivateNode, DeactivateNodeRequest(node_id=gate.node)),
        (stub.SendNodeHeartbeat, SendNodeHeartbeatRequest(node=Node(node_id=gate.node), heartbeat_interval=30)),
        (stub.PullMessages, PullMessagesRequest(node=Node(node_id=gate.node))),
    ]:
        assert refusal(call, request) == (grpc.StatusCode.UNAUTHENTICATED, "Invalid node ID")
    # Nor does it take itself, or another, off the list of devices: that is the server's.
    for node in (theirs, gate.node):
        code, details = refusal(stub.UnregisterNode, UnregisterNodeFleetRequest(node_id=node))
        assert (code, json.loads(details)["code"]) == (grpc.StatusCode.FAILED_PRECONDITION, 2002)
    assert gate.stub(gate.device).ActivateNode(activation(gate.public), timeout=SECONDS).node_id == gate.node


def test_where_devices_register_themselves_none_locks_another_out(tmp_path, said):
    gate = GatedSuperLink(tmp_path / "open", registered_only=False)
    device, public = gate.pair()
    mine = gate.stub(device)
    node = mine.RegisterNode(RegisterNodeFleetRequest(public_key=public), timeout=SECONDS).node_id
    stub = gate.stub(gate.pair()[0])
    for call, request in [
        (stub.ActivateNode, activation(public)),
        (stub.RegisterNode, RegisterNodeFleetRequest(public_key=gate.pair()[1])),
        (stub.UnregisterNode, UnregisterNodeFleetRequest(node_id=node)),
        (stub.PullMessages, PullMessagesRequest(node=Node(node_id=node))),
    ]:
        assert refusal(call, request)[0] is grpc.StatusCode.UNAUTHENTICATED
    assert mine.ActivateNode(activation(public), timeout=SECONDS).node_id == node
    gate.end()


def test_who_is_not_registered_is_told_what_flower_tells(gate):
    keys, public = gate.pair()
    stub = gate.stub(keys)
    code, details = refusal(stub.ActivateNode, activation(public))
    assert (code, json.loads(details)["code"]) == (grpc.StatusCode.FAILED_PRECONDITION, 2004)
    code, details = refusal(stub.RegisterNode, RegisterNodeFleetRequest(public_key=public))
    assert (code, json.loads(details)["code"]) == (grpc.StatusCode.FAILED_PRECONDITION, 2001)
    answer = refusal(stub.PullMessages, PullMessagesRequest(node=Node(node_id=gate.node)))
    assert answer == (grpc.StatusCode.UNAUTHENTICATED, "Invalid node ID")
    # a device that asks whether it is registered (client/supernode/registration.py) is told, before and after
    assert REGISTERED_CODE not in refusal(stub.ActivateNode, activation(public, 0.0))[1]
    gate.register(public)
    assert REGISTERED_CODE in refusal(stub.ActivateNode, activation(public, 0.0))[1]


def metadata(*, key=b"k", when="2026", signature=b"s"):
    return ((PUBLIC_KEY_HEADER, key), (TIMESTAMP_HEADER, when), (SIGNATURE_HEADER, signature))


def test_a_call_without_a_valid_signature_is_answered_before_its_body_is_there(gate, said):
    """The body never comes, or trickles: no worker waits for it, and no memory is taken."""
    never = threading.Event()

    def body():
        never.wait()
        yield b""

    stranger, public = gate.pair()
    signed = Signature(stranger)
    cases = [(), metadata(), metadata(key=gate.public), metadata(key=public, when="no time")]
    calls = [gate.channel().stream_unary("/flwr.proto.Fleet/PushObject") for _ in cases]
    for call, case in zip(calls, cases, strict=True):
        with pytest.raises(grpc.RpcError) as error:
            call(body(), metadata=case, timeout=SECONDS)
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
    call = grpc.intercept_channel(gate.channel(), AsUnary(signed)).stream_unary("/flwr.proto.Fleet/PushObject")
    with pytest.raises(grpc.RpcError) as error:
        call(body(), timeout=SECONDS)
    assert error.value.details() == "Invalid node ID"
    never.set()
    assert len([line for line in said if "[gate] PushObject from ipv4:127.0.0.1" in line]) == len(cases) + 1


class AsUnary(grpc.StreamUnaryClientInterceptor):
    """Signs a call whose body is a stream."""

    def __init__(self, signer):
        self.signer = signer

    def intercept_stream_unary(self, continuation, details, requests):
        return self.signer.intercept_unary_unary(continuation, details, requests)


def own_channel(gate):
    """A channel on a connection of its own, which gRPC otherwise shares."""
    gate.channels.append(grpc.insecure_channel(gate.address, options=[("grpc.use_local_subchannel_pool", 1)]))
    return gate.channels[-1]


def never_ends(channel, signed=None, keys=None):
    """The answer to a call whose body does not come: with which metadata, or who signs it."""
    never = threading.Event()

    def body():
        never.wait()
        yield b""

    if keys is not None:
        channel = grpc.intercept_channel(channel, AsUnary(Signature(keys)))
    with pytest.raises(grpc.RpcError) as error:
        channel.stream_unary("/flwr.proto.Fleet/PushObject")(body(), metadata=signed, timeout=SECONDS)
    never.set()
    return error.value.code(), error.value.details()


@pytest.mark.parametrize("seconds", [-400, 400])
def test_a_signature_of_another_time_is_no_reason_to_wait_for_a_body(gate, monkeypatch, seconds):
    monkeypatch.setattr("client.supernode.fleet_connection.now", lambda: now() + timedelta(seconds=seconds))
    assert never_ends(gate.channel(), keys=gate.device) == (grpc.StatusCode.UNAUTHENTICATED, identity.NO_KEY)


def test_nor_is_the_key_of_another_on_a_connection_on_which_one_has_signed(gate):
    stub = gate.stub(gate.device)
    stub.ActivateNode(activation(gate.public), timeout=SECONDS)
    _, public, _ = gate.pair(register=True)
    assert never_ends(gate.channels[-1], metadata(key=public)) == (grpc.StatusCode.UNAUTHENTICATED, identity.NO_KEY)


def test_nor_is_a_key_that_was_removed_for_longer_than_keys_are_believed(gate, monkeypatch):
    monkeypatch.setattr(identity, "KNOWN_SECONDS", 0.0)
    gate.stub(gate.device).ActivateNode(activation(gate.public), timeout=SECONDS)
    gate.states.state().delete_node(owner_aid="<id:none>", node_id=gate.node)
    assert never_ends(gate.channel(), keys=gate.device) == (grpc.StatusCode.UNAUTHENTICATED, "Invalid node ID")


def test_a_body_that_does_not_come_is_not_waited_for_for_ever(gate, monkeypatch):
    monkeypatch.setattr(relay, "BODY_SECONDS", 0.1)
    answer = never_ends(gate.channel(), keys=gate.device)
    assert answer == (grpc.StatusCode.DEADLINE_EXCEEDED, "Its body did not come in time")


def test_only_so_many_strangers_wait_until_it_is_known_who_they_are(monkeypatch):
    monkeypatch.setattr(identity, "MOST_STRANGERS", 2)

    class Silent:
        async def post(self, *_):
            await asyncio.Event().wait()

    async def ask():
        keys = identity.RegisteredKeys(Silent())
        waiting = [asyncio.create_task(keys.node_of(key)) for key in (b"a", b"b")]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(keys.node_of(b"c"), SECONDS) is None
        assert not any(one.done() for one in waiting)
        for one in waiting:
            one.cancel()

    asyncio.run(ask())


def test_of_a_key_only_so_many_bodies_are_read_at_a_time(gate, monkeypatch):
    reads, read = [], relay._read

    async def counted(kind, context):
        reads.append(int(dict(context.invocation_metadata())["bouquet-call"]))
        return await read(kind, context)

    monkeypatch.setattr(relay, "_read", counted)
    never = threading.Event()

    def body():
        never.wait()
        yield b""

    call = grpc.intercept_channel(gate.channel(), AsUnary(Signature(gate.device))).stream_unary(
        "/flwr.proto.Fleet/PushObject"
    )
    calls = [call.future(body(), metadata=[("bouquet-call", str(at))], timeout=SECONDS) for at in range(7)]
    eventually(lambda: gate.gate._relay.turns._keys[gate.public].calls == 7, "all are there")
    eventually(lambda: len(reads) == limits.IN_HAND, "so many are read")
    calls[reads[0]].cancel()  # whichever came first: they need not come in the order in which they were made
    eventually(lambda: len(reads) == limits.IN_HAND + 1, "the next is read")
    for one in calls:
        one.cancel()
    never.set()


def test_of_a_key_only_so_many_calls_are_with_superlink_at_a_time(gate, monkeypatch):
    gate.stub(gate.device).ActivateNode(activation(gate.public), timeout=SECONDS)
    asked, answers = [], asyncio.Event()

    async def slow(*call):
        asked.append(call)
        await answers.wait()
        return Answer(200, b"")

    monkeypatch.setattr(gate.gate._relay._superlink, "post", slow)
    calls = [look(gate, 0) for _ in range(7)]
    eventually(lambda: len(asked) == limits.IN_HAND, "so many are")
    calls.append(look(gate, 0))
    eventually(lambda: gate.gate._relay.turns._keys[gate.public].calls == 8, "all are there")
    assert len(asked) == limits.IN_HAND
    gate.loop.call_soon_threadsafe(answers.set)
    assert not any(call.result().messages_list for call in calls)
    assert len(asked) == 8


def test_who_is_slowed_waits_and_others_do_not(gate, monkeypatch):
    other, _, node = gate.pair(register=True)
    pause = limits.Pace.pause
    keys = gate.gate._relay.turns._keys
    monkeypatch.setattr(limits.Pace, "pause", lambda pace: 3600.0 if pace is keys[gate.public] else pause(pace))
    slowed = look(gate, 0)
    eventually(lambda: keys[gate.public].calls == 1, "it is there")
    assert not look(gate, 0, gate.stub(other), node).result().messages_list
    assert not slowed.done()
    slowed.cancel()


def test_devices_of_an_address_whose_strangers_take_all_their_calls_go_on(gate, monkeypatch):
    stub = gate.stub(gate.device)
    stub.ActivateNode(activation(gate.public), timeout=SECONDS)
    monkeypatch.setattr(limits, "STRANGERS_CALLS", 0)
    assert never_ends(own_channel(gate)) == (grpc.StatusCode.UNAVAILABLE, "Too many calls of this address at a time")
    assert not look(gate, 0, stub).result().messages_list


def test_a_devices_first_call_takes_no_strangers_turn_for_long(gate, monkeypatch):
    monkeypatch.setattr(limits, "STRANGERS_CALLS", 1)
    held = look(gate, 30)
    eventually(waits(gate), "a look is held")
    other, _, node = gate.pair(register=True)
    elsewhere = FleetStub(grpc.intercept_channel(own_channel(gate), Signature(other)))
    assert not look(gate, 0, elsewhere, node).result().messages_list
    held.cancel()


def test_nothing_but_flowers_own_headers_goes_on_to_superlink(gate):
    said = [("flwr-name-bin", b"a"), ("flwr-x", "b"), ("content-length", "3"), ("bouquet-reply-bytes", "9")]
    assert headers_of(said) == {"flwr-name": "YQ==", "flwr-x": "b"}
    request = PullMessagesRequest(node=Node(node_id=gate.node))
    assert not gate.stub(gate.device).PullMessages(request, metadata=said[2:], timeout=SECONDS).messages_list


@pytest.mark.parametrize("packed", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_call_that_is_too_large_is_refused(gate, packed):
    """By what it would become: packed it is a thousandth of that."""
    request = PushObjectRequest(node=Node(node_id=gate.node), object_content=b"0" * MESSAGE_BYTES)
    call = partial(gate.stub(gate.device).PushObject, compression=packed)
    assert refusal(call, request)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


def within(number, content, times=1):
    """A field of protobuf's of this number and content, in so many of the same number."""
    for _ in range(times):
        length, size = len(content), b""
        while length > 127:
            length, size = length >> 7, size + bytes([length & 127 | 128])
        content = bytes([number << 3 | 2]) + size + bytes([length]) + content
    return content


@pytest.mark.parametrize(
    ("bodies", "details"),
    [
        ([], "A call without a message"),
        ([b"\xff" * 40], "It cannot be read"),
        ([within(3, within(2, b"", 10_000))], "It cannot be read"),  # objects ten thousand deep
    ],
    ids=["none", "garbage", "deep"],
)
def test_what_is_no_message_is_said_to_be_none(gate, bodies, details):
    channel = grpc.intercept_channel(gate.channel(), AsUnary(Signature(gate.device)))
    with pytest.raises(grpc.RpcError) as error:
        channel.stream_unary("/flwr.proto.Fleet/PushMessages")(iter(bodies), timeout=SECONDS)
    assert (error.value.code(), error.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, details)
    assert not look(gate, 0).result().messages_list


@pytest.mark.parametrize(
    "path", ["/flwr.proto.Control/ListNodes", "/flwr.proto.Runtime/GetNodes", "/v1/control/list-nodes"]
)
def test_nothing_but_the_fleet_api_is_there(gate, path):
    """Neither for strangers nor for devices, whatever the path is called."""
    for name in (path, f"/flwr.proto.Fleet/..{path}", f"/flwr.proto.Fleet/PullMessages/../..{path}"):
        call = grpc.intercept_channel(gate.channel(), Signature(gate.device)).unary_unary(name)
        with pytest.raises(grpc.RpcError) as error:
            call(ListNodesRequest().SerializeToString(), timeout=SECONDS)
        assert error.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE)


def test_of_a_call_that_is_refused_nothing_stays(gate):
    """Also where Python does not look for what holds itself, which few large things do not make it do."""
    stub = gate.stub(gate.device)
    request = PushObjectRequest(node=Node(node_id=gate.node), object_content=b"0" * (MESSAGE_BYTES - 1000))
    refusal(stub.PushObject, request)
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(10):
            assert refusal(stub.PushObject, request)[0] is grpc.StatusCode.PERMISSION_DENIED
        eventually(lambda: tracemalloc.get_traced_memory()[0] < 2 * MESSAGE_BYTES, "the bodies are gone", 10)
    finally:
        tracemalloc.stop()
        gc.enable()


def look(gate, hold, stub=None, node=None):
    """A look for messages that is held, going on."""
    request = PullMessagesRequest(node=Node(node_id=node or gate.node))
    stub = stub or gate.stub(gate.device)
    return stub.PullMessages.future(request, metadata=[("bouquet-hold", str(hold))], timeout=SECONDS)


def waits(gate):
    return lambda: gate.node in gate.gate._waiting._held


def test_of_two_looks_the_former_ends(gate):
    former = look(gate, 30)
    eventually(waits(gate), "a look is held")
    latter = look(gate, 30)
    assert not former.result().messages_list
    assert not latter.done()
    latter.cancel()


def test_looks_end_when_the_gate_does(gate):
    held = look(gate, 30)
    eventually(waits(gate), "a look is held")
    gate.stop()
    assert not held.result().messages_list


@pytest.mark.parametrize("hold", ["nan", "-1", "x", "inf"])
def test_what_is_no_time_holds_nothing(gate, hold):
    assert not look(gate, hold).result().messages_list


def test_a_key_has_only_so_many_calls_at_a_time(gate):
    """And another key as many beside."""
    never = threading.Event()

    def body():
        never.wait()
        yield b""

    signed = AsUnary(Signature(gate.device))
    channel = gate.channel()
    call = grpc.intercept_channel(channel, signed).stream_unary("/flwr.proto.Fleet/PushObject")
    held = [call.future(body(), timeout=SECONDS) for _ in range(CALLS_OF_A_KEY)]
    eventually(lambda: gate.gate._relay.turns._keys[gate.public].calls == CALLS_OF_A_KEY, "all calls are there")
    mine = gate.stub(gate.device)
    assert refusal(mine.ActivateNode, activation(gate.public))[0] is grpc.StatusCode.UNAVAILABLE
    other, public, node = gate.pair(register=True)
    assert gate.stub(other).ActivateNode(activation(public), timeout=SECONDS).node_id == node
    for one in held:
        one.cancel()
    eventually(lambda: gate.gate._relay.turns._keys[gate.public].calls == 0, "all calls are over")
    assert mine.ActivateNode(activation(gate.public), timeout=SECONDS).node_id == gate.node
    never.set()


def test_a_fleet_beyond_the_calls_is_told_to_come_again(gate, monkeypatch):
    """Not that it is too much: on that devices end."""
    stub = gate.stub(gate.device)
    stub.ActivateNode(activation(gate.public), timeout=SECONDS)
    held = look(gate, 30)
    eventually(waits(gate), "a look is held")
    monkeypatch.setattr(limits, "CALLS", 1)
    answer = refusal(stub.PullMessages, PullMessagesRequest(node=Node(node_id=gate.node)))
    assert answer == (grpc.StatusCode.UNAVAILABLE, "Too many calls at a time")
    held.cancel()
    eventually(lambda: not gate.gate._relay.turns._calls, "it is over")
    assert not stub.PullMessages(PullMessagesRequest(node=Node(node_id=gate.node)), timeout=SECONDS).messages_list


@pytest.mark.parametrize("most", ["CALLS", "CALLS_OF_AN_ADDRESS"])
def test_of_a_fleet_that_is_too_large_some_do_not_wait(gate, monkeypatch, most):
    """And leave room for calls that do the work."""
    monkeypatch.setattr(limits, most, 4)
    devices = [gate.pair(register=True) for _ in range(4)]
    held = []
    for keys, _, node in devices[:3]:
        held.append(look(gate, 30, gate.stub(keys), node))
        eventually(lambda: len(gate.gate._waiting._held) == len(held), "it is held")
    keys, _, node = devices[3]
    assert not look(gate, 30, gate.stub(keys), node).result().messages_list
    assert not any(one.done() for one in held)
    for one in held:
        one.cancel()


def test_a_signature_may_grow_old_while_the_body_comes(gate, monkeypatch):
    """A newer one of the same key is as good; without any, the device is asked to sign anew, and not turned away."""
    stub = gate.stub(gate.device)
    stub.ActivateNode(activation(gate.public), timeout=SECONDS)
    come = [threading.Event(), threading.Event()]

    def slow(event):
        event.wait()
        yield PullMessagesRequest(node=Node(node_id=gate.node)).SerializeToString()

    channel = grpc.intercept_channel(gate.channel(), AsUnary(Signature(gate.device)))
    pace = gate.gate._relay.turns._keys[gate.public]
    monkeypatch.setattr("client.supernode.fleet_connection.now", lambda: now() - timedelta(seconds=200))
    calls = [channel.stream_unary("/flwr.proto.Fleet/PullMessages").future(slow(one), timeout=SECONDS) for one in come]
    eventually(lambda: pace.calls == 2, "both are there")
    monkeypatch.undo()
    monkeypatch.setattr(identity, "TIMESTAMP_TOLERANCE", 100)
    come[0].set()
    with pytest.raises(grpc.RpcError, match="Its signature has become too old") as error:
        calls[0].result()
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    beat = SendNodeHeartbeatRequest(node=Node(node_id=gate.node), heartbeat_interval=30)
    assert stub.SendNodeHeartbeat(beat, timeout=SECONDS).success
    come[1].set()
    assert calls[1].result() == b""


def test_a_removed_key_is_refused(gate):
    stub = gate.stub(gate.device)
    stub.ActivateNode(activation(gate.public), timeout=SECONDS)
    gate.states.state().delete_node(owner_aid="<id:none>", node_id=gate.node)
    answer = refusal(stub.PullMessages, PullMessagesRequest(node=Node(node_id=gate.node)))
    assert answer == (grpc.StatusCode.UNAUTHENTICATED, "Invalid node ID")


def test_a_superlink_that_is_away_is_waited_for(gate):
    stub = gate.stub(gate.device)
    stub.ActivateNode(activation(gate.public), timeout=SECONDS)
    gate.superlink.should_exit = True
    gate.threads[0].join(60)
    code, _ = refusal(stub.PullMessages, PullMessagesRequest(node=Node(node_id=gate.node)))
    assert code is grpc.StatusCode.UNAVAILABLE


def test_health_is_superlinks(tmp_path, said, monkeypatch):
    monkeypatch.setattr("server.gate.health.LOOK_SECONDS", 0.1)
    address = f"127.0.0.1:{free_port()}"
    gate = GatedSuperLink(tmp_path / "gate", health=address)
    eventually(lambda: not problem(address), "it is well")
    gate.superlink.should_exit = True
    eventually(lambda: bool(problem(address)), "it is not")
    gate.end()
