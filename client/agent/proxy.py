"""The HTTP proxy between a device and its server: the one that gRPC takes from the environment, and no other.

gRPC's core, tried from 1.70 to 1.85, knows lower-case names alone: the first that is set of ``grpc_proxy``,
``https_proxy`` and ``http_proxy`` counts, whether the channel has TLS or not, and an empty one means no proxy. A URL
without ``http://`` in front, ``https://`` too, it passes over with a line in its log. ``no_grpc_proxy``, else
``no_proxy``, lists who is reached directly: names, which stand for what is below them too, IP addresses as they are
written, and subnets. It knows no ``*``, and makes no exception for this machine itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from bouquet.common.system.ports import split_address

# HTTPS_PROXY and NO_PROXY stand where `grpc_environment` puts them. HTTP_PROXY is missing: gRPC does not look at it.
PROXIES = ("grpc_proxy", "https_proxy", "HTTPS_PROXY", "http_proxy")
EXCEPTIONS = ("no_grpc_proxy", "no_proxy", "NO_PROXY")


def proxy_variable(address: str, environment: Mapping[str, str]) -> str | None:
    """The variable that names the proxy through which gRPC, in `grpc_environment`, reaches ``address`` (``host:port``).

    None when it is reached directly. Subnets in ``no_proxy`` are gRPC's alone to know. Raises `BouquetError` when the
    address has no host and port.
    """
    host = split_address(address)[0].lower()
    variable, url = _first(environment, PROXIES)
    listed = (entry.strip().removeprefix(".") for entry in _first(environment, EXCEPTIONS)[1].lower().split(","))
    is_direct = any(name and (host == name or host.endswith(f".{name}")) for name in listed)
    return variable if url.lower().startswith("http://") and not is_direct else None


def grpc_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables to set, before gRPC is imported, so that it uses the proxy of `proxy_variable`.

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
