"""SuperLink's Fleet API behind its door: what somebody without a key is answered, and what that costs."""

import importlib
import json
import socket
import threading

import grpc
import pytest
from flwr.client.grpc_rere_client.node_auth_client_interceptor import NodeAuthClientInterceptor
from flwr.common.constant import PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor import NodeAuthServerInterceptor
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore import grpc as flower_grpc
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.superlink.federation import NoOpFederationManager

from client.supernode.registration import REGISTERED_CODE
from server.superlink import fleet_door, open_files
from server.superlink.fleet_door import KnownKeys, Refusals

SUPERLINK = importlib.import_module("flwr.superlink.cli.flower_superlink")
MESSAGE_BYTES = 1_000_000
SECONDS = 60  # nobody waits so long; a call that is not answered fails the test


class Door:
    """Flower's own Fleet API with its in-memory state, and one registered device."""

    def __init__(self, supernode_auth=True):
        self.states = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
        self.server = SUPERLINK._run_fleet_api_grpc_rere(
            "127.0.0.1:0",
            self.states,
            self.states.objectstore_factory,
            supernode_auth,
            None,
            [NodeAuthServerInterceptor(self.states)],
        )
        self.address = self.server.bound_address
        self.device, self.public = self.pair()
        self.node = self.states.state().create_node("", "", self.public, 0)
        self.channels = []

    @staticmethod
    def pair():
        keys = generate_key_pairs()
        return keys, public_key_to_bytes(keys[1])

    def stub(self, keys):
        """What signs with these keys, as a device does."""
        return FleetStub(grpc.intercept_channel(self.channel(), NodeAuthClientInterceptor(*keys)))

    def channel(self):
        self.channels.append(grpc.insecure_channel(self.address, options=[("grpc.max_send_message_length", -1)]))
        return self.channels[-1]

    def end(self):
        for channel in self.channels:
            channel.close()
        self.server.stop(None).wait()


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr("flwr.supercore.log", lambda level, text, *more: lines.append(text % more if more else text))
    return lines


@pytest.fixture
def door(monkeypatch, said):
    monkeypatch.setattr(SUPERLINK, "generic_create_grpc_server", None)
    fleet_door.install(MESSAGE_BYTES)
    made = Door()
    yield made
    made.end()


def refusal(call, request):
    with pytest.raises(grpc.RpcError) as error:
        call(request, timeout=SECONDS)
    return error.value.code(), error.value.details()


def activation(public, interval=30.0):
    return ActivateNodeRequest(public_key=public, heartbeat_interval=interval)


def test_a_registered_device_gets_in(door):
    stub = door.stub(door.device)
    assert stub.ActivateNode(activation(door.public), timeout=SECONDS).node_id == door.node
    beat = SendNodeHeartbeatRequest(node=Node(node_id=door.node), heartbeat_interval=30)
    assert stub.SendNodeHeartbeat(beat, timeout=SECONDS).success
    assert not stub.PullMessages(PullMessagesRequest(node=Node(node_id=door.node)), timeout=SECONDS).messages_list


def lock_out(door):
    """A stranger, whom nobody has registered, activates a device by its public key."""
    stranger, _ = door.pair()
    return door.stub(stranger).ActivateNode(activation(door.public), timeout=SECONDS)


def test_without_the_door_a_stranger_locks_a_device_out(monkeypatch):
    monkeypatch.setattr(SUPERLINK, "generic_create_grpc_server", flower_grpc.generic_create_grpc_server)
    door = Door()
    assert lock_out(door).node_id == door.node
    assert refusal(door.stub(door.device).ActivateNode, activation(door.public))[0] is (
        grpc.StatusCode.FAILED_PRECONDITION
    )
    door.end()


def test_a_stranger_does_not_lock_a_device_out(door, said):
    with pytest.raises(grpc.RpcError, match="Failed to activate SuperNode"):
        lock_out(door)
    assert door.stub(door.device).ActivateNode(activation(door.public), timeout=SECONDS).node_id == door.node
    (line,) = [line for line in said if "[door]" in line]
    assert "ActivateNode from ipv4:127.0.0.1:" in line


@pytest.mark.parametrize("supernode_auth", [True, False])
def test_a_device_does_not_lock_another_out(door, said, supernode_auth):
    open_door = door if supernode_auth else Door(supernode_auth=False)
    other, public = door.pair()
    open_door.states.state().create_node("", "", public, 0)
    answer = refusal(open_door.stub(other).ActivateNode, activation(open_door.public))
    assert answer == (grpc.StatusCode.UNAUTHENTICATED, fleet_door.ANOTHERS_KEY)
    assert any("signed for the key SHA256:" in line for line in said)
    stub = open_door.stub(open_door.device)
    assert stub.ActivateNode(activation(open_door.public), timeout=SECONDS).node_id == open_door.node
    if not supernode_auth:
        answer = refusal(open_door.stub(other).RegisterNode, RegisterNodeFleetRequest(public_key=door.pair()[1]))
        assert answer[1] == fleet_door.ANOTHERS_KEY
        open_door.end()


def test_who_is_not_registered_is_told_what_flower_tells(door):
    keys, public = door.pair()
    stub = door.stub(keys)
    code, details = refusal(stub.ActivateNode, activation(public))
    assert (code, json.loads(details)["code"]) == (grpc.StatusCode.FAILED_PRECONDITION, 2004)
    code, details = refusal(stub.RegisterNode, RegisterNodeFleetRequest(public_key=public))
    assert (code, json.loads(details)["code"]) == (grpc.StatusCode.FAILED_PRECONDITION, 2001)
    answer = refusal(stub.PullMessages, PullMessagesRequest(node=Node(node_id=door.node)))
    assert answer == (grpc.StatusCode.UNAUTHENTICATED, "Invalid node ID")
    # a device that asks whether it is registered (client/supernode/registration.py) is told, before and after
    assert REGISTERED_CODE not in refusal(stub.ActivateNode, activation(public, 0.0))[1]
    door.states.state().create_node("", "", public, 0)
    assert REGISTERED_CODE in refusal(stub.ActivateNode, activation(public, 0.0))[1]


def metadata(*, key=b"k", when="2026", signature=b"s"):
    return ((PUBLIC_KEY_HEADER, key), (TIMESTAMP_HEADER, when), (SIGNATURE_HEADER, signature))


def test_a_call_without_a_valid_signature_is_answered_before_its_body_is_there(door, said):
    """The body never comes, or trickles: no worker waits for it, and no memory is taken."""
    never = threading.Event()

    def body():
        never.wait()
        yield b""

    stranger, public = door.pair()
    signed = NodeAuthClientInterceptor(*stranger)
    cases = [(), metadata(), metadata(key=door.public), metadata(key=public, when="no time")]
    calls = [door.channel().stream_unary("/flwr.proto.Fleet/PushObject") for _ in cases]
    for call, case in zip(calls, cases, strict=True):
        with pytest.raises(grpc.RpcError) as error:
            call(body(), metadata=case, timeout=SECONDS)
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
    call = grpc.intercept_channel(door.channel(), AsUnary(signed)).stream_unary("/flwr.proto.Fleet/PushObject")
    with pytest.raises(grpc.RpcError) as error:
        call(body(), timeout=SECONDS)
    assert error.value.details() == "Invalid node ID"
    never.set()
    assert len([line for line in said if "[door] PushObject from ipv4:127.0.0.1" in line]) == len(cases) + 1


class AsUnary(grpc.StreamUnaryClientInterceptor):
    """Signs a call whose body is a stream."""

    def __init__(self, signer):
        self.signer = signer

    def intercept_stream_unary(self, continuation, details, requests):
        return self.signer.intercept_unary_unary(continuation, details, requests)


def test_a_call_that_is_too_large_is_refused(door):
    request = PushObjectRequest(node=Node(node_id=door.node), object_content=b"0" * MESSAGE_BYTES)
    assert refusal(door.stub(door.device).PushObject, request)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


def closes(connection):
    """The server closes it, sooner or later."""
    connection.settimeout(SECONDS)
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("sent", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n"])
def test_connections_that_never_get_as_far_as_a_call_are_closed(monkeypatch, said, sent):
    monkeypatch.setattr(fleet_door, "HANDSHAKE_SECONDS", 1)
    monkeypatch.setattr(SUPERLINK, "generic_create_grpc_server", None)
    fleet_door.install(MESSAGE_BYTES)
    door = Door()
    with socket.create_connection(("127.0.0.1", int(door.address.rpartition(":")[2]))) as connection:
        connection.sendall(sent)
        assert closes(connection)
    door.end()


def test_connections_without_a_call_are_closed_after_a_while(monkeypatch, said):
    monkeypatch.setattr(fleet_door, "IDLE_SECONDS", 1)
    monkeypatch.setattr(SUPERLINK, "generic_create_grpc_server", None)
    fleet_door.install(MESSAGE_BYTES)
    door = Door()
    with socket.create_connection(("127.0.0.1", int(door.address.rpartition(":")[2]))) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        assert closes(connection)
    door.end()


def test_of_too_many_connections_the_last_are_closed_and_those_before_work_on(monkeypatch, said):
    monkeypatch.setattr(open_files, "most_connections", lambda: 4)
    monkeypatch.setattr(SUPERLINK, "generic_create_grpc_server", None)
    fleet_door.install(MESSAGE_BYTES)
    door = Door()
    stub = door.stub(door.device)
    stub.ActivateNode(activation(door.public), timeout=SECONDS)
    connections = [socket.create_connection(("127.0.0.1", int(door.address.rpartition(":")[2]))) for _ in range(12)]
    assert all(closes(connection) for connection in connections[4:])
    stub.PullMessages(PullMessagesRequest(node=Node(node_id=door.node)), timeout=SECONDS)
    for connection in connections:
        connection.close()
    door.end()


def test_a_registered_key_is_looked_up_once_a_minute_and_another_each_time():
    now, asked = [0.0], []
    known = KnownKeys(lambda key: asked.append(key) or key == b"ours", lambda: now[0])
    assert [known(b"ours"), known(b"ours"), known(b"theirs"), known(b"theirs")] == [True, True, False, False]
    assert asked == [b"ours", b"theirs", b"theirs"]
    now[0] = fleet_door.KNOWN_SECONDS + 1
    assert known(b"ours")
    assert asked[-1] == b"ours"


def test_a_storm_of_refusals_is_a_few_lines():
    now, lines = [0.0], []
    refusals = Refusals(lines.append, lambda: now[0])

    class Peer:
        @staticmethod
        def peer():
            return "ipv4:192.0.2.7:1"

    for _ in range(1000):
        refusals.add(Peer, "/flwr.proto.Fleet/PullMessages", "no valid signature")
    assert lines == ["[door] PullMessages from ipv4:192.0.2.7:1 is refused: no valid signature."] * 6
    now[0] = 61.0
    refusals.add(Peer, "/flwr.proto.Fleet/PullMessages", "no valid signature")
    assert lines[6:] == ["[door] 994 more calls were refused in the meantime.", lines[0]]


def test_that_connections_are_turned_away_is_said_once_and_that_it_is_over(monkeypatch):
    lines = []
    monkeypatch.setattr(open_files, "most_connections", lambda: 1)
    assert open_files.look(lines.append, was_full=False)
    assert open_files.look(lines.append, was_full=True)
    monkeypatch.setattr(open_files, "most_connections", lambda: 10_000)
    assert not open_files.look(lines.append, was_full=True)
    assert not open_files.look(lines.append, was_full=False)
    assert [line.partition(": ")[2][:25] for line in lines] == [
        "no more than 1 connection",
        "connections are taken aga",
    ]
