"""Who connects, and the first frame of a device: it is taken, or told why not."""

from __future__ import annotations

import asyncio
import importlib.metadata
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from bouquet.common.texts import plain
from bouquet.common.trust.certificates import fingerprint
from bouquet.common.wire.fleet_pb2 import DeviceFrame, Hello, Refused
from bouquet.common.wire.transfer import FRAME_BYTES, MAJOR, WireError
from bouquet.server.service.admission import Admission

HELLO_SECONDS = 15.0
RELEASE = f"bouquet-fl {importlib.metadata.version('bouquet-fl')}"


class TurnedAway(Exception):
    """A device is not taken: what it is told."""

    def __init__(self, code: Any, text: str) -> None:
        super().__init__(text)
        self.refused = Refused(code=code, text=text)


def frame_of(data: bytes) -> DeviceFrame:
    """What a device says. Raises `WireError` and `DecodeError`."""
    if len(data) > FRAME_BYTES:
        raise WireError(f"a frame of {len(data)} bytes")
    return DeviceFrame.FromString(data)


def identity(context: Any, admission: Admission | None) -> tuple[str | None, str | None]:
    """Name and certificate of this connection's own handshake; None without certificates. Raises `TurnedAway`."""
    if admission is None:
        return None, None
    shown = context.auth_context().get("x509_pem_cert", [])
    if not shown:
        raise TurnedAway(Refused.NOT_REGISTERED, "it shows no certificate")
    print_ = fingerprint(shown[0])
    name = admission.names.get(print_)
    if name is None:
        raise TurnedAway(
            Refused.NOT_REGISTERED,
            f"its certificate ({print_[:16]}) is not registered here: bouquet keys add, on the server",
        )
    return name, print_


async def hello_of(context: Any) -> Hello:
    """A device's first frame. Raises `TurnedAway`."""
    try:
        first = await asyncio.wait_for(context.read(), HELLO_SECONDS)
        if first is grpc.aio.EOF:
            raise TurnedAway(Refused.MALFORMED, "it said nothing")
        frame = frame_of(first)
    except TimeoutError:
        raise TurnedAway(Refused.MALFORMED, "it said nothing") from None
    except (DecodeError, WireError):
        raise TurnedAway(Refused.MALFORMED, "its first frame cannot be read") from None
    if frame.WhichOneof("frame") != "hello" or not 8 <= len(frame.hello.session) <= 64:
        raise TurnedAway(Refused.MALFORMED, "its first frame is no Hello")
    if frame.hello.major != MAJOR:
        raise TurnedAway(
            Refused.VERSION,
            f"it speaks version {frame.hello.major} of the protocol ({plain(frame.hello.release, 60)}), this "
            f"server version {MAJOR} ({RELEASE}): install the same release on both",
        )
    return frame.hello
