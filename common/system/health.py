"""Is the program here well? ``python -m bouquet.common.system.health [HOST:PORT]`` asks gRPC's health service.

Server and agent offer it when they are started with ``bouquet server`` or ``bouquet client`` and ``--health
HOST:PORT`` (or ``BOUQUET_HEALTH``). The exit status is what Docker's HEALTHCHECK and a systemd watchdog want: 0 when
it is serving, 1 with a line that says why not. It imports gRPC and nothing else, because a small device runs it every
half minute: the one message of the protocol (grpc.health.v1.Health/Check) is two bytes.
"""

from __future__ import annotations

import os
import sys

import grpc

VARIABLE = "BOUQUET_HEALTH"
CHECK = "/grpc.health.v1.Health/Check"
# HealthCheckRequest without a service name; HealthCheckResponse whose field 1 (status) is 1 (SERVING).
WHOLE_SERVER = b""
SERVING = b"\x08\x01"


def problem(address: str, timeout: float = 5.0) -> str:
    """Why the server at ``address`` (``host:port``, no TLS) is not well; empty when it says that it is serving."""
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            answer: bytes = channel.unary_unary(CHECK)(WHOLE_SERVER, timeout=timeout)
        except grpc.RpcError as error:
            return f"{address} does not answer ({error.code().name.lower().replace('_', ' ')})."
    return "" if answer == SERVING else f"{address} answers that it is not serving."


def main(arguments: list[str]) -> str | None:
    """The problem, or None: what `sys.exit` takes."""
    address = arguments[0] if arguments else os.environ.get(VARIABLE, "")
    if not address:
        return f"Give the address of a health service, HOST:PORT, or set {VARIABLE}."
    return problem(address) or None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
