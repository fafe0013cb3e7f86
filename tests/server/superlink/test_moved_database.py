"""A server's database from Flower 1.39: the devices that it admitted, and the run that was cut off, at today's."""

import contextlib
import sqlite3
from pathlib import Path

import pytest
from flwr.supercore.interceptors import RuntimeVersionClientInterceptor
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

from bouquet.keys.store import add_device, init_keys
from client.supernode import fleet_connection
from common.system.ports import free_port
from common.system.process_group import ProcessGroup
from common.trust.public_keys import read_public_key
from server.fleet.superlink_db import connections
from server.superlink.certificates import Certificates
from server.superlink.process import register_supernodes, run_status, start_superlink
from tests.helpers.wire_device import WireDevice

OLD = Path(__file__).with_name("database_of_1_39.sql")
RUN = 7923793903821534749
pytestmark = pytest.mark.timeout(600)


class Older(RuntimeVersionClientInterceptor):
    """Says with each call that a device runs Flower 1.39."""

    def __init__(self, component: str) -> None:
        super().__init__(component)
        self._metadata = RuntimeVersionMetadata.from_local_component(component, package_version_value="1.39.0")


def test_devices_of_1_39_are_known_by_the_ids_they_had(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet_connection, "RuntimeVersionClientInterceptor", Older)
    keys = tmp_path / "keys"
    init_keys(keys, ["127.0.0.1"])
    folder = add_device(keys, "garden-pi")
    public = keys / "registered" / "garden-pi.pub"
    database = tmp_path / "superlink.db"
    with contextlib.closing(sqlite3.connect(database)) as opened:
        opened.executescript(OLD.read_text(encoding="utf-8"))
        (node,) = opened.execute("SELECT node_id FROM node LIMIT 1").fetchone()
        opened.execute("UPDATE node SET public_key = ? WHERE node_id = ?", (read_public_key(public).pem, node))
        opened.commit()
    was = connections(database)
    certificates = Certificates(keys / "ca.crt", keys / "server.crt", keys / "server.key")
    with ProcessGroup() as group:
        superlink = start_superlink(
            group,
            tmp_path / "superlink",
            fleet_address=f"127.0.0.1:{free_port()}",
            certificates=certificates,
            supernode_auth=True,
            database=database,
            timeout=300.0,
        )
        assert list(register_supernodes(superlink, [public])) == [None]  # it is admitted
        device = WireDevice(superlink.fleet_address, folder)
        assert device.node.node_id == node % 2**64
        assert device.heartbeat()
        assert device.pull() is None
        device.close()
        assert not run_status(superlink, RUN).completed
        assert {known: seen.key for known, seen in connections(database).items()} == {
            known: seen.key for known, seen in was.items()
        }
