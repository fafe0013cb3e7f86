"""Addresses and ports."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
from collections import deque

from bouquet.common.errors import BouquetError


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[IPv6]:port``; anything else is an error that shows the form."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    # A colon in a host without brackets is an IPv6 address whose last group would be read as the port.
    bare_ipv6 = ":" in host and not address.startswith("[")
    if not colon or not host or bare_ipv6 or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise BouquetError(
            f"The address {address!r} is not of the form host:port, such as 192.168.1.10:9092 or [::1]:9092, "
            "with a port from 1 to 65535."
        )
    return host, int(port)


# Below those that Linux (32768) and macOS (49152) give to whoever connects somewhere: such a one would take the port
# between the time that it is found and the time that the program which is given it listens.
OWN_PORTS = range(20_000, 30_000)
_given: deque[int] = deque(maxlen=64)  # and whoever was given one may not listen yet


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port of ``host`` that nothing has now and no outgoing connection is given; by chance, not by a seed."""
    for _ in range(20):
        if (port := secrets.choice(OWN_PORTS)) in _given:
            continue
        with _socket_for(host) as listener, contextlib.suppress(OSError):
            listener.bind((host, port))
            _given.append(port)
            return port
    with _socket_for(host) as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


def check_port_free(host: str, port: int, what: str) -> None:
    """Raise `BouquetError` unless this process could listen on ``host:port``; ``what`` names whom it is for."""
    with _socket_for(host) as listener:
        # Like every server: a port whose last connection is still winding down is free. Not SO_REUSEPORT, with
        # which gRPC would share the port with another server without a word.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(1)
        except OSError as error:
            problem = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            raise BouquetError(
                f"Port {port} on {host} {problem}, needed for {what}. End what listens there "
                f"(ss -ltnp 'sport = :{port}' shows it) or choose another port."
            ) from None


def _socket_for(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
