"""Who a device is: what its key is called; and two that are taken for one."""

import sqlite3
import time
from datetime import UTC, datetime

import pytest

from bouquet.keys.store import add_device, init_keys, remove_device
from common import protocol
from common.errors import BouquetError
from common.trust.public_keys import read_public_key
from server.fleet.duplicates import Twins
from server.fleet.names import Names, registered_keys
from server.fleet.superlink_db import connections

COLUMNS = "node_id, public_key, status, last_activated_at, last_deactivated_at, online_until, heartbeat_interval"


def iso(seconds):
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()


class Link:
    """SuperLink's database; times are seconds since 1970."""

    def __init__(self, path):
        self.path = path
        self.execute(f"CREATE TABLE node ({COLUMNS})")

    def execute(self, statement, *values):
        with sqlite3.connect(self.path) as database:
            database.execute(statement, values)

    def node(self, node_id, key, since, seen, status="online"):
        signed = node_id if node_id < 2**63 else node_id - 2**64
        row = (signed, key, status, iso(since), None if status == "online" else iso(seen), seen + 60.0, 30.0)
        self.execute("DELETE FROM node WHERE node_id = ?", signed)
        self.execute("INSERT INTO node VALUES (?, ?, ?, ?, ?, ?, ?)", *row)


@pytest.fixture
def link(tmp_path):
    return Link(tmp_path / "superlink.db")


@pytest.fixture
def keys(tmp_path):
    init_keys(tmp_path / "keys", ["server.local"])
    for name in ("garden-pi", "window-pi"):
        add_device(tmp_path / "keys", name)
    return tmp_path / "keys"


def pem(keys, name):
    return read_public_key(keys / "registered" / f"{name}.pub").pem


def names(tmp_path, link, keys, resumed=True):
    (tmp_path / "run").mkdir(exist_ok=True)
    return Names(tmp_path / "run", link.path, keys / "registered" if keys else None, resumed)


def test_with_keys_a_device_is_what_its_key_is_called_and_nothing_else(tmp_path, link, keys):
    now = time.time()
    link.node(2**64 - 5, pem(keys, "garden-pi"), now, now)
    found = names(tmp_path, link, keys)
    said = {protocol.CLIENT_ID: "window-pi", protocol.DEVICE_ID: "device-1", protocol.RELEASE: "0.2.0"}
    assert found(2**64 - 5, said) == "garden-pi"
    assert found.release("garden-pi") == "0.2.0"
    assert found.other_releases({"garden-pi", "nobody"}) == {"garden-pi": "0.2.0"}
    assert found.other_releases({"nobody"}) == {}
    assert found(7) is None  # a node that SuperLink does not know, and then
    assert found(7, said) == "node-7"  # whatever it says


def test_a_renamed_key_is_the_device_it_was_and_a_new_key_of_the_same_name_too(tmp_path, link, keys):
    now = time.time()
    link.node(1, pem(keys, "garden-pi"), now, now)
    assert names(tmp_path, link, keys)(1) == "garden-pi"
    registered = keys / "registered"
    (registered / "garden-pi.pub").rename(registered / "balcony-pi.pub")
    assert names(tmp_path, link, keys)(1) == "garden-pi"  # also after a restart of the server
    # somebody else's key under the name that is still in use in this run
    add_device(keys, "garden-pi-2")
    (registered / "garden-pi-2.pub").rename(registered / "garden-pi.pub")
    link.node(2, pem(keys, "garden-pi"), now, now)
    assert names(tmp_path, link, keys)(2) == "garden-pi-2"
    # the key is replaced: the name is free again, and the device it belongs to is the same
    link.node(3, pem(keys, "window-pi"), now, now)
    assert names(tmp_path, link, keys)(3) == "window-pi"
    remove_device(keys, "window-pi")
    add_device(keys, "window-pi")
    link.node(4, pem(keys, "window-pi"), now, now)
    assert names(tmp_path, link, keys)(4) == "window-pi"


def test_without_keys_a_device_is_what_it_says_when_it_is_asked(tmp_path, link):
    found = names(tmp_path, link, None)
    assert found(1) is None
    assert found(1, {protocol.CLIENT_ID: "pi", protocol.DEVICE_ID: "device-1"}) == "pi"
    # its owner gave it another name: one device
    assert names(tmp_path, link, None)(2, {protocol.CLIENT_ID: "roof", protocol.DEVICE_ID: "device-1"}) == "pi"
    # another device of the same name, as every new Raspberry Pi is called
    assert found(3, {protocol.CLIENT_ID: "pi", protocol.DEVICE_ID: "device-2"}) == "pi-2"
    assert "Another device is called pi already, so this one is called pi-2" in found.notices[3]
    assert found(4, {}) is None


def test_a_run_that_begins_anew_does_not_know_the_names_of_a_false_start(tmp_path, link):
    first, again = ({protocol.CLIENT_ID: "pi", protocol.DEVICE_ID: f"device-{n}"} for n in (1, 2))
    assert names(tmp_path, link, None)(1, first) == "pi"
    assert names(tmp_path, link, None, resumed=False)(2, again) == "pi"  # its state folder was deleted meanwhile


def test_who_is_connected_and_when_it_was_heard_of(link):
    now = time.time()
    link.node(1, b"a", now - 1000, now - 10)
    link.node(2, b"b", now - 1000, now - 100)
    link.node(3, b"c", now - 1000, now - 5, "offline")
    link.execute("INSERT INTO node VALUES (4, X'64', 'registered', NULL, NULL, NULL, NULL)")
    found = connections(link.path)
    assert [found[node].online(now) for node in (1, 2, 3, 4)] == [True, False, False, False]
    assert found[2].seen == pytest.approx(now - 100, abs=0.01)
    assert found[4].seen is None
    with pytest.raises(BouquetError, match="is not there"):
        connections(link.path.with_name("none.db"))


def test_a_power_cut_is_not_a_second_device_and_a_copied_card_is(link, keys):
    now = time.time()
    named = {key.pem: name for name, key in registered_keys(keys / "registered")}
    key = pem(keys, "garden-pi")
    link.node(1, key, now - 500, now - 20)
    twins = Twins(link.path)
    twins.refused(key, now)
    assert list(twins.same_key(named)) == []  # the one that is connected was not heard of since
    # SuperLink gives it up at the end of its patience, and notes that as the time when it left.
    link.node(1, key, now - 500, now + 40, "offline")
    assert list(twins.same_key(named)) == []
    link.node(1, key, now + 45, now + 46)  # it got in, once the one before no longer counted as connected
    assert list(twins.same_key(named)) == []
    link.node(1, key, now - 500, now - 20)
    twins.refused(key, now)
    link.node(1, key, now - 500, now + 10)
    (line,) = twins.same_key(named)
    assert line.startswith("garden-pi: two devices hold its key, and the second is shut out")
    twins.refused(key, now + 11)
    link.node(1, key, now - 500, now + 30)
    assert list(twins.same_key(named)) == []  # said once


def test_two_devices_that_say_that_they_are_one(link):
    now = time.time()
    link.node(1, b"a", now - 500, now - 20)  # was heard of last before the second came: it lost power
    link.node(2, b"b", now - 15, now - 1)
    nodes = {1: "pi", 2: "pi", 3: "other"}
    twins = Twins(link.path)
    assert list(twins.same_name(nodes)) == []
    link.node(1, b"a", now - 500, now)
    ((node, name, line),) = twins.same_name(nodes)
    assert (node, name) == (1, "pi")
    assert "two devices say that they are it, and one of them is left out" in line
    assert list(twins.same_name(nodes)) == []
