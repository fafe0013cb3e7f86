"""Which devices are registered and shut out, by what the folder holds and what SuperLink's database knows."""

import sqlite3
from types import SimpleNamespace

import pytest

from bouquet.keys.store import add_device, init_keys, remove_device
from common.errors import BouquetError
from common.trust.public_keys import read_public_key
from server.fleet import admission
from server.fleet.admission import Admission
from tests.helpers.waiting_for import eventually


class Link:
    """A SuperLink's database, and what Flower's program would do to it."""

    def __init__(self, database):
        self.database = database
        self.process = SimpleNamespace(alive=True)
        self.calls = []
        self.execute("CREATE TABLE node (node_id INTEGER, public_key BLOB, status TEXT)")

    def execute(self, statement, *values):
        with sqlite3.connect(self.database) as database:
            database.execute(statement, values)

    def register(self, _, files):
        for file in files:
            yield self.register_one(file)

    def register_one(self, file):
        self.calls.append(f"register {file.stem}")
        # A node id beyond what SQLite holds with its sign is stored as a negative number.
        self.execute("INSERT INTO node VALUES (?, ?, 'registered')", -len(self.calls), read_public_key(file).pem)

    def unregister(self, _, node_id):
        self.calls.append(f"unregister {node_id}")
        self.execute("UPDATE node SET status = 'unregistered' WHERE node_id = ?", node_id - 2**64)


@pytest.fixture
def link(tmp_path, monkeypatch):
    made = Link(tmp_path / "superlink.db")
    monkeypatch.setattr(admission, "register_supernodes", made.register)
    monkeypatch.setattr(admission, "unregister_supernode", made.unregister)
    return made


@pytest.fixture
def keys(tmp_path):
    init_keys(tmp_path / "keys", ["server.local"])
    add_device(tmp_path / "keys", "a")
    add_device(tmp_path / "keys", "b")
    return tmp_path / "keys"


def test_only_changes_cost_a_call_also_after_a_restart(link, keys):
    said = []
    first = Admission(link, keys / "registered", said.append)
    first.apply()
    first.apply()
    assert link.calls == ["register a", "register b"]
    # b is removed while the server is down
    remove_device(keys, "b")
    add_device(keys, "c")
    again = Admission(link, keys / "registered", said.append)
    again.apply()
    again.apply()
    assert link.calls[2:] == ["register c", f"unregister {2**64 - 2}"]
    assert said == ["registered a", "registered b", "registered c", f"removed node {2**64 - 2}: it is shut out"]


def test_a_removed_key_that_is_put_back_is_named_once(link, keys):
    said = []
    admitted = Admission(link, keys / "registered", said.append)
    admitted.apply()
    remove_device(keys, "a")
    admitted.apply()
    (keys / "removed" / "a.1.pub").rename(keys / "registered" / "a.pub")
    admitted.apply()
    admitted.apply()
    assert said[2] == "removed a: it is shut out"
    assert "Flower never admits it again" in said[3]
    assert len(said) == 4


def test_nobody_is_shut_out_by_a_file_that_is_half_copied_or_a_folder_that_is_gone(link, keys):
    said = []
    admitted = Admission(link, keys / "registered", said.append)
    admitted.apply()
    whole = (keys / "registered" / "a.pub").read_bytes()
    (keys / "registered" / "a.pub").write_bytes(whole[:40])
    admitted.apply()
    assert "a.pub is no OpenSSH public key" in said[2]
    (keys / "registered" / "a.pub").write_bytes(whole)
    admitted.apply()
    (keys / "registered").rename(keys / "elsewhere")
    with pytest.raises(BouquetError, match="registered is not there"):
        admitted.apply()
    assert link.calls == ["register a", "register b"]


def test_a_superlink_without_a_database(link, keys):
    link.database = None
    with pytest.raises(BouquetError, match="this one was started without"):
        Admission(link, keys / "registered", print).apply()


def test_a_database_that_is_none(link, keys):
    link.database.write_bytes(b"something else")
    with pytest.raises(BouquetError, match=r"superlink\.db cannot be read"):
        Admission(link, keys / "registered", print).apply()


def test_a_folder_that_cannot_be_looked_at_for_a_while_is_looked_at_again(link, keys, monkeypatch):
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(admission, "RETRY_SECONDS", 0.01)
    said = []
    loop = keys / "registered" / "loop.pub"
    with Admission(link, keys / "registered", said.append).watched():
        loop.symlink_to(loop)
        eventually(lambda: any("could not be applied" in line for line in said), "it is said")
        loop.unlink()
        add_device(keys, "c")
        eventually(lambda: "register c" in link.calls, "the next device is registered")
