"""The HTTP proxy between a device and its server: the one that gRPC takes from the environment, and no other.

gRPC's core, tried from 1.70 to 1.85, knows lower-case names alone: the first that is set of ``grpc_proxy``,
``https_proxy`` and ``http_proxy`` counts, whether the channel has TLS or not, and an empty one means no proxy. A URL
without ``http://`` in front, ``https://`` too, it passes over with a line in its log; without a port it takes 443.
``no_grpc_proxy``, else ``no_proxy``, lists who is reached directly: names, which stand for what is below them too, IP
addresses as they are written, and subnets (``10.0.0.0/8``), which hold for a server given by its IP address alone; it
knows no ``*``. It makes no exception for this machine itself.

Releases before 1.84 differ in a list's details (``ample.com`` there stands for ``example.com``, and ``.example.com``
not for it), and 1.70 passes over a URL with an ``@`` in the password.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from bouquet.common.errors import BouquetError
from bouquet.common.system.ports import split_address

# HTTPS_PROXY and NO_PROXY stand where `grpc_environment` puts them. HTTP_PROXY is missing: gRPC does not look at it.
PROXIES = ("grpc_proxy", "https_proxy", "HTTPS_PROXY", "http_proxy")
EXCEPTIONS = ("no_grpc_proxy", "no_proxy", "NO_PROXY")
FORM = "http://[USER:PASSWORD@]HOST:PORT"
TAKEN = re.compile(r"http://[^/?#]", re.IGNORECASE)
DEFAULT_PORT = 443


@dataclass(frozen=True)
class Proxy:
    """A proxy, and the variable that names it; not the user and password that it is told."""

    host: str
    port: int
    variable: str

    @property
    def url(self) -> str:
        """Its URL."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.url} ({self.variable})"


def find_proxy(address: str, environment: Mapping[str, str]) -> Proxy | None:
    """The proxy through which gRPC, in `grpc_environment`, reaches the server at ``address`` (``host:port``).

    None when it is reached directly. Raises `BouquetError` when the proxy's URL has no host and port that can be read,
    or the address has none.
    """
    host, _ = split_address(address)
    variable, url = _first(environment, PROXIES)
    if not TAKEN.match(url) or _is_listed(host, _first(environment, EXCEPTIONS)[1]):
        return None
    try:
        parts = urlsplit(url)
        place, port = parts.hostname or "", parts.port
        if not place:
            raise ValueError(place)
    except ValueError:
        # Not shown: what cannot be read may hold a password.
        raise BouquetError(
            f"The variable {variable} does not name a proxy as {FORM}. In the user and the password, "
            "characters such as / ? # are written as %2F %3F %23."
        ) from None
    return Proxy(place, port or DEFAULT_PORT, variable)


def grpc_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables to set, before gRPC is imported, so that it uses the proxy of `find_proxy`.

    They are https_proxy and no_proxy, where the environment has them in upper case alone.
    """
    return {
        name: environment[name.upper()]
        for name in ("https_proxy", "no_proxy")
        if name not in environment and name.upper() in environment
    }


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str]:
    """The first of the variables that is set, be it to nothing, and its value."""
    return next(((name, environment[name]) for name in names if name in environment), ("", ""))


def _is_listed(host: str, listed: str) -> bool:
    host = host.lower()
    for entry in listed.lower().split(","):
        name = entry.strip().removeprefix(".")
        if name and (host == name or host.endswith(f".{name}")):
            return True
        # A netmask (10.0.0.0/255.0.0.0), which Python would read, gRPC does not.
        if re.fullmatch(r"[^/]+/\d+", name):
            with contextlib.suppress(ValueError):  # One of the two is no address.
                if ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False):
                    return True
    return False
