"""gRPC's health service (grpc.health.v1.Health/Check), on a port of its own and without TLS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from bouquet.common.system.health import SERVING

NOT_SERVING = b"\x08\x02"  # as `SERVING`


class Health:
    """Answers SERVING while ``is_well``."""

    def __init__(self, is_well: Callable[[], bool]) -> None:
        self._is_well = is_well
        self._server: Any = None

    async def start(self, address: str) -> None:
        """Listen until `stop`."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handler = grpc.unary_unary_rpc_method_handler(self._check)
        service = grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": handler})
        self._server.add_generic_rpc_handlers((service,))
        self._server.add_insecure_port(address)
        await self._server.start()

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            await self._server.stop(None)

    async def _check(self, _request: bytes, _context: Any) -> bytes:
        return SERVING if self._is_well() else NOT_SERVING
