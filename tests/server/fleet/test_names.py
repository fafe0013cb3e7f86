"""Who a device is: what its certificate is called, or without keys what it says; and two that are taken for one."""

import time
from types import SimpleNamespace

import pytest

from bouquet.common import protocol
from bouquet.common.wire.fleet_pb2 import Hello
from bouquet.keys.store import add_device, init_keys, remove_device
from bouquet.server.fleet.names import DUPLICATE_SECONDS, Names
from bouquet.server.service.devices import Device, node_of


@pytest.fixture
def keys(tmp_path):
    init_keys(tmp_path / "keys", ["server.local"])
    for name in ("garden-pi", "window-pi"):
        add_device(tmp_path / "keys", name)
    return tmp_path / "keys"


def device(name, *tags):
    """One that a service knows by its certificate."""
    return Device(node_of(name.encode()), name, Hello(tags=tags))


def names(tmp_path, *devices, keys=None, resumed=True):
    (tmp_path / "run").mkdir(exist_ok=True)
    fleet = SimpleNamespace(devices=lambda: devices)
    return Names(tmp_path / "run", fleet, keys / "registered" if keys else None, resumed)


def test_with_keys_a_device_is_what_its_certificate_is_called_and_nothing_else(tmp_path, keys):
    garden = device("garden-pi", "roof")
    found = names(tmp_path, garden, keys=keys)
    said = {protocol.CLIENT_ID: "window-pi", protocol.DEVICE_ID: "device-1", protocol.RELEASE: "0.2.0"}
    assert found(garden.node) == "garden-pi"
    assert found.tags_of("garden-pi") == {"roof"}  # as its agent said, before it was asked anything
    assert found(garden.node, said) == "garden-pi"
    assert found.release("garden-pi") == "0.2.0"
    assert found.other_releases({"garden-pi", "nobody"}) == {"garden-pi": "0.2.0"}
    assert found.other_releases({"nobody"}) == {}
    assert found(7, said) is None  # a node that the service does not know, whatever it says
    assert "window-pi" not in {known["name"] for known in found.devices.values()}


def test_a_new_certificate_of_the_same_name_is_the_same_device(tmp_path, keys):
    both = [device(name) for name in ("garden-pi", "window-pi")]
    found = names(tmp_path, *both, keys=keys)
    assert [found(one.node) for one in both] == ["garden-pi", "window-pi"]
    remove_device(keys, "window-pi")
    again = names(tmp_path, keys=keys)  # after a restart of the server
    assert found.removed() == again.removed() == {"window-pi"}
    add_device(keys, "window-pi")
    assert names(tmp_path, keys=keys).removed() == set()


def test_without_keys_a_device_is_what_it_says_when_it_is_asked(tmp_path):
    found = names(tmp_path)
    assert found(1) is None
    assert found(1, {protocol.CLIENT_ID: "pi", protocol.DEVICE_ID: "device-1"}) == "pi"
    # its owner gave it another name: one device
    assert names(tmp_path)(2, {protocol.CLIENT_ID: "roof", protocol.DEVICE_ID: "device-1"}) == "pi"
    # another device of the same name, as every new Raspberry Pi is called
    assert found(3, {protocol.CLIENT_ID: "pi", protocol.DEVICE_ID: "device-2"}) == "pi-2"
    assert "Another device is called pi already, so this one is called pi-2" in found.notices[3]
    assert found(4, {}) is None


def test_a_run_that_begins_anew_does_not_know_the_names_of_a_false_start(tmp_path):
    first, again = ({protocol.CLIENT_ID: "pi", protocol.DEVICE_ID: f"device-{n}"} for n in (1, 2))
    assert names(tmp_path)(1, first) == "pi"
    assert names(tmp_path, resumed=False)(2, again) == "pi"  # its state folder was deleted meanwhile


def test_without_keys_a_power_cut_is_not_a_second_device_and_a_copied_card_is(tmp_path):
    now = time.time()
    older, newer, other = (Device(node, None, Hello(), stream=object(), since=now - 500) for node in (1, 2, 3))
    found = names(tmp_path, older, newer, other)
    found.nodes = {1: "pi", 2: "pi", 3: "other"}
    newer.since = now - DUPLICATE_SECONDS / 2  # the one before may be a connection whose loss is not known yet
    assert list(found.duplicates()) == []
    newer.since, older.stream = now - 2 * DUPLICATE_SECONDS, None
    assert list(found.duplicates()) == []
    older.stream = object()
    ((node, line),) = found.duplicates()
    assert node == 1
    assert "pi: two devices say that they are it, and one of them is left out" in line
    assert list(found.duplicates()) == []  # said once
