"""Can this device reach its server? Asked before the agent connects, because gRPC's own answer is silence.

gRPC tries for ever when the name is wrong, a firewall drops packets, the port is another program's, one side speaks
TLS and the other does not, or one does not take the other's certificate. Each of these shows in the first bytes of a
connection: a gRPC server answers the HTTP/2 preface with a SETTINGS frame (RFC 9113, 3.4), an HTTP/1 server with
``HTTP/1``, a server without TLS breaks the handshake, and one that refuses the device's certificate ends the
connection after it, because in TLS 1.3 the client is through before the server has judged.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path

from bouquet.client.agent.proxy import proxy_variable
from bouquet.common.errors import BouquetError
from bouquet.common.system.ports import split_address

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
FRAME_HEADER_BYTES = 9
SETTINGS_FRAME = 4
TLS_ALERT = b"\x15\x03"
# OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH; ..._CERT_NOT_YET_VALID, ..._HAS_EXPIRED.
OTHER_NAME = (62, 64)
NOT_YET_VALID, EXPIRED = 9, 10


class ServerUnreachable(BouquetError):
    """Nothing answers at the server's address: it may not be up yet, so trying again can help."""


class ServerMismatch(BouquetError):
    """Something answers, but not as it should: trying again does not help, a setting must change."""


def check_server(
    address: str,
    *,
    insecure: bool,
    authority: Path | None,
    certificate: Path | None = None,
    private_key: Path | None = None,
    timeout: float = 5.0,
) -> None:
    """Return when a gRPC server answers at ``address`` (``host:port``), with or without TLS as asked.

    ``authority`` is the PEM file of who signed the server's certificate; without it the system's authorities count.
    ``certificate`` and ``private_key`` are this device's own, shown in the handshake; a server that refuses them does
    not pass. With ``insecure`` no file is looked at. Where the way is through a proxy (`bouquet.client.agent.proxy`),
    nothing is: gRPC's own error says what is wrong there.

    Raises `ServerUnreachable` when nothing answers, each step given ``timeout`` seconds, `ServerMismatch` when the two
    sides do not fit, `BouquetError` for an address or a file that cannot be used.
    Whether the server knows this device's certificate only the agent finds out.
    """
    host, _ = split_address(address)
    try:
        host.encode("idna")
    except UnicodeError:
        raise BouquetError(f"{host!r} is not a name that a server can have.") from None
    context = None if insecure else _context(authority, certificate, private_key)
    if proxy_variable(address, os.environ) is not None:
        return
    if context is None:
        _check_plain(address, timeout)
        return
    # gRPC's server ends the connection of a device that it refuses without an alert, and so does any that is just
    # being stopped; but that one not twice.
    for _ in range(2):
        with _connect(address, timeout) as connection:
            answer, error = _ask_secured(connection, context, host, address, authority)
        if answer or isinstance(error, TimeoutError):
            _judge(answer, address)
            return
        if _alert(error):
            break
    raise _refused(address, certificate, _alert(error))


# The way there


def _connect(address: str, timeout: float) -> socket.socket:
    host, port = split_address(address)
    try:
        return socket.create_connection((host, port), timeout=timeout)
    except (OSError, UnicodeError) as error:
        reason, advice = _failure(error, host, port)
        raise ServerUnreachable(f"The server {address} cannot be reached: {reason}. {advice}") from None


def _failure(error: Exception, host: str, port: int) -> tuple[str, str]:
    """Why there is no connection, and what to do where ``host`` is the server."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"the name {host!r} is unknown here", "Check the spelling, or give the server's IP address."
    if isinstance(error, TimeoutError):
        return f"no answer from {host}", f"Check the address, and that no firewall drops port {port}."
    if isinstance(error, ConnectionRefusedError):
        return (f"{host} is there, but nothing listens on port {port}", "Check that bouquet server runs, and its port.")
    return f"{getattr(error, 'strerror', None) or error}", "Check this device's network and the address."


# The two certificates


def _context(authority: Path | None, certificate: Path | None, private_key: Path | None) -> ssl.SSLContext:
    """What this device trusts and shows. Raises `BouquetError` for files that cannot be used."""
    for file in (authority, certificate, private_key):
        if file is not None and not file.is_file():
            raise BouquetError(f"There is no {file}; copy what bouquet keys add made on the server to this device.")
    try:
        context = ssl.create_default_context(cafile=authority)
    except OSError as error:
        raise BouquetError(f"The certificate {authority} cannot be read ({_text(error)}).") from None
    context.set_alpn_protocols(["h2"])
    # Judge the certificate as gRPC does: by its alternative names alone, and without the strictness of Python 3.13.
    context.hostname_checks_common_name = False
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if certificate is not None:
        try:
            # An empty password, lest OpenSSL ask whoever sits at the terminal for that of an encrypted key.
            context.load_cert_chain(certificate, private_key, password="")
        except (OSError, ValueError) as error:
            raise BouquetError(
                f"The certificate {certificate} and the key {private_key} cannot be used ({_text(error)}). "
                "Copy both from the folder that bouquet keys add made on the server."
            ) from None
    return context


def _ask_secured(
    connection: socket.socket, context: ssl.SSLContext, host: str, shown: str, authority: Path | None
) -> tuple[bytes, OSError | None]:
    """`_first_bytes` through TLS; none, and the alert, where the handshake ends with one about this device."""
    try:
        secured = context.wrap_socket(connection, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise ServerMismatch(
            f"The certificate of {shown} is not accepted: {error.verify_message}. "
            f"{_advice_on(error.verify_code, host, authority)}"
        ) from None
    except (TimeoutError, ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
        raise _silent(shown) from None
    except ssl.SSLError as error:
        if _alert(error):
            return b"", error
        raise ServerMismatch(
            f"The server {shown} does not speak TLS ({_text(error)}). Start it with certificates, or connect "
            "without TLS (--insecure) if its network is trusted."
        ) from None
    with secured:
        return _first_bytes(secured)


def _refused(shown: str, certificate: Path | None, alert: str) -> ServerMismatch:
    if certificate is None:
        return ServerMismatch(
            f"The server {shown} asks for a device's certificate, and none was shown. Start this device with its keys "
            "(--keys DIR, made on the server with bouquet keys add)."
        )
    return ServerMismatch(
        f"The server {shown} does not accept this device's certificate {certificate}{f' ({alert})' if alert else ''}. "
        "Was it made by another authority? bouquet keys add, on this server, makes the device's keys anew. Has it "
        f"expired? bouquet keys renew, on the server. If not, a clock is wrong: {_clock()}."
    )


def _advice_on(code: int, host: str, authority: Path | None) -> str:
    """What to do about a server's certificate that OpenSSL refuses with ``code``."""
    if code in OTHER_NAME:
        return f"Use an address that it names, or make one for {host}: bouquet keys server --host {host}, there."
    if code == EXPIRED:
        return f"It has expired, if the time is right ({_clock()}): bouquet keys server, on the server."
    if code == NOT_YET_VALID:
        return f"Set the clock: {_clock()}."
    source = f"the authority in {authority}" if authority else "the system's authorities"
    return f"It is checked against {source}: copy the server's own ca.crt to this device."


def _alert(error: OSError | None) -> str:
    """What a server's TLS alert holds against this device's certificate, ``unknown ca``; empty for another error."""
    # OpenSSL's names begin with the protocol that introduced the alert: TLSV1_ALERT_UNKNOWN_CA.
    _, _, name = (getattr(error, "reason", None) or "").partition("_ALERT_")
    # DECRYPT_ERROR is for the signature of another authority of that name, HANDSHAKE_FAILURE TLS 1.2's for none shown.
    is_about_it = "CERTIFICATE" in name or name in ("UNKNOWN_CA", "DECRYPT_ERROR", "HANDSHAKE_FAILURE")
    return name.lower().replace("_", " ") if is_about_it else ""


def _clock() -> str:
    return f"this device's clock says {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def _text(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


# What is there


def _check_plain(address: str, timeout: float) -> None:
    with _connect(address, timeout) as connection:
        answer, _ = _first_bytes(connection)
    if answer and not answer.startswith(TLS_ALERT):
        _judge(answer, address)
    elif _completes_handshake(address, timeout):
        raise ServerMismatch(
            f"The server {address} speaks TLS, and this device was told not to (--insecure). "
            "Start it with its keys instead (--keys DIR, made on the server with bouquet keys add)."
        )
    else:
        raise _silent(address)


def _completes_handshake(address: str, timeout: float) -> bool:
    """Whether there is TLS at all, whoever's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with _connect(address, timeout) as connection, context.wrap_socket(connection):
            return True
    except (OSError, ServerUnreachable):
        return False


def _first_bytes(connection: socket.socket) -> tuple[bytes, OSError | None]:
    """The start of the answer to an HTTP/2 preface, empty when there is none, and the error that ended it.

    What came before a connection breaks or times out still tells who is there.
    """
    answer = b""
    # A server that has closed already may have said why before.
    with contextlib.suppress(OSError):
        connection.sendall(PREFACE)
    try:
        while len(answer) < FRAME_HEADER_BYTES and (part := connection.recv(FRAME_HEADER_BYTES - len(answer))):
            answer += part
    except OSError as error:
        return answer, error
    return answer, None


def _judge(answer: bytes, shown: str) -> None:
    if not answer:
        raise _silent(shown)
    if answer.startswith(b"HTTP/1") or len(answer) < FRAME_HEADER_BYTES or answer[3] != SETTINGS_FRAME:
        found = "An HTTP/1 server" if answer.startswith(b"HTTP/1") else "Something that does not speak gRPC"
        raise ServerMismatch(
            f"{found} answers at {shown}, not Bouquet's server. Devices connect to the port that bouquet server "
            "prints for them, 9092 unless chosen otherwise."
        )


def _silent(shown: str) -> ServerUnreachable:
    # Docker's proxy accepts connections for a container in which nothing listens yet, and closes them.
    return ServerUnreachable(
        f"The server {shown} accepts a connection and then says nothing. It may still be starting; if it stays "
        "so, check on the server that bouquet server runs, and that this is its port."
    )
