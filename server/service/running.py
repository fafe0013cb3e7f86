"""The service in a thread beside the run: started, used through its grid, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc

from bouquet.common.errors import BouquetError
from bouquet.common.system.ports import check_port_free, split_address
from bouquet.common.wire.health import Health
from bouquet.server.service.admission import Admission
from bouquet.server.service.certificates import Certificates
from bouquet.server.service.grid import FleetGrid
from bouquet.server.service.open_files import raise_open_files, watch
from bouquet.server.service.service import Service, ServiceOptions

ENDS = "The server ends."
M_ARENA_MAX, ARENAS = -8, 2


@contextlib.contextmanager
def serving(
    address: str,
    folder: Path,
    *,
    certificates: Certificates | None = None,
    registered: Path | None = None,
    health: str | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[FleetGrid]:
    """Serve devices at ``address`` (``host:port``) inside the ``with`` block, and give the grid that reaches them.

    With ``certificates`` it speaks mutual TLS and takes only the devices of the folder ``registered``; without, no
    encryption, and whoever asks. ``folder`` is for what is on its way. ``health`` (``host:port``) offers gRPC's health
    protocol there, without TLS. ``report`` is told a line of whatever the operator should know. The limit of open files
    of this process is raised.

    Raises `BouquetError` where a port is taken or a certificate cannot be used.
    """
    raise_open_files()
    _share_memory()
    check_port_free(*split_address(address), "the devices")
    credentials = None if certificates is None else server_credentials(certificates.found())
    admission = None if registered is None else Admission(registered, report)
    options = ServiceOptions(address, folder, credentials, admission, report)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_run, args=(loop,), name="service", daemon=True)
    thread.start()
    grid = FleetGrid(loop)
    grid.service = service = Service(options, grid.answered)
    well, over = Health(thread.is_alive), threading.Event()
    try:
        try:
            _within(loop, service.start())
            if health is not None:
                _within(loop, well.start(health))
        except (RuntimeError, OSError) as error:
            raise BouquetError(f"Devices cannot be served at {address}: {error}.") from None
        watch(report, over)
        yield grid
    finally:
        over.set()
        with contextlib.suppress(Exception):
            _within(loop, service.stop(ENDS))
            _within(loop, well.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5.0)


def server_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Mutual TLS with the files as they are at each handshake: a renewed certificate needs no restart."""

    def configuration() -> grpc.ServerCertificateConfiguration:
        pair = certificates.key.read_bytes(), certificates.certificate.read_bytes()
        return grpc.ssl_server_certificate_configuration([pair], certificates.authority.read_bytes())

    def version() -> list[tuple[int, int]]:
        files = (certificates.authority, certificates.certificate, certificates.key)
        return [(about.st_mtime_ns, about.st_size) for about in (file.stat() for file in files)]

    try:
        first, seen = configuration(), [version()]
    except OSError as error:
        raise BouquetError(f"The certificate {error.filename} cannot be read: {error.strerror}.") from None

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        with contextlib.suppress(OSError):
            if (now := version()) != seen[0]:
                found = configuration()
                seen[0] = now
                return found
        return None

    return grpc.dynamic_ssl_server_credentials(first, fetch, require_client_authentication=True)


def _share_memory() -> None:
    """Have all threads share few arenas (glibc): in each of gRPC's, of which it has 16, lay what was freed."""
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_ARENA_MAX, ARENAS)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)  # such as one that waits for a Pong
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
    finally:
        loop.close()


def _within(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(work, loop).result(30.0)
