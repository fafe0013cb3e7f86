"""The gate's limits: connections and calls, in all, of a key and of an address."""

import asyncio
import os
import re
import socket
import struct
import threading
from pathlib import Path

import grpc
import pytest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.node_pb2 import Node

from client.supernode.fleet_connection import Signature
from server.gate import limits, open_files
from server.gate.limits import Connections, Pace, Refusals, Turns, address_of, peer_named, peer_of
from server.gate.superlink_api import Refused
from tests.helpers.gated import GatedSuperLink
from tests.helpers.waiting_for import eventually

SECONDS = 60  # nobody waits so long
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def test_the_page_says_what_the_gate_allows():
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    said = {name: int(number) for number, name in re.findall(r"\| (\d+) \| `([A-Z_]+)` \|", page)}
    assert len(said) == 9
    assert {name: getattr(limits, name) for name in said} == said


@pytest.fixture
def gates(tmp_path, monkeypatch):
    """Starts a gate whose sweeper is the test."""
    monkeypatch.setattr("server.gate.main.keep_sweeping", lambda connections: swept.append(connections))
    swept, made = [], []

    def start():
        gate = GatedSuperLink(tmp_path / "gate")
        gate.sweep = swept[-1].sweep
        gate.device, gate.public, gate.node = gate.pair(register=True)
        made.append(gate)
        return gate

    yield start
    for gate in made:
        gate.end()


def connect(gate, source="127.0.0.1"):
    return socket.create_connection(("127.0.0.1", gate.port), source_address=(source, 0))


def closes(connection):
    """The server closes it, sooner or later."""
    connection.settimeout(SECONDS)
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def is_open(connection):
    connection.settimeout(0.2)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return True
    except ConnectionResetError:
        pass
    return False


def pull(gate, stub):
    stub.PullMessages(PullMessagesRequest(node=Node(node_id=gate.node)), timeout=SECONDS)


def activate(gate, stub):
    stub.ActivateNode(ActivateNodeRequest(public_key=gate.public, heartbeat_interval=30.0), timeout=SECONDS)


@pytest.mark.parametrize("sent", [b"", HTTP2, b"GET / HTTP/1.1\r\n"])
def test_connections_that_never_get_as_far_as_a_call_are_closed(monkeypatch, gates, sent):
    monkeypatch.setattr(limits, "HANDSHAKE_SECONDS", 1)
    with connect(gates()) as connection:
        connection.sendall(sent)
        assert closes(connection)


def test_connections_without_a_call_are_closed_after_a_while(monkeypatch, gates):
    monkeypatch.setattr(limits, "IDLE_SECONDS", 1)
    with connect(gates()) as connection:
        connection.sendall(HTTP2 + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        assert closes(connection)


def test_of_too_many_connections_the_last_are_closed_and_those_before_work_on(monkeypatch, gates):
    monkeypatch.setattr(limits, "most_connections", lambda: 4)
    gate = gates()
    stub = gate.stub(gate.device)
    activate(gate, stub)
    connections = [connect(gate) for _ in range(12)]
    assert all(closes(connection) for connection in connections[4:])
    pull(gate, stub)
    for connection in connections:
        connection.close()


def test_strangers_are_sent_away_after_a_while_and_devices_stay(monkeypatch, gates):
    monkeypatch.setattr(limits, "STRANGER_SECONDS", 0.0)
    gate = gates()
    stub = gate.stub(gate.device)
    activate(gate, stub)
    with connect(gate) as connection:
        connection.sendall(HTTP2 + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        # A sweep sees it as soon as gRPC has accepted it, and closes it the next time.
        eventually(lambda: gate.sweep() or not is_open(connection), "it is closed")
    pull(gate, stub)


def test_an_address_has_only_so_many_strangers(monkeypatch, gates):
    monkeypatch.setattr(limits, "STRANGERS_OF_AN_ADDRESS", 3)
    monkeypatch.setattr(limits, "HANDSHAKE_SECONDS", 3600)  # after which gRPC would close them itself
    monkeypatch.setattr(limits, "STRANGER_SECONDS", 3600)  # on a loaded machine what follows takes longer than that
    gate = gates()
    stub = gate.stub(gate.device)
    activate(gate, stub)
    # From an address from which nothing else comes: a device left over from another test may ask at any port.
    first = [connect(gate, "127.0.0.2") for _ in range(3)]
    gate.sweep()
    assert all(is_open(connection) for connection in first)
    others = [connect(gate, "127.0.0.2") for _ in range(5)]
    with connect(gate, "127.0.0.3") as elsewhere:
        eventually(lambda: gate.sweep() or sum(is_open(one) for one in first + others) == 3, "three are left")
        assert is_open(elsewhere)
    pull(gate, stub)
    for connection in first + others:
        connection.close()


def test_a_key_has_only_so_many_connections(monkeypatch, gates):
    """And the newest: a device that has lost one has another."""
    monkeypatch.setattr(limits, "CONNECTIONS_OF_A_KEY", 2)
    gate = gates()

    def another():
        own = [("grpc.use_local_subchannel_pool", 1)]  # or gRPC takes the connection that is there
        gate.channels.append(grpc.insecure_channel(gate.address, options=own))
        return FleetStub(grpc.intercept_channel(gate.channels[-1], Signature(gate.device)))

    activate(gate, another())
    for _ in range(3):
        pull(gate, another())
        gate.sweep()
    seen = Connections(gate.port, {})

    def of_the_key():
        return [peer for _, peer, _ in seen._sockets(os.listdir("/proc/self/fd")) if peer in gate.gate._identity.proven]

    eventually(lambda: gate.sweep() or len(of_the_key()) == 2, "two are left")
    pull(gate, gate.stub(gate.device))


class Seen(Connections):
    """Of connections that the test makes up, and which of them are closed."""

    def __init__(self, proven):
        super().__init__(1, proven)
        self.there, self.closed = [], []

    def _sockets(self, names):
        return [(peer, peer, None) for peer in self.there]

    def _close(self, name, peer):
        self.closed.append(peer)


@pytest.mark.parametrize("proven", [True, False])
def test_of_too_many_connections_the_oldest_are_closed(monkeypatch, proven):
    now = [0.0]
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(limits, "CONNECTIONS_OF_A_KEY", 2)
    monkeypatch.setattr(limits, "STRANGERS_OF_AN_ADDRESS", 2)
    peers = [f"192.0.2.7:{port}" for port in range(3)]
    seen = Seen({})
    for now[0], peer in enumerate(peers):
        seen.there.append(peer)
        if proven:
            seen._proven[peer] = b"a"
        seen.sweep()
    assert seen.closed == peers[:1]


def test_who_came_while_connections_were_counted_is_the_device_that_it_is():
    seen = Seen({"192.0.2.7:1": b"a"})
    seen.sweep()
    assert seen._proven
    seen.sweep()
    assert not seen._proven


def test_a_connection_that_came_in_anothers_place_is_not_closed():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0] as accepted:
            seen = Connections(port, {})
            seen._close(str(accepted.fileno()), "127.0.0.1:1")
            accepted.sendall(b"there")
            assert client.recv(5) == b"there"
            seen._close(str(accepted.fileno()), peer_of(*client.getsockname()))
            assert closes(client)


def test_a_connection_has_only_so_many_calls_at_a_time(gates):
    """As HTTP/2's settings say: whoever begins more is cut off by gRPC."""
    with connect(gates()) as connection:
        connection.sendall(HTTP2 + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        connection.settimeout(SECONDS)
        said = connection.makefile("rb")
        length, kind = int.from_bytes(said.read(3), "big"), said.read(1)
        said.read(5)  # flags and stream
        settings = dict(struct.iter_unpack(">HI", said.read(length)))
    assert (kind, settings[3]) == (b"\x04", limits.CALLS_OF_A_CONNECTION)


def test_a_sweep_opens_no_more_than_one_file_at_a_time(monkeypatch):
    """It has to work where connections have taken all."""
    monkeypatch.setattr(limits, "STRANGERS_OF_AN_ADDRESS", 0)
    handles, open_at_once, this_thread = [], [], threading.get_ident()

    class Counted(socket.socket):
        """By its handle, not its number: gates of earlier tests sweep from their own threads and take numbers too."""

        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            if threading.get_ident() == this_thread:
                handles.append(self)
                open_at_once.append(sum(one.fileno() != -1 for one in handles))

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        pairs = [(socket.create_connection(("127.0.0.1", port)), server.accept()[0]) for _ in range(20)]
        with monkeypatch.context() as counting:
            counting.setattr(socket, "socket", Counted)
            Connections(port, {}).sweep()
        assert len(handles) >= 20
        assert set(open_at_once) == {1}
        for client, accepted in pairs:
            assert closes(client)
            client.close()
            accepted.close()


def test_an_ipv6_site_is_one_address():
    assert address_of("2001:db8::1:50") == address_of("2001:db8::ffff:1:51") != address_of("2001:db8:0:1::1:50")
    assert address_of("192.0.2.7:50") == "192.0.2.7"


def test_a_connection_has_one_name():
    assert peer_named("ipv4:192.0.2.7:50") == peer_of("::ffff:192.0.2.7", 50) == "192.0.2.7:50"
    assert peer_named("ipv6:%5B2001:db8::1%5D:50") == peer_of("2001:db8::1", 50)
    assert peer_named("unix:") == "unix:"


def test_calls_beyond_a_number_are_slowed_and_then_are_not(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    pace = Pace(at=0.0)
    assert [pace.pause() for _ in range(int(limits.SOON))] == [0.0] * int(limits.SOON)
    assert [pace.pause(), pace.pause()] == [1 / limits.CALLS_A_SECOND, 2 / limits.CALLS_A_SECOND]
    now[0] = 60.0
    assert pace.pause() == 0.0
    pace.count(1e6)
    assert pace.pause() > 1000
    now[0] = 1e6  # who was away for days has no more calls than others
    assert [pace.pause() for _ in range(int(limits.SOON) + 1)][-2:] == [0.0, 1 / limits.CALLS_A_SECOND]


@pytest.mark.parametrize(("proven", "most"), [(True, "CALLS_OF_AN_ADDRESS"), (False, "STRANGERS_CALLS")])
def test_an_address_has_only_so_many_calls_and_strangers_take_none_of_its_devices(monkeypatch, proven, most):
    monkeypatch.setattr(limits, most, 2)
    turns = Turns()
    with turns.of_all("192.0.2.7:1", proven), turns.of_all("192.0.2.7:2", proven):
        with turns.of_all("192.0.2.8:1", proven), turns.of_all("192.0.2.7:3", not proven):
            pass
        with pytest.raises(Refused, match="of this address") as refused, turns.of_all("192.0.2.7:3", proven):
            pass
        assert refused.value.code is grpc.StatusCode.UNAVAILABLE
    with turns.of_all("192.0.2.7:3", proven):
        pass
    assert not turns._addresses


def test_a_call_is_a_devices_as_soon_as_that_is_known(monkeypatch):
    monkeypatch.setattr(limits, "STRANGERS_CALLS", 1)
    monkeypatch.setattr(limits, "CALLS_OF_AN_ADDRESS", 1)
    turns = Turns()
    with turns.of_all("192.0.2.7:1", False) as known:
        known()
        with turns.of_all("192.0.2.7:2", False) as other:  # the stranger's turn is free again
            other()  # there is none among the devices: it stays what it is
            with pytest.raises(Refused), turns.of_all("192.0.2.7:3", False):
                pass
        with pytest.raises(Refused), turns.of_all("192.0.2.7:2", True):
            pass
    assert not turns._addresses


def test_of_a_key_without_calls_nothing_stays():
    turns = Turns()

    async def call():
        with turns.of(b"a"):
            turns.forget()
            assert turns._keys
        turns.forget()
        assert not turns._keys

    asyncio.run(call())


def test_what_a_key_has_used_up_is_not_forgotten_before_it_is_refilled(monkeypatch):
    now, turns = [0.0], Turns()
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])

    async def call():
        with turns.of(b"a") as pace:
            pace.at = now[0]
            pace.count(3 * limits.SOON)  # messages of many objects

    asyncio.run(call())
    for now[0] in (60.0, 3 * limits.SOON / limits.CALLS_A_SECOND - 1):
        turns.forget()
        assert turns._keys
    now[0] += 2
    turns.forget()
    assert not turns._keys


def test_a_storm_of_refusals_is_a_few_lines():
    now, lines = [0.0], []
    refusals = Refusals(lines.append, lambda: now[0])
    for _ in range(1000):
        refusals.add("ipv4:192.0.2.7:1", "PullMessages", "no valid signature")
    assert lines == ["[gate] PullMessages from ipv4:192.0.2.7:1 is refused: no valid signature."] * 6
    now[0] = 61.0
    refusals.add("ipv4:192.0.2.7:1", "PullMessages", "no valid signature")
    assert lines[6:] == ["[gate] 994 more calls were refused in the meantime.", lines[0]]


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
