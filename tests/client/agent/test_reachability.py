import contextlib
import datetime
import ipaddress
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bouquet.client.agent.proxy import find_proxy, grpc_environment
from bouquet.client.agent.reachability import ServerMismatch, ServerUnreachable, check_server
from bouquet.common.errors import BouquetError
from bouquet.common.system.ports import free_port, split_address

SECONDS = 30  # a limit, not a wait
DAY = datetime.timedelta(days=1)
PROXY_NAMES = ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy")
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXY_NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@contextmanager
def listening(serve: Callable[[socket.socket], None], host: str = "127.0.0.1") -> Iterator[str]:
    """A server that hands each connection to ``serve`` in a thread of its own, and closes it then; its address."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        server.bind((host, 0))
        server.listen()
        threads: list[threading.Thread] = []

        def handle(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                serve(connection)

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.settimeout(SECONDS)
                threads.append(threading.Thread(target=handle, args=(connection,)))
                threads[-1].start()

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        port = server.getsockname()[1]
        try:
            yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            acceptor.join()
            for thread in threads:
                thread.join()


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that reads, sends ``answer`` and closes, to each connection; its address."""

    def serve(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(answer)

    with listening(serve) as address:
        yield address


@pytest.fixture(scope="module")
def grpc_server() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture(scope="module")
def grpc_server_on_ipv6() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    try:
        port = server.add_insecure_port("[::1]:0")
    except RuntimeError:
        pytest.skip("no IPv6 here")
    server.start()
    yield f"[::1]:{port}"
    server.stop(None).wait()


# Without certificates


def test_a_grpc_server_passes(grpc_server: str) -> None:
    check_server(grpc_server, insecure=True, authority=None)


def test_an_ipv6_address(grpc_server_on_ipv6: str) -> None:
    check_server(grpc_server_on_ipv6, insecure=True, authority=None)


def test_tls_asked_of_a_server_without(grpc_server: str) -> None:
    with pytest.raises(ServerMismatch, match=f"{grpc_server} does not speak TLS.*certificates.*--insecure"):
        check_server(grpc_server, insecure=False, authority=None)


def test_nothing_listens() -> None:
    port = free_port()
    with pytest.raises(ServerUnreachable, match=rf"127\.0\.0\.1:{port} cannot be reached: .*nothing listens on port"):
        check_server(f"127.0.0.1:{port}", insecure=True, authority=None)


def test_a_name_that_nobody_has() -> None:
    with pytest.raises(ServerUnreachable, match=r"the name 'server\.invalid' is unknown here"):
        check_server("server.invalid:9092", insecure=True, authority=None)


@pytest.mark.parametrize("name", ["server..local", ".local", 64 * "x"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(BouquetError, match=rf"{re.escape(name)}' is not a name that a server can have"):
        check_server(f"{name}:9092", insecure=False, authority=None)


def test_a_firewall(monkeypatch: pytest.MonkeyPatch) -> None:
    def dropped(*_: object, **__: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", dropped)
    with pytest.raises(ServerUnreachable, match=r"no answer from 192\.0\.2\.1\. .* no firewall drops port 9092"):
        check_server("192.0.2.1:9092", insecure=True, authority=None)


@pytest.mark.parametrize("insecure", [True, False])
def test_dockers_proxy_for_a_server_that_is_not_up_yet(insecure: bool) -> None:
    with answering(b"") as address, pytest.raises(ServerUnreachable, match=f"{address} accepts.*still be starting"):
        check_server(address, insecure=insecure, authority=None)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "An HTTP/1 server"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "Something that does not speak gRPC"),
        (b"?\n", "Something that does not speak gRPC"),
    ],
)
def test_the_port_of_another_program(answer: bytes, found: str) -> None:
    expected = f"{found} answers at {{}}, not Bouquet's server.*9092"
    with answering(answer) as address, pytest.raises(ServerMismatch, match=expected.format(address)):
        check_server(address, insecure=True, authority=None)


# Certificates


@dataclass(frozen=True)
class Pair:
    """The files of a certificate and its key; ``signer`` is the certificate as cryptography has it, and the key."""

    certificate: Path
    key: Path
    signer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] = field(repr=False)


def made(
    folder: Path,
    name: str,
    issuer: Pair | None = None,
    from_day: float = -1,
    to_day: float = 1,
    encrypted: bool = False,
) -> Pair:
    """A pair for 127.0.0.1 and ::1, signed by ``issuer``, valid for these days around now; an authority without one."""
    key = ec.generate_private_key(ec.SECP256R1())
    own_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    above, above_key = issuer.signer if issuer else (None, key)
    now = datetime.datetime.now(datetime.UTC)
    hosts = [x509.IPAddress(ipaddress.ip_address(host)) for host in ("127.0.0.1", "::1")]
    certificate = (
        x509.CertificateBuilder(above.subject if above else own_name, own_name, key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + from_day * DAY)
        .not_valid_after(now + to_day * DAY)
        .add_extension(x509.SubjectAlternativeName([*hosts, x509.DNSName("server.invalid")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .sign(above_key, hashes.SHA256())
    )
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key", (certificate, key))
    pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    encryption = serialization.BestAvailableEncryption(b"?") if encrypted else serialization.NoEncryption()
    pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    return pair


@dataclass(frozen=True)
class Federation:
    """An authority, its server's pair and its device's; the address of a gRPC server that asks for the latter's."""

    folder: Path
    authority: Pair
    server: Pair
    device: Pair
    address: str


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("keys")
    authority = made(folder, "ca", from_day=-9, to_day=9)
    pair = made(folder, "server", authority)
    server = grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials(
        [(pair.key.read_bytes(), pair.certificate.read_bytes())], authority.certificate.read_bytes(), True
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield Federation(folder, authority, pair, made(folder, "device", authority), f"127.0.0.1:{port}")
    server.stop(None).wait()


def check(federation: Federation, address: str | None = None, device: Pair | None = None) -> None:
    """`check_server` with the device's pair, or another."""
    shown = device or federation.device
    check_server(
        address or federation.address,
        insecure=False,
        authority=federation.authority.certificate,
        certificate=shown.certificate,
        private_key=shown.key,
        timeout=SECONDS,
    )


@contextmanager
def openssl_server(
    server: Pair, authority: Pair, *, host: str = "127.0.0.1", newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> Iterator[str]:
    """A server with OpenSSL, which says in an alert what it has against a device; its address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    context.load_cert_chain(server.certificate, server.key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.maximum_version = newest

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(4096)
            secured.sendall(SETTINGS)

    with listening(serve, host) as address:
        yield address


def test_a_device_whose_certificate_is_accepted(federation: Federation) -> None:
    check(federation)


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_certificate_that_a_server_with_openssl_accepts(federation: Federation, newest: ssl.TLSVersion) -> None:
    with openssl_server(federation.server, federation.authority, newest=newest) as address:
        check(federation, address)


def test_tls_at_an_ipv6_address(federation: Federation) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with openssl_server(federation.server, federation.authority, host="::1") as address:
        check(federation, address)


def test_a_server_that_asks_for_a_certificate_and_is_shown_none(federation: Federation) -> None:
    with pytest.raises(ServerMismatch, match=r"asks for a device's certificate, and none was shown\. .*--keys DIR"):
        check_server(federation.address, insecure=False, authority=federation.authority.certificate, timeout=SECONDS)


@pytest.fixture(scope="module")
def refused(federation: Federation) -> dict[str, Pair]:
    folder = federation.folder
    return {
        "of another authority": made(folder, "stranger", made(folder, "another")),
        "of another authority of that name": made(folder, "stranger2", made_beside(folder, "ca")),
        "expired": made(folder, "old", federation.authority, from_day=-3, to_day=-1),
        "not valid yet": made(folder, "new", federation.authority, from_day=1, to_day=3),
    }


def made_beside(folder: Path, name: str) -> Pair:
    """An authority of a name that the folder has already."""
    (folder / "beside").mkdir()
    return made(folder / "beside", name)


ADVICE = {
    "of another authority": "another authority\\? bouquet keys add",
    "of another authority of that name": "another authority\\? bouquet keys add",
    "expired": "Has it expired\\? bouquet keys renew, on the server\\. .*clock says 2",
    "not valid yet": "a clock is wrong: this device's clock says 2",
}


@pytest.mark.parametrize("flaw", ADVICE)
def test_a_certificate_that_grpcs_server_refuses(federation: Federation, refused: dict[str, Pair], flaw: str) -> None:
    """Without an alert; what is wrong is found here."""
    certificate = refused[flaw].certificate
    with pytest.raises(ServerMismatch, match=rf"not accept this device's certificate {certificate} \(.*{ADVICE[flaw]}"):
        check(federation, device=refused[flaw])


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("flaw", ADVICE)
def test_a_certificate_that_is_refused_with_an_alert(
    federation: Federation, refused: dict[str, Pair], flaw: str, newest: ssl.TLSVersion
) -> None:
    with (
        openssl_server(federation.server, federation.authority, newest=newest) as address,
        pytest.raises(ServerMismatch, match=rf"this device's certificate .* \(.*{ADVICE[flaw]}"),
    ):
        check(federation, address, refused[flaw])


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_no_certificate_and_an_alert(federation: Federation, newest: ssl.TLSVersion) -> None:
    with (
        openssl_server(federation.server, federation.authority, newest=newest) as address,
        pytest.raises(ServerMismatch, match="asks for a device's certificate, and none was shown"),
    ):
        check_server(address, insecure=False, authority=federation.authority.certificate, timeout=SECONDS)


def test_a_certificate_that_only_the_server_finds_wrong(federation: Federation, refused: dict[str, Pair]) -> None:
    """It has another authority, or another time: all that may be is said."""
    other = made(federation.folder, "third")
    with (
        openssl_server(federation.server, other) as address,
        pytest.raises(ServerMismatch, match=r"\(unknown ca\)\. W"),
    ):
        check(federation, address)

    def serve(connection: socket.socket) -> None:
        with server_context(federation.server).wrap_socket(connection, server_side=True):
            pass

    with listening(serve) as address, pytest.raises(ServerMismatch, match=r"device\.crt\. Was it .* Has it expired\?"):
        check(federation, address)


def server_context(server: Pair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    return context


def test_a_server_that_is_being_stopped_refuses_nobody(federation: Federation) -> None:
    context = server_context(federation.server)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            server.close()
            with context.wrap_socket(connection, server_side=True):
                pass

        thread = threading.Thread(target=serve)
        port = server.getsockname()[1]
        thread.start()
        with pytest.raises(ServerUnreachable, match="nothing listens"):
            check(federation, f"127.0.0.1:{port}")
        thread.join()


def test_a_tls_server_asked_without_tls(federation: Federation) -> None:
    for server in (
        contextlib.nullcontext(federation.address),
        openssl_server(federation.server, federation.authority),
    ):
        with (
            server as address,
            pytest.raises(ServerMismatch, match=r"speaks TLS, and this device was told not to.*keys"),
        ):
            check_server(address, insecure=True, authority=None)


def test_a_servers_certificate_of_an_authority_that_is_not_trusted(federation: Federation) -> None:
    for authority, source in ((None, "the system's authorities"), (made(federation.folder, "fourth"), "the authority")):
        expected = f"not accepted: .*against {source}.*: copy the server's own ca.crt"
        with pytest.raises(ServerMismatch, match=expected):
            check_server(federation.address, insecure=False, authority=authority.certificate if authority else None)


def test_a_servers_certificate_that_names_it_otherwise(federation: Federation) -> None:
    with pytest.raises(ServerMismatch, match=r"(?s)not accepted: .*localhost.*for localhost: bouquet keys server --ho"):
        check(federation, federation.address.replace("127.0.0.1", "localhost"))


def test_a_servers_certificate_that_has_expired(federation: Federation) -> None:
    old = made(federation.folder, "old-server", federation.authority, from_day=-3, to_day=-1)
    with (
        openssl_server(old, federation.authority) as address,
        pytest.raises(
            ServerMismatch, match=r"has expired, if the time is right.*clock says 2.*bouquet keys server, on"
        ),
    ):
        check(federation, address)


def test_a_device_whose_clock_is_behind(federation: Federation) -> None:
    early = made(federation.folder, "early-server", federation.authority, from_day=1, to_day=3)
    with (
        openssl_server(early, federation.authority) as address,
        pytest.raises(ServerMismatch, match=r"not yet valid\. Set the clock: this device's clock says 2"),
    ):
        check(federation, address)


def test_files_that_are_not_there(federation: Federation, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    device = federation.device
    with pytest.raises(BouquetError, match=rf"no certificate {missing}; copy the server's ca\.crt"):
        check_server("127.0.0.1:1", insecure=False, authority=missing)
    for pair in (Pair(missing, device.key, device.signer), Pair(device.certificate, missing, device.signer)):
        with pytest.raises(BouquetError, match=f"There is no {missing}; copy what bouquet keys add made"):
            check(federation, device=pair)


def test_files_that_cannot_be_used(federation: Federation, tmp_path: Path) -> None:
    other = made(tmp_path, "other", federation.authority)
    broken = tmp_path / "broken.pem"
    broken.write_text("?")
    with pytest.raises(BouquetError, match=rf"certificate {broken} cannot be read"):
        check_server("127.0.0.1:1", insecure=False, authority=broken)
    device = federation.device
    for certificate, key in (
        (device.certificate, other.key),
        (broken, device.key),
        (device.certificate, made(tmp_path, "locked", federation.authority, encrypted=True).key),
    ):
        with pytest.raises(BouquetError, match=f"certificate {certificate} and the key {key} cannot be used"):
            check(federation, device=Pair(certificate, key, device.signer))


# The proxy


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
        ({"grpc_proxy": "http://PROXY"}, True),
        ({"http_proxy": "http://PROXY"}, True),
        ({"HTTP_PROXY": "http://PROXY"}, False),
        ({"https_proxy": "", "HTTPS_PROXY": "http://PROXY"}, False),
        ({"https_proxy": "", "http_proxy": "http://PROXY"}, False),
        ({"HTTPS_PROXY": "http://PROXY", "http_proxy": "http://127.0.0.1:1"}, True),
        ({"grpc_proxy": "", **HERE}, False),
        ({"https_proxy": "PROXY"}, False),
        ({"https_proxy": "https://PROXY"}, False),
        ({"https_proxy": "http://PROXY/"}, True),
        ({**HERE, "no_proxy": "127.0.0.1"}, False),
        ({**HERE, "NO_PROXY": "127.0.0.1"}, False),
        ({**HERE, "no_proxy": "", "NO_PROXY": "127.0.0.1"}, True),
        ({**HERE, "no_proxy": "server.local, 127.0.0.1"}, False),
        ({**HERE, "no_proxy": "server.local,,192.168.0.0/16"}, True),
        ({**HERE, "no_proxy": "127.0.0.0/8"}, False),
        ({**HERE, "no_proxy": "127.0.0.1/32"}, False),
        ({**HERE, "no_proxy": "126.0.0.0/8"}, True),
        ({**HERE, "no_proxy": "127.0.0.0/255.0.0.0"}, True),
        ({**HERE, "no_proxy": "::/0"}, True),
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
        found = find_proxy(grpc_server, before)
        assert (found and found.url) == (f"http://{proxy.address}" if through else None)
        check_server(grpc_server, insecure=True, authority=None, timeout=SECONDS)
        grpc_connects(grpc_server)
    assert len(proxy.heads) == (2 if through else 0)


@pytest.mark.parametrize(
    ("host", "listed", "through"),
    [
        ("localhost", "localhost", False),
        ("localhost", "LOCALHOST", False),
        ("LocalHost", "localhost", False),
        ("localhost", "127.0.0.0/8", True),
        ("localhost", "*", True),
        ("server.localhost", "localhost", False),
        ("server.localhost", ".localhost", False),
        ("server.localhost", "*.localhost", True),
        ("server.localhost", "server", True),
        ("[::1]", "::1", False),
        ("[::1]", "[::1]", True),
        ("[::1]", "::/64", False),
        ("[::1]", "127.0.0.1/0", True),
    ],
)
def test_whom_no_proxy_is_for(
    grpc_server: str, monkeypatch: pytest.MonkeyPatch, host: str, listed: str, through: bool
) -> None:
    """A server that is not reached directly does not matter: whether the proxy is asked does."""
    address = f"{host}:{free_port()}"
    with connect_proxy(grpc_server) as proxy:
        set_environment(monkeypatch, {**HERE, "no_proxy": listed}, proxy.address)
        assert (find_proxy(address, os.environ) is not None) == through
        if through:
            check_server(address, insecure=True, authority=None, timeout=SECONDS)
            grpc_connects(address)
            assert [head.split()[1] for head in proxy.heads] == [address, address]
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
        with pytest.raises(ServerMismatch, match=f"server.invalid:9092, through the proxy http://{proxy.address} "):
            check_server("server.invalid:9092", insecure=False, authority=federation.authority.certificate)
    assert {head.split("\r\n")[0] for head in proxy.heads} == {"CONNECT server.invalid:9092 HTTP/1.1"}


def test_a_server_with_tls_asked_without_through_a_proxy(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect_proxy(federation.address) as proxy:
        set_environment(monkeypatch, HERE, proxy.address)
        with pytest.raises(ServerMismatch, match="speaks TLS"):
            check_server("server.invalid:9092", insecure=True, authority=None, timeout=SECONDS)
    assert len(proxy.heads) == 2


@pytest.mark.parametrize("user", ["ann:secret", "ann:s%40c%2Fr:t", "ann:s@cret", "ann", "", "änn:sécret"])
def test_the_user_and_password(grpc_server: str, monkeypatch: pytest.MonkeyPatch, user: str) -> None:
    with connect_proxy(grpc_server) as proxy:
        set_environment(monkeypatch, {"https_proxy": f"http://{user}@PROXY"}, proxy.address)
        check_server(grpc_server, insecure=True, authority=None, timeout=SECONDS)
        grpc_connects(grpc_server)
    ours, grpcs = ([line for line in head.split("\r\n") if line.startswith("Proxy-A")] for head in proxy.heads)
    assert ours == grpcs
    assert len(ours) == (user != "")


@pytest.mark.parametrize(
    ("answer", "problem", "message"),
    [
        (b"HTTP/1.1 407 No\r\n\r\n", ServerMismatch, r"not accept the user and password given \(407 Proxy Auth"),
        (b"HTTP/1.0 403 No\r\n\r\n", ServerMismatch, r"refuses to connect to server\.invalid:9092 \(403 Forbidden\)"),
        (b"HTTP/1.1 302 No\r\n\r\n", ServerMismatch, r"refuses to connect to server\.invalid:9092 \(302 Found\)"),
        (b"HTTP/1.1 502 No\r\n\r\n", ServerUnreachable, r"not reach the server server\.invalid:9092 \(502 Bad Gat"),
        (b"HTTP/1.1 599 \x1b[1m\r\n\r\n", ServerUnreachable, r"not reach the server server\.invalid:9092 \(599\)"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", ServerMismatch, "does not answer as an HTTP proxy does"),
        (b"HTTP/1.1 yes\r\n\r\n", ServerMismatch, "does not answer as an HTTP proxy does"),
        (b"HTTP/1.1 404 No\r\n", ServerMismatch, "does not answer as an HTTP proxy does"),
        (b"HTTP/1.1 404 No\r\nX: " + 20_000 * b"x", ServerMismatch, "does not answer as an HTTP proxy does"),
        (b"", ServerUnreachable, "accepts a connection and then says nothing"),
    ],
)
def test_a_proxy_that_does_not_connect(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, problem: type[BouquetError], message: str
) -> None:
    with connect_proxy("", answer=answer) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://ann:secret@{proxy.address}")
        with pytest.raises(problem, match=message) as raised:
            check_server("server.invalid:9092", insecure=False, authority=None, timeout=SECONDS)
    assert str(raised.value).startswith(f"The proxy http://{proxy.address} (HTTPS_PROXY) ")
    assert "secret" not in str(raised.value)


def test_a_proxy_that_asks_who_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with connect_proxy("", answer=b"HTTP/1.1 407 No\r\n\r\n") as proxy:
        set_environment(monkeypatch, {"http_proxy": "http://PROXY"}, proxy.address)
        with pytest.raises(
            ServerMismatch, match=r"asks for a user and a password .* Set http_proxy to http://\[USER:PA"
        ):
            check_server("server.invalid:9092", insecure=True, authority=None, timeout=SECONDS)


@pytest.mark.parametrize(
    ("proxy", "reason"),
    [
        ("127.0.0.1:PORT", "nothing listens on port PORT"),
        ("[::1]:PORT", "cannot be reached"),
        ("proxy.invalid:8080", "the name 'proxy.invalid' is unknown here"),
        ("proxy..invalid:8080", "the name 'proxy..invalid' is unknown here"),
    ],
)
def test_a_proxy_that_is_dead(monkeypatch: pytest.MonkeyPatch, proxy: str, reason: str) -> None:
    port = str(free_port())
    proxy, reason = proxy.replace("PORT", port), reason.replace("PORT", port)
    set_environment(monkeypatch, {"https_proxy": "http://ann:secret@PROXY"}, proxy)
    with pytest.raises(ServerUnreachable, match=re.escape(reason)) as raised:
        check_server("server.invalid:9092", insecure=True, authority=None)
    assert str(raised.value).startswith(f"The proxy http://{proxy} (https_proxy) cannot be reached: ")
    assert "secret" not in str(raised.value)


def test_a_proxy_that_grpc_does_not_use_is_named_when_there_is_no_way_without(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("HTTPS_PROXY", "ann:secret@proxy.local:3128")
    with pytest.raises(ServerUnreachable, match=r"in HTTPS_PROXY is not used: gRPC takes .* http://\[USER:") as raised:
        check_server(address, insecure=True, authority=None)
    assert "secret" not in str(raised.value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(ServerUnreachable, match=r"and its port\.\Z"):
        check_server(address, insecure=True, authority=None)


@pytest.mark.parametrize(
    "url", ["http://ann:sec#ret@proxy:3128", "http://ann:sec/ret@proxy:3128", "http://proxy:99999", "http://[::1:3128"]
)
def test_a_proxys_url_that_cannot_be_read(url: str) -> None:
    with pytest.raises(BouquetError, match="variable https_proxy does not name a proxy as http://") as raised:
        find_proxy("server.invalid:9092", {"https_proxy": url})
    assert "sec" not in str(raised.value)


def test_a_proxy_without_a_port_is_at_443_as_for_grpc() -> None:
    for url, host in (("http://proxy.local", "proxy.local"), ("HTTP://u:p@[::1]:/", "[::1]")):
        assert find_proxy("server.invalid:9092", {"https_proxy": url}).url == f"http://{host}:443"


def test_a_proxy_as_text_has_no_password() -> None:
    proxy = find_proxy("server.invalid:9092", {"https_proxy": "http://ann:secret@proxy.local:3128"})
    assert str(proxy) == "http://proxy.local:3128 (https_proxy)"
    assert "secret" not in repr(proxy)


def test_it_needs_the_standard_library_alone() -> None:
    code = (
        "import sys, bouquet.client.agent.reachability\n"
        "print({name.split('.')[0] for name in sys.modules} & {'flwr', 'grpc', 'torch', 'cryptography', 'numpy'})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
