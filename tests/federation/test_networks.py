"""Ways to a server: IPv6, and HTTP proxies that alone know its name, named in lower and in upper case."""

import contextlib
import json
import select
import socket
import socketserver
import threading

import pytest

from bouquet.keys.store import renew_server
from tests.helpers.two_classes import settings_of

pytestmark = pytest.mark.federation

NAME = "server.invalid:9092"  # known to the proxy alone
VARIABLES = ("https_proxy", "HTTPS_PROXY")
DEVICES = ("six", *VARIABLES)


class Proxy(socketserver.ThreadingTCPServer):
    """Connects whoever asks for `NAME` to ``target``; ``asked`` has the first line of each request."""

    daemon_threads = True

    def __init__(self, target):
        super().__init__(("127.0.0.1", 0), None)
        self.target, self.asked = target, []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def finish_request(self, request, client_address):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            if not (byte := request.recv(1)):
                return  # somebody who looked whether it is there
            head += byte
        self.asked.append(head.split(b"\r\n")[0].decode())
        with contextlib.suppress(OSError), socket.create_connection(self.target) as server:
            request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            other = {request: server, server: request}
            while True:
                for end in select.select(list(other), [], [])[0]:
                    if not (data := end.recv(65536)):
                        return
                    other[end].sendall(data)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def way(monkeypatch):
    """Set the proxy of what is started from now on, in one variable alone."""

    def use(variable, url):
        for name in ("grpc_proxy", "http_proxy", "no_proxy", "NO_PROXY", "no_grpc_proxy", *VARIABLES):
            monkeypatch.delenv(name, raising=False)
        if variable:
            monkeypatch.setenv(variable, url)

    return use


def test_devices_over_ipv6_and_through_proxies(commands, own_data, way):
    keys = commands.keys(*DEVICES)
    renew_server(keys, ["::1", NAME.partition(":")[0]])
    more = f"\n[server]\nmin_clients = {len(DEVICES)}\nstraggler_grace = 600\n"
    (commands.folder / "networks.toml").write_text(settings_of("networks", 2, more=more))
    way("", "")
    server = commands.start("server", "server", "--host", "::", "--port", str(commands.port), "networks.toml")
    commands.wait_for(lambda: "Listening on" in commands.log("server"))
    proxy = Proxy(("127.0.0.1", commands.port))
    addresses = {"six": f"[::1]:{commands.port}", **dict.fromkeys(VARIABLES, NAME)}
    for name, address in addresses.items():
        data = own_data(name, False)
        way(name if name in VARIABLES else "", proxy.url)
        where = ("--server", address, "--keys", f"devices/{name}", "--data", str(data))
        commands.run(f"check-{name}", "check", *where)
        by_proxy = f"{NAME} is reached through the proxy that {name} names." in commands.log(f"check-{name}")
        assert by_proxy == (name in VARIABLES)
        commands.start(name, "client", *where, "--state-dir", f"state-{name}")
    commands.wait_for_end(server)
    lines = (commands.folder / "runs" / "networks" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["replies"] for line in lines] == [len(DEVICES)] * 2
    assert {*proxy.asked} == {f"CONNECT {NAME} HTTP/1.1"}

    # A proxy that is dead is named by gRPC.
    proxy.shutdown()
    proxy.server_close()
    for name in VARIABLES:
        way(name, proxy.url)
        commands.run("dead", "check", "--server", NAME, "--keys", f"devices/{name}", code=1)
    assert commands.log("dead").count(f"{proxy.server_address[1]}: ") >= len(VARIABLES)
