"""Asks a server whether it would take this device, and goes: ``python -m bouquet.client.agent.probe ADDRESS [FILES]``.

FILES are the authority, the certificate and the private key; without them the network is trusted. A process of its own,
because gRPC's environment has to be set before it is imported.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bouquet.client.agent.proxy import grpc_environment
from bouquet.common.texts import plain
from bouquet.common.trust.code import own_code, release

SECONDS = 20.0


def main(address: str, *files: str) -> int:
    """Print what the server says; the exit status is 0 where it would take the device."""
    os.environ |= grpc_environment(os.environ)
    import grpc
    from google.protobuf.message import DecodeError

    from bouquet.common.wire.fleet_pb2 import DeviceFrame, Hello, ServerFrame
    from bouquet.common.wire.transfer import MAJOR, METHOD, MINOR

    hello = Hello(major=MAJOR, minor=MINOR, release=release(), session=os.urandom(16), code=own_code(), probe=True)
    if files:
        authority, certificate, key = (Path(file).read_bytes() for file in files)
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(authority, key, certificate))
    else:
        channel = grpc.insecure_channel(address)
    with channel:
        try:
            call = channel.stream_stream(METHOD)(iter([DeviceFrame(hello=hello).SerializeToString()]), timeout=SECONDS)
            frame = ServerFrame.FromString(next(call))
        except (grpc.RpcError, StopIteration, DecodeError) as error:
            details = error.details() if isinstance(error, grpc.RpcError) else "nothing that can be read"
            print(f"It does not say whether it takes this device ({plain(str(details), 200)}).")
            return 1
    if frame.WhichOneof("frame") == "refused":
        print(f"It does not take this device: {plain(frame.refused.text)}.")
        return 1
    if frame.WhichOneof("frame") != "welcome" or frame.welcome.major != MAJOR:
        print(f"It speaks version {frame.welcome.major}, this device {MAJOR}: install the same release on both.")
        return 1
    print(f"It takes this device. It has {plain(frame.welcome.release, 60)}, this device {release()}.")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
