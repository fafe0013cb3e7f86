"""The recipes of deploy/proxies: clients that reach nothing but the proxy train, over TLS that it passes through."""

import json

import pytest

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

CLIENTS = 2
WHO_IS_THERE = """
import json, socket, ssl, sys
def answers(place, name):
    context = ssl._create_unverified_context()
    try:
        with socket.create_connection(place, 10) as there, context.wrap_socket(there, server_hostname=name):
            return True
    except OSError:
        return False
by_name = {name: answers(("server", 443), name) for name in ("server", "www.example.org")}
print(json.dumps({**by_name, "directly": answers((sys.argv[1], 9092), "server")}))
"""


@pytest.mark.parametrize("recipe", ["nginx.conf", "haproxy.cfg", "envoy.yaml"])
def test_devices_train_through_a_proxy_that_passes_tls_by_its_name(federation, request, recipe):
    options = "--keep-waiting --set server.straggler_grace=600"
    local = federation(CLIENTS=str(CLIENTS), TRUE_GROUPS="2", ROUNDS="2", PROXY_FILE=recipe, OPTIONS=options)
    local.files.append(request.path.with_name("compose.proxies.yaml"))
    local.up()
    local.wait_for(lambda: (local.folder / "summary.json").exists(), "the result")
    assert [(line["replies"], line["failures"]) for line in local.rounds()] == [(CLIENTS, 0)] * 2
    assert set(json.loads((local.folder / "summary.json").read_text())["accuracy_by_client"]) == {
        "device-0",
        "device-1",
    }

    (server,) = local.containers("server")
    inspected = json.loads(local.docker("inspect", server))[0]["NetworkSettings"]["Networks"].values()
    (address,) = [network["IPAddress"] for network in inspected]
    ask = ("run", "--rm", "--no-deps", "--entrypoint", "python", "client", "-c", WHO_IS_THERE, address)
    # The other name is a web server's, and here there is none.
    assert json.loads(local.compose(*ask)) == {"server": True, "www.example.org": False, "directly": False}
