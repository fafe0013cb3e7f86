"""The recipes of deploy/proxies: clients that can reach nothing but the proxy train, over TLS that it passes through."""

import json

import pytest

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

CLIENTS = 2
OTHER_NAME = """
import socket, ssl
context = ssl._create_unverified_context()
try:
    context.wrap_socket(socket.create_connection(("server", 443), 30), server_hostname="www.example.org")
except (OSError, ssl.SSLError):
    print("nobody")
else:
    print("somebody")
"""
DIRECTLY = """
import socket
try:
    socket.create_connection(("{}", 9092), 5)
except OSError:
    print("no way")
"""


@pytest.mark.parametrize("recipe", ["nginx.conf", "haproxy.cfg", "envoy.yaml"])
def test_devices_train_through_a_proxy_that_passes_tls_by_its_name(federation, request, recipe):
    local = federation(CLIENTS=str(CLIENTS), TRUE_GROUPS="2", ROUNDS="2", PROXY_FILE=recipe, OPTIONS="--keep-waiting")
    local.files.append(request.path.with_name("compose.proxies.yaml"))
    local.up()
    (server,) = local.containers("server")
    client = local.containers("client")[0]
    inspected = json.loads(local.docker("inspect", server))[0]["NetworkSettings"]["Networks"].values()
    (address,) = [network["IPAddress"] for network in inspected]
    assert local.docker("exec", client, "python", "-c", DIRECTLY.format(address)) == "no way\n"
    # Another name is the web server's, which is not there.
    assert local.docker("exec", client, "python", "-c", OTHER_NAME) == "nobody\n"
    local.wait_for(lambda: (local.folder / "summary.json").exists(), "the result")
    assert [(line["replies"], line["failures"]) for line in local.rounds()] == [(CLIENTS, 0)] * 2
    assert set(json.loads((local.folder / "summary.json").read_text())["accuracy_by_client"]) == {
        "device-0",
        "device-1",
    }
