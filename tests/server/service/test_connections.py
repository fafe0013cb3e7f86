"""Connections of strangers: so many in all, from one address and for so long; devices' are never closed."""

import contextlib
import errno
import os
import socket
import struct
import threading
from pathlib import Path

import pytest

from bouquet.common.wire.flower import content_bytes
from bouquet.server.service import connections, open_files
from bouquet.server.service.connections import Connections, Refusals, address_of, peer_named, peer_of
from tests.helpers.served_fleet import content
from tests.helpers.waiting_for import eventually

SECONDS = 60.0
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Seen(Connections):
    """Of connections that the test makes up, and which of them are closed."""

    def __init__(self, welcomed=()):
        super().__init__(1, welcomed)
        self.there, self.closed = [], []

    def _sockets(self, names):
        return [(peer, peer, None) for peer in self.there]

    def _close(self, name, peer):
        self.closed.append(peer)


@pytest.fixture
def clock(monkeypatch):
    """The time, to be set; and there is no number of files below which nothing is looked at."""
    now = [0.0]
    monkeypatch.setattr(connections.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(connections, "FEW", -1000)
    return now


def test_threads_that_serve_strangers_come_after_those_that_compute_rounds(fleets):
    fleet = fleets("garden")
    garden = fleet.welcome("garden")

    def nice():
        connections.step_back()
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # gRPC's come and go
                if Path(f"/proc/self/task/{thread}/comm").read_text() == "event_engine\n":
                    yield os.getpriority(os.PRIO_PROCESS, int(thread))

    wanted = {min(19, os.getpriority(os.PRIO_PROCESS, 0) + connections.STEP_BACK)}
    eventually(lambda: {*nice()} == wanted, "all step back; and there are some: gRPC still calls them so")
    garden.deliver(task := fleet.push(garden), content_bytes(content(1000)))
    assert fleet.pull(task)[0].has_content()


def test_the_sweep_goes_on_where_no_more_file_can_be_opened(monkeypatch):
    swept, over = threading.Event(), threading.Event()

    def full():
        raise OSError(errno.EMFILE, "Too many open files")

    class Sweeping(Connections):
        def sweep(self):
            swept.set()

    monkeypatch.setattr(connections, "step_back", full)
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.01)
    Sweeping(1, set()).keep_sweeping(over)
    assert swept.wait(60)
    over.set()


@pytest.mark.parametrize("limit", ["STRANGERS", "STRANGERS_OF_AN_ADDRESS"])
def test_of_too_many_strangers_the_oldest_is_closed_and_no_device(clock, monkeypatch, limit):
    monkeypatch.setattr(connections, limit, 2)
    device, *strangers = [f"192.0.2.7:{port}" for port in range(4)]
    seen = Seen({device})
    for clock[0], peer in enumerate([device, *strangers]):
        seen.there.append(peer)
        seen.sweep()
    assert seen.closed == []  # a fleet that comes back at once has some seconds
    clock[0] = 1 + connections.NEW_SECONDS + 0.5
    seen.sweep()
    assert seen.closed == strangers[:1]


def test_one_address_takes_nothing_of_anothers(clock, monkeypatch):
    monkeypatch.setattr(connections, "STRANGERS_OF_AN_ADDRESS", 2)
    seen = Seen()
    seen.there = [f"192.0.2.7:{port}" for port in range(2)] + [f"192.0.2.8:{port}" for port in range(2)]
    seen.sweep()
    clock[0] = connections.NEW_SECONDS + 1
    seen.sweep()
    assert seen.closed == []


def test_a_stranger_that_stays_is_closed_and_one_that_was_welcomed_meanwhile_is_not(clock):
    welcomed = set()
    seen = Seen(welcomed)
    seen.there = ["192.0.2.7:1", "192.0.2.7:2"]
    seen.sweep()
    welcomed.add("192.0.2.7:1")
    clock[0] = connections.STRANGER_SECONDS + 1
    seen.sweep()
    assert seen.closed == ["192.0.2.7:2"]


def test_few_strangers_are_looked_at_seldom_and_those_at_once_that_were_turned_away(clock, monkeypatch):
    monkeypatch.setattr(connections, "FEW", 10_000)
    stranger, device, former = (f"192.0.2.7:{port}" for port in range(3))
    seen = Seen({device})
    seen.there = [stranger, device, former]
    seen.sweep()
    clock[0] = connections.STRANGER_SECONDS - 1
    with monkeypatch.context() as idle:
        idle.setattr(seen, "_sockets", lambda names: 1 / 0)
        seen.sweep()
    for peer in (device, former):  # the device has begun another call
        seen.call_is_over(peer)
    seen.sweep()
    assert seen.closed == []  # they may not have read yet why
    seen.sweep()
    assert seen.closed == [former]
    clock[0] = 2 * connections.STRANGER_SECONDS
    seen.sweep()
    assert seen.closed == [former, stranger, former]


def closes(client):
    client.settimeout(SECONDS)
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


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


def test_a_sweep_opens_no_more_than_one_file_at_a_time(monkeypatch, clock):
    """It has to work where connections have taken all."""
    monkeypatch.setattr(connections, "STRANGER_SECONDS", -1.0)
    handles, open_at_once, this_thread = [], [], threading.get_ident()

    class Counted(socket.socket):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            if threading.get_ident() == this_thread:  # services of other tests sweep, too
                handles.append(self)
                open_at_once.append(sum(one.fileno() != -1 for one in handles))

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        pairs = [(socket.create_connection(("127.0.0.1", port)), server.accept()[0]) for _ in range(20)]
        with monkeypatch.context() as counting:
            counting.setattr(socket, "socket", Counted)
            Connections(port, {}).sweep()
        assert len(handles) >= 20
        assert {*open_at_once} == {1}
        for client, accepted in pairs:
            assert closes(client)
            client.close()
            accepted.close()


@pytest.mark.parametrize("secure", [False, True], ids=["without keys", "with keys"])
def test_strangers_at_a_real_service_go_and_its_devices_stay(fleets, monkeypatch, secure):
    for name, value in {"FEW": -1000, "STRANGERS": 3, "NEW_SECONDS": 0.0}.items():
        monkeypatch.setattr(connections, name, value)
    fleet = fleets("garden-pi") if secure else fleets()
    device = fleet.welcome("garden-pi")
    host, port = fleet.address.split(":")
    strangers = [socket.create_connection((host, int(port))) for _ in range(5)]
    sweeper = fleet.service.connections

    def are_closed():
        sweeper.sweep()
        return len(sweeper._since) == 3

    eventually(are_closed, "three strangers are left")
    fleet.push(device)
    device.wait_for("task")
    for stranger in strangers:
        stranger.close()


def test_who_is_turned_away_is_cut_off_whatever_it_does(fleets, monkeypatch):
    """Of a flood of HTTP/2 gRPC reads without end, for a core of the server, where nobody closes its connection."""
    monkeypatch.setattr(connections, "STRANGER_SECONDS", 3600.0)
    fleet = fleets("garden-pi", "former")
    fleet.welcome("garden-pi")
    fleet.welcome("former")
    (fleet.keys / "registered" / "former.crt").unlink()
    sweeper = fleet.service.connections

    def is_cut_off():
        sweeper.sweep()
        return len({peer for _, peer, _ in sweeper._sockets(os.listdir("/proc/self/fd"))}) == 1

    eventually(is_cut_off, "the device's connection alone is left")
    assert len(fleet.service._welcomed) == 1


def test_a_connection_has_only_so_many_streams_at_a_time(fleet):
    """As HTTP/2's settings say: whoever begins more is cut off by gRPC."""
    host, port = fleet.address.split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(HTTP2 + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        connection.settimeout(SECONDS)
        said = connection.makefile("rb")
        length, kind = int.from_bytes(said.read(3), "big"), said.read(1)
        said.read(5)  # flags and stream
        settings = dict(struct.iter_unpack(">HI", said.read(length)))
    assert (kind, settings[3]) == (b"\x04", connections.STREAMS_OF_A_CONNECTION)


def test_an_ipv6_site_is_one_address_and_a_connection_has_one_name():
    assert address_of("2001:db8::1:50") == address_of("2001:db8::ffff:1:51") != address_of("2001:db8:0:1::1:50")
    assert address_of("192.0.2.7:50") == "192.0.2.7"
    assert peer_named("ipv4:192.0.2.7:50") == peer_of("::ffff:192.0.2.7", 50) == "192.0.2.7:50"
    assert peer_named("ipv6:%5B2001:db8::1%5D:50") == peer_of("2001:db8::1", 50)
    assert peer_named("unix:") == "unix:"


def test_a_storm_of_refusals_is_a_few_lines():
    now, lines = [0.0], []
    refusals = Refusals(lines.append, lambda: now[0])
    for _ in range(1000):
        refusals.add("192.0.2.7:1", "no certificate")
    assert lines == ["192.0.2.7:1 is refused: no certificate"] * 6
    now[0] = 61.0
    refusals.add("192.0.2.7:1", "no certificate")
    assert lines[6:] == ["994 more were refused in the meantime", lines[0]]


def test_that_connections_are_turned_away_is_said_once_and_that_it_is_over(monkeypatch):
    lines = []
    monkeypatch.setattr(open_files, "most_connections", lambda: 1)
    assert open_files.look(lines.append, was_full=False)
    assert open_files.look(lines.append, was_full=True)
    monkeypatch.setattr(open_files, "most_connections", lambda: 10_000)
    assert not open_files.look(lines.append, was_full=True)
    assert not open_files.look(lines.append, was_full=False)
    assert ["no more than 1 connections" in lines[0], "taken again" in lines[1], len(lines)] == [True, True, 2]


def test_of_strangers_without_keys_few_are_remembered_and_little_of_each(fleet, monkeypatch):
    monkeypatch.setattr("bouquet.server.service.upkeep.MOST_GONE", 1)
    device, worker = fleet.welcome(hello={"holds": ["x" * 64] * 1000, "tags": ["a", "x" * 10_000]}), fleet.welcome()
    fleet.push(worker)
    assert (fleet.known(device).hello.tags, fleet.known(device).hello.ByteSize()) == (["a"], len("test") + len("a") + 4)
    for one in (worker, device, fleet.welcome()):
        one.close(goodbye=False)
    eventually(lambda: [*fleet.service.devices] == [worker.node], "who has something to do is known")
