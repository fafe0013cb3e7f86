"""Can this device reach its server? Asked before a SuperNode starts, because Flower's own answer is silence.

Flower retries for ever, with the same line, when the name is wrong, a firewall drops packets, the port is another
program's, or one side speaks TLS and the other does not. Each of these shows in the first bytes of a connection:
a gRPC server answers the HTTP/2 preface with a SETTINGS frame (RFC 9113, 3.4), an HTTP/1 server with ``HTTP/1``, a
server without TLS breaks the handshake, and one with TLS completes it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from pathlib import Path

from common.errors import BouquetError
from common.system.ports import split_address

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
FRAME_HEADER_BYTES = 9
SETTINGS_FRAME = 4
# OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
OTHER_NAME = (62, 64)


class ServerUnreachable(BouquetError):
    """Nothing answers at the server's address: it may not be up yet, so trying again can help."""


class ServerMismatch(BouquetError):
    """Something answers, but not as it should: trying again does not help, a setting must change."""


def check_server(address: str, *, insecure: bool, root_certificates: Path | None = None, timeout: float = 5.0) -> None:
    """Return when a gRPC server answers at ``address`` (``host:port``), with or without TLS as asked.

    ``root_certificates`` is the PEM file of the authority that signed the server's certificate; without it the
    system's authorities count. Raises `ServerUnreachable` when nothing answers, each step given ``timeout`` seconds,
    `ServerMismatch` when the two sides do not fit. Which Flower it is, and whether it knows this device's key, only
    the SuperNode itself finds out.
    """
    host, port = split_address(address)
    if root_certificates is not None and not root_certificates.is_file():
        raise BouquetError(f"There is no certificate {root_certificates}; copy the server's ca.crt to this device.")
    try:
        connection = socket.create_connection((host, port), timeout=timeout)
    except OSError as error:
        raise ServerUnreachable(f"The server {address} cannot be reached: {_reason(error, host, port)}") from None
    with connection:
        if not insecure:
            with _handshake(connection, host, address, root_certificates) as secured:
                _judge(_first_bytes(secured), address)
        elif answer := _first_bytes(connection):
            _judge(answer, address)
        elif _completes_handshake(host, port, timeout):
            raise ServerMismatch(
                f"The server {address} speaks TLS, and this device was told not to (--insecure). "
                "Start it with its keys instead (--keys DIR, made on the server with bouquet keys add)."
            )
        else:
            raise _silent(address)


def _reason(error: OSError, host: str, port: int) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name {host!r} is unknown here. Check the spelling, or give the server's IP address."
    if isinstance(error, TimeoutError):
        return f"no answer from {host}. Check the address, and that no firewall drops port {port}."
    if isinstance(error, ConnectionRefusedError):
        return f"{host} is there, but nothing listens on port {port}. Check that bouquet server runs, and its port."
    return f"{error.strerror or error}. Check this device's network and the address."


def _handshake(connection: socket.socket, host: str, address: str, root_certificates: Path | None) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(root_certificates) if root_certificates else None)
    context.set_alpn_protocols(["h2"])
    # Judge the certificate as gRPC does: by its alternative names alone, and without the strictness of Python 3.13.
    context.hostname_checks_common_name = False
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    try:
        return context.wrap_socket(connection, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in OTHER_NAME:
            hint = f"Use an address that it names, or make one for {host}: bouquet keys server --host {host}, there."
        else:
            source = f"the authority in {root_certificates}" if root_certificates else "the system's authorities"
            hint = (
                f"It is checked against {source}: copy the server's own ca.crt to this device, and check the clock. "
                "If it has expired: bouquet keys server, on the server."
            )
        raise ServerMismatch(f"The certificate of {address} is not accepted: {error.verify_message}. {hint}") from None
    except (TimeoutError, ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
        raise _silent(address) from None
    except ssl.SSLError as error:
        raise ServerMismatch(
            f"The server {address} does not speak TLS ({error.reason}). Start it with certificates, or connect "
            "without TLS (--insecure) if its network is trusted."
        ) from None


def _completes_handshake(host: str, port: int, timeout: float) -> bool:
    """Whether there is TLS at all, whoever's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with socket.create_connection((host, port), timeout=timeout) as connection, context.wrap_socket(connection):
            return True
    except OSError:
        return False


def _first_bytes(connection: socket.socket) -> bytes:
    """The start of the answer to an HTTP/2 preface; empty when there is none."""
    answer = b""
    # What came before a connection breaks or times out still tells who is there.
    with contextlib.suppress(OSError):
        connection.sendall(PREFACE)
        while len(answer) < FRAME_HEADER_BYTES and (part := connection.recv(FRAME_HEADER_BYTES - len(answer))):
            answer += part
    return answer


def _judge(answer: bytes, address: str) -> None:
    if not answer:
        raise _silent(address)
    if answer.startswith(b"HTTP/1") or len(answer) < FRAME_HEADER_BYTES or answer[3] != SETTINGS_FRAME:
        found = "An HTTP/1 server" if answer.startswith(b"HTTP/1") else "Something that does not speak gRPC"
        raise ServerMismatch(
            f"{found} answers at {address}, not Bouquet's server. Devices connect to the port that bouquet server "
            "prints for them, 9092 unless chosen otherwise (Flower's Fleet API)."
        )


def _silent(address: str) -> ServerUnreachable:
    # Docker's proxy accepts connections for a container in which nothing listens yet, and closes them.
    return ServerUnreachable(
        f"The server {address} accepts a connection and then says nothing. It may still be starting; if it stays "
        "so, check on the server that bouquet server runs, and that this is its port."
    )
