"""What check_server says of whatever listens at an address, and of certificates."""

import contextlib
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from bouquet.client.agent.reachability import ServerMismatch, ServerUnreachable, check_server
from bouquet.common.errors import BouquetError
from bouquet.common.system.ports import free_port
from tests.helpers.reached_servers import SECONDS, Federation, Pair, answering, check, listening, made

SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


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


@pytest.mark.parametrize(
    "flaw", ["of another authority", "of another authority of that name", "expired", "not valid yet"]
)
def test_a_certificate_that_the_server_refuses(federation: Federation, refused: dict[str, Pair], flaw: str) -> None:
    """gRPC's without an alert, OpenSSL's with one."""
    for newest in (None, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        server = contextlib.nullcontext(federation.address)
        if newest is not None:
            server = openssl_server(federation.server, federation.authority, newest=newest)
        why = r" \(.*\)" * (newest is not None)
        with (
            server as address,
            pytest.raises(ServerMismatch, match=rf"{refused[flaw].certificate}{why}\. Was it .* clock says 2"),
        ):
            check(federation, address, refused[flaw])


def test_a_certificate_that_only_the_server_finds_wrong(federation: Federation, refused: dict[str, Pair]) -> None:
    """It has another authority, or another time: all that may be is said."""
    other = made(federation.folder, "third")
    with (
        openssl_server(federation.server, other) as address,
        pytest.raises(ServerMismatch, match=r"\(unknown ca\)\. W"),
    ):
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
    for server in (contextlib.nullcontext(federation.address), openssl_server(federation.server, federation.authority)):
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
    with pytest.raises(BouquetError, match=f"There is no {missing}; copy"):
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


def test_it_needs_the_standard_library_alone() -> None:
    code = (
        "import sys, bouquet.client.agent.reachability\n"
        "print({name.split('.')[0] for name in sys.modules} & {'flwr', 'grpc', 'torch', 'cryptography', 'numpy'})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
