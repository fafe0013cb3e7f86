"""The channel to the server, and the certificate that this device shows on it: its owner's, or a later renewal."""

from __future__ import annotations

import contextlib
from pathlib import Path

import grpc

from bouquet.client.agent.reachability import ServerMismatch
from bouquet.client.agent.settings import DeviceSettings
from bouquet.common.errors import BouquetError
from bouquet.common.system.files import write_atomically
from bouquet.common.trust.certificates import check_renewal, fingerprint
from bouquet.common.wire.transfer import FRAME_BYTES, WINDOWS

KEEPALIVE_SECONDS, KEEPALIVE_ANSWER_SECONDS = 50, 20  # as the server's (`bouquet.server.service.connections`)
CERTIFICATE = "device.crt"  # in the state folder: a renewed one; beside it, of which it is the renewal


def open_channel(settings: DeviceSettings) -> grpc.aio.Channel:
    """A channel with TLS on both sides, or without. Raises `ServerMismatch` for a file that cannot be read."""
    options = [
        ("grpc.max_receive_message_length", FRAME_BYTES),
        *WINDOWS,
        ("grpc.keepalive_time_ms", 1000 * KEEPALIVE_SECONDS),
        ("grpc.keepalive_timeout_ms", 1000 * KEEPALIVE_ANSWER_SECONDS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if settings.insecure:
        return grpc.aio.insecure_channel(settings.server, options)
    files = [file for file in (settings.authority, settings.private_key, certificate(settings)) if file is not None]
    try:
        credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
    except OSError as error:
        raise ServerMismatch(f"{error.filename} cannot be read: {error.strerror}.") from None
    return grpc.aio.secure_channel(settings.server, credentials, options)


def certificate(settings: DeviceSettings) -> Path | None:
    """The renewed certificate, where the server has sent one since the owner copied the last."""
    given, renewed = settings.certificate, settings.state_dir / CERTIFICATE
    with contextlib.suppress(OSError, BouquetError):
        if given is not None and renewed.with_suffix(".of").read_text() == fingerprint(given.read_bytes()):
            return renewed
    return given


def renewal(settings: DeviceSettings, pem: bytes) -> str:
    """Keep a certificate that the server has sent; what to say of it, nothing where it is shown already."""
    copied, shown = settings.certificate, certificate(settings)
    if copied is None or shown is None or settings.authority is None:
        return ""
    try:
        if pem.strip() == shown.read_bytes().strip():
            return ""  # it is sent until it is shown
        check_renewal(pem, shown.read_bytes(), settings.authority.read_bytes())
        file = settings.state_dir / CERTIFICATE
        write_atomically(file, pem, 0o600)
        # One that the owner copies later counts again.
        write_atomically(file.with_suffix(".of"), fingerprint(copied.read_bytes()).encode(), 0o600)
    except (BouquetError, OSError) as error:
        return f"The server's new certificate for this device is not taken: {error}"
    return "The server sent a new certificate for this device; it is used from the next connection on."
