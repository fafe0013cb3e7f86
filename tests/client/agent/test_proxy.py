"""The proxy that gRPC would take, and what is said of one that does not connect."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
import pytest

from bouquet.client.agent.proxy import grpc_environment, proxy_variable
from bouquet.client.agent.reachability import ServerUnreachable, check_server
from bouquet.common.system.ports import free_port, split_address
from tests.helpers.reached_servers import SECONDS, Federation, answering, check, listening


@pytest.mark.parametrize("insecure", [True, False])
def test_dockers_proxy_for_a_server_that_is_not_up_yet(insecure: bool) -> None:
    with answering(b"") as address, pytest.raises(ServerUnreachable, match=f"{address} accepts.*still be starting"):
        check_server(address, insecure=insecure, authority=None)


@dataclass
class Asked:
    """A proxy's address, and the headers of the requests that it was sent."""

    address: str = ""
    heads: list[str] = field(default_factory=list)


@contextmanager
def connect_proxy(server: str, *, answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> Iterator[Asked]:
    """An HTTP proxy that answers, and, if that is not a refusal, connects to ``server`` whomever it is asked for."""
    asked = Asked()

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                sink.sendall(part)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def serve(connection: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n") and (byte := connection.recv(1)):
            head += byte
        if not head:  # it is asked whether somebody is there
            return
        asked.heads.append(head.decode())
        if b" 200 " not in answer:
            connection.sendall(answer)
            return
        with socket.create_connection(split_address(server), timeout=SECONDS) as onward:
            connection.sendall(answer)
            back = threading.Thread(target=pump, args=(onward, connection))
            back.start()
            pump(connection, onward)
            back.join()

    with listening(serve) as asked.address:
        yield asked


def grpc_connects(address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
    """A channel as the agent makes one, until it is ready."""
    own = [("grpc.use_local_subchannel_pool", 1)]  # else a connection of a test before would do
    channel = grpc.secure_channel(address, credentials, own) if credentials else grpc.insecure_channel(address, own)
    with channel:
        grpc.channel_ready_future(channel).result(SECONDS)


def set_environment(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], proxy: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("PROXY", proxy))
    for name, value in grpc_environment(os.environ).items():
        monkeypatch.setenv(name, value)


HERE = {"https_proxy": "http://PROXY"}


@pytest.mark.parametrize(
    ("variables", "through"),
    [
        (HERE, True),
        ({"HTTPS_PROXY": "http://PROXY"}, True),
        ({"http_proxy": "http://PROXY"}, True),
        ({"HTTP_PROXY": "http://PROXY"}, False),
        ({"https_proxy": "", "HTTPS_PROXY": "http://PROXY"}, False),
        ({"HTTPS_PROXY": "http://PROXY", "http_proxy": "http://127.0.0.1:1"}, True),
        ({"https_proxy": "PROXY"}, False),
        ({"https_proxy": "https://PROXY"}, False),
        ({**HERE, "NO_PROXY": "127.0.0.1"}, False),
        ({**HERE, "no_proxy": "", "NO_PROXY": "127.0.0.1"}, True),
        ({**HERE, "no_proxy": "server.local, 127.0.0.1"}, False),
        ({**HERE, "no_proxy": "127.0.0.0/255.0.0.0"}, True),
        ({**HERE, "no_proxy": "*"}, True),
        ({**HERE, "no_proxy": "0.0.1"}, False),
        ({**HERE, "no_proxy": "127.0.0.1", "no_grpc_proxy": ""}, True),
        ({**HERE, "no_grpc_proxy": "127.0.0.1"}, False),
    ],
)
def test_the_proxy_is_grpcs(
    grpc_server: str, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], through: bool
) -> None:
    with connect_proxy(grpc_server) as proxy:
        before = {name: value.replace("PROXY", proxy.address) for name, value in variables.items()}
        set_environment(monkeypatch, variables, proxy.address)
        assert (proxy_variable(grpc_server, before) is not None) == through
        check_server(grpc_server, insecure=True, authority=None, timeout=SECONDS)
        grpc_connects(grpc_server)
    assert len(proxy.heads) == (1 if through else 0)


@pytest.mark.parametrize(
    ("host", "listed", "through"),
    [
        ("localhost", "LOCALHOST", False),
        ("LocalHost", "localhost", False),
        ("server.localhost", "localhost", False),
        ("server.localhost", ".localhost", False),
        ("server.localhost", "*.localhost", True),
        ("[::1]", "[::1]", True),
    ],
)
def test_whom_no_proxy_is_for(
    grpc_server: str, monkeypatch: pytest.MonkeyPatch, host: str, listed: str, through: bool
) -> None:
    """A server that is not reached directly does not matter: whether the proxy is asked does."""
    address = f"{host}:{free_port()}"
    with connect_proxy(grpc_server) as proxy:
        set_environment(monkeypatch, {**HERE, "no_proxy": listed}, proxy.address)
        assert (proxy_variable(address, os.environ) is not None) == through
        if through:
            check_server(address, insecure=True, authority=None, timeout=SECONDS)
            grpc_connects(address)
            assert [head.split()[1] for head in proxy.heads] == [address]
            return
        with pytest.raises(ServerUnreachable):
            check_server(address, insecure=True, authority=None, timeout=SECONDS)
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary("/a/b")(b"", timeout=SECONDS)
    assert proxy.heads == []


def test_the_environment_of_grpc() -> None:
    upper = {"HTTPS_PROXY": "http://a:1", "NO_PROXY": "b", "HTTP_PROXY": "http://c:1"}
    assert grpc_environment(upper) == {"https_proxy": "http://a:1", "no_proxy": "b"}
    assert grpc_environment({**upper, "https_proxy": "", "no_proxy": "d"}) == {}
    assert grpc_environment({}) == {}


def test_tls_through_a_proxy_which_alone_knows_the_servers_name(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = federation.device
    credentials = grpc.ssl_channel_credentials(
        *(file.read_bytes() for file in (federation.authority.certificate, device.key, device.certificate))
    )
    with connect_proxy(federation.address) as proxy:
        set_environment(monkeypatch, {"HTTPS_PROXY": "http://PROXY"}, proxy.address)
        check(federation, "server.invalid:9092")
        grpc_connects("server.invalid:9092", credentials)
    assert {head.split("\r\n")[0] for head in proxy.heads} == {"CONNECT server.invalid:9092 HTTP/1.1"}


def test_of_a_proxy_that_does_not_connect_grpcs_error_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the agent and `bouquet check` do."""
    with connect_proxy("", answer=b"HTTP/1.1 407 No\r\n\r\n") as proxy:
        set_environment(monkeypatch, {"https_proxy": "http://ann:secret@PROXY"}, proxy.address)
        check_server("server.invalid:9092", insecure=False, authority=None, timeout=SECONDS)
        own = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel("server.invalid:9092", own) as channel, pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary("/a/b")(b"", timeout=SECONDS)
    assert "407" in raised.value.details()
    assert "secret" not in raised.value.details()
