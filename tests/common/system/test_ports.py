"""A free port stays free of those who connect somewhere, and is found where every port of the range is taken."""

import socket
from pathlib import Path

from bouquet.common.system import ports
from bouquet.common.system.ports import OWN_PORTS, free_port


def test_no_outgoing_connection_is_given_it():
    found = {free_port() for _ in range(20)}
    assert len(found) > 10
    assert found <= set(OWN_PORTS)
    if (given := Path("/proc/sys/net/ipv4/ip_local_port_range")).exists():
        first, last = map(int, given.read_text().split())
        if first >= OWN_PORTS.stop:  # an owner may let it begin below
            assert not found & set(range(first, last + 1))


def test_nobody_is_given_one_that_another_was_just_given(monkeypatch):
    monkeypatch.setattr(ports, "OWN_PORTS", range(first := ports.OWN_PORTS[0], first + 200))
    for _ in range(20):
        assert len({free_port() for _ in range(10)}) == 10


def test_a_port_in_use_is_passed_by_and_at_last_the_system_chooses(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        monkeypatch.setattr(ports, "OWN_PORTS", range(number, number + 1))
        assert free_port() not in (None, number)
