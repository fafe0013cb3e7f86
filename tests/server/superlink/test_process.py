import contextlib
import datetime
import ipaddress
import json
import os
import re
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from client.supernode.launcher import SuperNode, SuperNodeSettings, start_supernode
from client.trust.policy import ALLOWED_PROCEDURES, ANY_PROCEDURE, AppTrust
from common.errors import BouquetError
from common.system.ports import free_port
from common.system.process_group import ProcessGroup
from common.trust.app_bundle import fab_hash
from server.superlink.certificates import Certificates
from server.superlink.process import SuperLink, run_status, start_superlink, submit_run
from tests.helpers.real_processes import processes_tagged, wait_for_run, wait_until_connected
from tests.helpers.waiting_for import eventually

PROJECT = """
[project]
name = "stock"
version = "1.0.0"
description = "A tiny app that knows nothing of Bouquet"
license = "Apache-2.0"
# Would fail to install; nothing is to be installed.
dependencies = ["no-such-distribution-of-bouquet"]
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "stock.server:app"
clientapp = "stock.client:app"
[tool.flwr.app.config]
nodes = 2
text = "default"
fail = false
sleep = 0.0
"""
CLIENT = """
import os, time
print("ClientApp imported", flush=True)
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()
@app.query()
def answer(message, context):
    print("ClientApp speaking", flush=True)
    time.sleep(message.content["config"]["sleep"])
    config = ConfigRecord({"variable": os.environ["STOCK_CLIENT"], **context.node_config})
    return Message(RecordDict({"config": config}), reply_to=message)
"""
SERVER = """
import json, os, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    print("ServerApp speaking", flush=True)
    if context.run_config["fail"]:
        raise ValueError("it was told to fail")
    while len(list(grid.get_node_ids())) < context.run_config["nodes"]:
        time.sleep(0.1)
    content = RecordDict({"config": ConfigRecord({"sleep": context.run_config["sleep"]})})
    waiting = set(grid.push_messages([Message(content, node, "query") for node in grid.get_node_ids()]))
    print("messages are out", flush=True)
    replies = []
    while waiting:
        for reply in grid.pull_messages(waiting):
            waiting.remove(reply.metadata.reply_to_message_id)
            error = reply.error if reply.has_error() else None
            replies.append({"error": error.code, "reason": error.reason} if error else dict(reply.content["config"]))
        time.sleep(0.1)
    with open(os.environ["STOCK_RESULT"], "w") as file:
        json.dump({"text": context.run_config["text"], "replies": replies}, file)
"""


def write_stock_app(directory: Path) -> Path:
    (directory / "stock").mkdir(parents=True)
    (directory / "pyproject.toml").write_text(PROJECT)
    (directory / "stock" / "client.py").write_text(CLIENT)
    (directory / "stock" / "server.py").write_text(SERVER)
    return directory


@dataclass
class Federation:
    group: ProcessGroup
    superlink: SuperLink
    nodes: list[SuperNode]
    app: Path
    result: Path

    def run(self, log: Path, **config: object) -> tuple[str, str]:
        run_id = submit_run(self.superlink, self.app, config)
        return wait_for_run(self.superlink, run_id, log).status, log.read_text()


def start_node(group: ProcessGroup, server: str, folder: Path, number: int, trust: AppTrust) -> SuperNode:
    settings = SuperNodeSettings(
        server,
        folder / f"node-{number}",
        node_config={"number": number, "name": f'it\'s "node" {number}', "share": 0.5, "last": number == 1},
        insecure=True,
        environment={"STOCK_CLIENT": f"client value {number}"},
        trust=trust,
    )
    return start_supernode(group, settings, f"SuperNode {number}")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("federation")
    with ProcessGroup() as group:
        result = folder / "result.json"
        address = f"127.0.0.1:{free_port()}"
        superlink = start_superlink(
            group, folder / "server", fleet_address=address, environment={"STOCK_RESULT": str(result)}
        )
        app = write_stock_app(folder / "app")
        trusts = [AppTrust(hashes=frozenset({fab_hash(app)})), AppTrust(anything=True)]
        nodes = [start_node(group, address, folder, number, trust) for number, trust in enumerate(trusts)]
        for node in nodes:
            wait_until_connected(node)
        yield Federation(group, superlink, nodes, app, result)
    assert processes_tagged(group.tag) == []


@pytest.mark.federation
def test_a_run_reaches_the_devices_and_comes_back(federation: Federation, tmp_path: Path) -> None:
    status, log = federation.run(tmp_path / "run.log", text='it\'s "quoted" \\ text')
    assert status == "finished:completed"
    assert "ServerApp speaking" in log
    result = json.loads(federation.result.read_text())
    assert result["text"] == 'it\'s "quoted" \\ text'
    assert sorted(result["replies"], key=lambda reply: reply["number"]) == [
        {
            "variable": f"client value {number}",
            "number": number,
            "name": f'it\'s "node" {number}',
            "share": 0.5,
            "last": number == 1,
            **({ALLOWED_PROCEDURES: ANY_PROCEDURE} if number == 1 else {}),  # it trusts any app
        }
        for number in range(2)
    ]
    for node in federation.nodes:
        assert "ClientApp speaking" in node.log_file.read_text()


@pytest.mark.federation
def test_a_run_that_fails_is_told_with_its_traceback(federation: Federation, tmp_path: Path) -> None:
    run_id = submit_run(federation.superlink, federation.app, {"fail": True})
    status = wait_for_run(federation.superlink, run_id, tmp_path / "run.log")
    assert (status.status, status.completed) == ("finished:failed", False)
    assert status.details == "ServerApp failed with exception: it was told to fail"
    assert "ValueError: it was told to fail" in (tmp_path / "run.log").read_text()


@pytest.mark.federation
def test_a_run_config_key_that_the_app_lacks(federation: Federation) -> None:
    with pytest.raises(BouquetError, match=r"no setting 'no-such-key' to override; it has fail, nodes, sleep, te"):
        submit_run(federation.superlink, federation.app, {"no-such-key": 1})


@pytest.mark.federation
def test_an_app_that_is_not_there(federation: Federation, tmp_path: Path) -> None:
    with pytest.raises(BouquetError, match=re.escape(str(tmp_path / "pyproject.toml"))):
        submit_run(federation.superlink, tmp_path)


@pytest.mark.federation
def test_the_status_of_an_unknown_run(federation: Federation) -> None:
    with pytest.raises(BouquetError, match="did not tell of run 7: "):
        run_status(federation.superlink, 7)


@pytest.mark.federation
def test_a_second_superlink_on_the_same_port(federation: Federation, tmp_path: Path) -> None:
    before = len(federation.group.processes)
    with pytest.raises(BouquetError, match=r"Port \d+ on 127\.0\.0\.1 is in use, needed for the devices"):
        start_superlink(federation.group, tmp_path, fleet_address=federation.superlink.fleet_address)
    assert len(federation.group.processes) == before


@pytest.mark.federation
def test_a_device_does_not_run_an_app_that_its_owner_does_not_trust(federation: Federation, tmp_path: Path) -> None:
    """The others run it, because one has its hash and one trusts everything; nothing of it is on this one's disk."""
    wary = start_node(federation.group, federation.superlink.fleet_address, tmp_path, 2, AppTrust())
    wait_until_connected(wary)
    status, _ = federation.run(tmp_path / "run.log", nodes=3)
    assert status == "finished:completed"
    replies = json.loads(federation.result.read_text())["replies"]
    assert sorted(reply.get("number", -1) for reply in replies) == [-1, 0, 1]
    (reason,) = [reply["reason"] for reply in replies if "error" in reply]
    assert f"--trust-app {fab_hash(federation.app)}" in reason
    assert "the server's differs: in stock/client.py, stock/server.py, client/" in reason
    log = wary.log_file.read_text()
    assert f"Refused to run the server's app. {reason}" in log
    assert "ClientApp imported" not in log
    assert "ClientApp imported" in federation.nodes[0].log_file.read_text()
    assert not list(wary.log_file.parent.glob("flower/apps/*"))
    federation.group.stop(wary.process)


@pytest.mark.federation
def test_a_superlink_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    with ProcessGroup() as group:
        superlink = start_superlink(group, tmp_path / "server", fleet_address=f"127.0.0.1:{free_port()}")
        eventually(lambda: len(superlink.process.pids) == 2, "its flower-superexec is there")
        os.kill(superlink.process.pids[0], signal.SIGKILL)
        assert superlink.process.wait(60) == 128 + signal.SIGKILL
        group.stop(superlink.gate)
        assert processes_tagged(group.tag) == []


def listening(pids: Sequence[int]) -> dict[int, str]:
    """By port, the address in hexadecimal digits on which one of these processes listens."""
    mine = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                mine.add(os.readlink(entry))
    found = {}
    for line in [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in mine:
            address, _, port = words[1].partition(":")
            found[int(port, 16)] = address
    return found


@pytest.mark.federation
def test_what_has_no_password_is_reached_from_this_machine_alone(tmp_path: Path) -> None:
    """Linux answers on all of 127.0.0.0/8, so that 127.0.0.2 stands for any other address of the server's."""
    port = free_port()
    with ProcessGroup() as group:
        superlink = start_superlink(group, tmp_path, fleet_address=f"0.0.0.0:{port}")
        socket.create_connection(("127.0.0.2", port), 10).close()
        _, _, runtime = superlink.runtime_address.rpartition(":")
        socket.create_connection(("127.0.0.1", int(runtime)), 10).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", int(runtime)), 10)
        ports = listening([*superlink.process.pids, *superlink.gate.pids])
        assert ports.pop(int(runtime)) == "0100007F"  # 127.0.0.1
        assert set(ports) == {port}


def certificate_for(name: str, folder: Path) -> Certificates:
    """A certificate for one IP address, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Bouquet test")])
    today = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(name))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir()
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    (folder / "ca.pem").write_bytes(pem)
    (folder / "server.pem").write_bytes(pem)
    (folder / "server.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")


@pytest.mark.federation
def test_a_certificate_need_not_name_this_machine(tmp_path: Path) -> None:
    """Devices alone look at it."""
    certificates = certificate_for("192.0.2.1", tmp_path / "tls")
    with ProcessGroup() as group:
        address = f"127.0.0.1:{free_port()}"
        superlink = start_superlink(group, tmp_path / "server", fleet_address=address, certificates=certificates)
        with pytest.raises(BouquetError, match="did not tell of run 7: "):
            run_status(superlink, 7)


def test_a_certificate_that_is_not_there(tmp_path: Path) -> None:
    missing = Certificates(tmp_path / "ca.pem", tmp_path / "server.pem", tmp_path / "server.key")
    with ProcessGroup() as group, pytest.raises(BouquetError, match=rf"no certificate or key {missing.authority}"):
        start_superlink(group, tmp_path, fleet_address=f"127.0.0.1:{free_port()}", certificates=missing)


def test_authentication_needs_certificates(tmp_path: Path) -> None:
    with ProcessGroup() as group, pytest.raises(BouquetError, match="over TLS only"):
        start_superlink(group, tmp_path, fleet_address=f"127.0.0.1:{free_port()}", supernode_auth=True)


def test_the_runtime_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as server, ProcessGroup() as group:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(BouquetError, match=rf"Port {port} on 127\.0\.0\.1 is in use, needed for SuperLink's Runt"):
            start_superlink(group, tmp_path, fleet_address=f"127.0.0.1:{free_port()}", runtime_port=port)
