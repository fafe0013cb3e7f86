"""Servers that a device may find at an address, and the certificates of a federation."""

import contextlib
import datetime
import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bouquet.client.agent.reachability import check_server

SECONDS = 30  # a limit, not a wait


DAY = datetime.timedelta(days=1)


PROXY_NAMES = ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy")


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
