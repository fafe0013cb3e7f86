"""compose.yaml as shipped: rounds over mutual TLS, through a killed client, a killed server and a renewed key."""

import json
import re

import pytest

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

CLIENTS = 3
ROUNDS = "200"
# FedPer's head never leaves a device: who comes back without its state starts with a head that knows nothing.
SETTINGS = {
    "CLIENTS": str(CLIENTS),
    "TRUE_GROUPS": "2",
    # Enough of them that the server is killed before they are over.
    "ROUNDS": ROUNDS,
    "STRATEGY": "fedper",
    # Longer than a device counts as there that went without a word, and so is named.
    "OPTIONS": "--set server.straggler_grace=180",
}
SERVERS_KEYS = """
import json, pathlib
print(json.dumps(sorted(p.name for p in pathlib.Path("/keys").rglob("*.key") if p.exists())))
"""
LOOK_AROUND = """
import importlib.util, json, os, pathlib, shutil
def writable(folder):
    try:
        (pathlib.Path(folder) / "probe").touch()
    except OSError:
        return False
    return True
print(json.dumps({
    "user": os.getuid(),
    "capabilities": int(next(l for l in open("/proc/self/status") if l.startswith("CapEff")).split()[1], 16),
    "writable": [f for f in ("/", "/opt/bouquet", "/keys", "/runs", "/state", "/tmp") if writable(f)],
    "keys": sorted(p.name for p in pathlib.Path("/keys").rglob("*.key")),
    "programs": [name for name in ("gcc", "cc", "make", "uv", "ray", "curl") if shutil.which(name)],
    "modules": [name for name in ("ray", "uv_build", "pytest") if importlib.util.find_spec(name)],
}))
"""
# The server itself, below Docker's own process 1.
KILL_SERVER = """
import os, pathlib
for about in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    if b"bouquet\\0server" in about.read_bytes() and about.parent.name != "1":
        os.kill(int(about.parent.name), 9)
"""
KEPT = """
import json, pathlib
found = pathlib.Path("/state/device-{}").glob("run-*/round-*.safetensors")
print(json.dumps(dict(files=sorted(p.name for p in found))))
"""


def test_a_federation_outlives_a_killed_client_a_killed_server_and_a_renewed_key(federation):
    local = federation(**SETTINGS)
    local.up()
    (server,) = local.containers("server")
    clients = local.containers("client")
    assert len(clients) == CLIENTS
    assert json.loads(local.docker("exec", server, "python", "-c", SERVERS_KEYS)) == ["server.key"]

    # Power is cut in the middle of a round, which goes on without this device, and names it.
    local.wait_for(lambda: len(local.rounds()) >= 1, "the first round")
    victim, renewed = clients[0], clients[1]
    local.docker("kill", victim)
    device, other = (
        int(re.search(r"This container is device-(\d+)\.", local.logs(client))[1]) for client in (victim, renewed)
    )
    name = f"device-{device}"  # as its key is called
    local.wait_for(lambda: any(name in line["failed"] for line in local.rounds()), f"a round without {name}")

    # The server crashes, Docker starts it again, and it waits for all of its devices.
    local.docker("exec", server, "python", "-c", KILL_SERVER)
    local.wait_for(lambda: "The server is back" in local.logs(renewed), "the server")
    assert local.logs(server).count("Listening on") == 2
    assert len(local.rounds()) < int(ROUNDS)
    # Without the devices' own folders, so that the new one comes over the stream.
    owner = "{0[BOUQUET_UID]}:{0[BOUQUET_GID]}".format({"BOUQUET_UID": 1000, "BOUQUET_GID": 1000} | local.environment)
    volumes = [f"--volume={local.project}_{name}" for name in ("authority:/keys", "ca-key:/authority")]
    renew = ("keys", "renew", f"device-{other}", "--dir", "/keys")
    local.docker("run", "--rm", "--user", owner, *volumes, "bouquet-client", *renew)
    local.wait_for(lambda: "sent a new certificate for this device" in local.logs(renewed), "the new certificate")
    local.docker("start", victim)
    kept = json.loads(local.docker("exec", victim, "python", "-c", KEPT.format(device)))
    assert kept["files"], "the state of before is there"
    around = json.loads(local.docker("exec", victim, "python", "-c", LOOK_AROUND))
    back = len(local.rounds())
    local.wait_for(lambda: any(line["replies"] == CLIENTS for line in local.rounds()[back:]), f"a round with {name}")
    local.wait_for(
        lambda: all(not local.state(container)["Running"] for container in [server, *clients]), "the end of all"
    )

    assert {local.state(container)["ExitCode"] for container in [server, *clients]} == {0}
    assert [line["round"] for line in local.rounds()] == list(range(1, int(ROUNDS) + 1))
    summary = json.loads((local.folder / "summary.json").read_text())
    assert set(summary["accuracy_by_client"]) == {f"device-{number}" for number in range(CLIENTS)}
    # with a personal head; with a fresh one, ten classes are guessed at
    assert min(summary["accuracy_by_client"].values()) > 0.4
    report = (local.folder / "report.html").read_text()
    assert all(client in report for client in summary["accuracy_by_client"])

    # the same slot in the volume, so the same key and the same device
    assert re.findall(r"This container is (device-\d+)\.", local.logs(victim)) == [f"device-{device}"] * 2
    assert "over TLS, registered devices only" in local.logs(server)

    assert around == {
        "user": int(local.environment.get("BOUQUET_UID", "1000")),
        "capabilities": 0,
        "writable": ["/state", "/tmp"],
        "keys": ["device.key"] * CLIENTS,  # not the authority's, not the server's
        "programs": [],
        "modules": [],
    }


def test_images_stop_at_once_and_say_whether_they_are_well(federation):
    local = federation(CLIENTS="2", TRUE_GROUPS="2")
    local.compose("build", "server", "client")
    # alone, so it looks for its server for ever, and is well
    client = local.docker(
        "run", "--detach", "--read-only", "--tmpfs", "/tmp", "--init", "bouquet-client", *LONELY
    ).strip()
    try:
        local.wait_for(lambda: "cannot be reached" in local.logs(client), "a look for the server")
        local.docker("exec", client, "python", "-m", "bouquet.common.system.health")
        probe = "from bouquet.common.system.health import main; print(main(['127.0.0.1:9']))"
        assert "does not answer" in local.docker("exec", client, "python", "-c", probe)
        local.docker("stop", client)
        # SIGTERM sufficed; SIGKILL would have been 137
        assert local.state(client)["ExitCode"] == 143
    finally:
        local.docker("rm", "--force", client)


LONELY = ("client", "--server", "127.0.0.1:9", "--partition-id", "0", "--state-dir", "/tmp/state", "--insecure")
