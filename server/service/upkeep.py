"""What the service looks after now and then: removed devices, renewed certificates, tasks that nobody waits for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from bouquet.common.errors import BouquetError
from bouquet.common.system.files import write_json
from bouquet.common.trust.certificates import fingerprint
from bouquet.common.wire.fleet_pb2 import Refused
from bouquet.common.wire.transfer import WireError
from bouquet.server.run_folder import CONNECTIONS
from bouquet.server.service.admission import LOOK_SECONDS, Admission
from bouquet.server.service.devices import Device, Stream
from bouquet.server.service.replies import ReplyReceiver

FORGET_SECONDS = 3600.0  # after which a device without a name that has gone is nobody
MOST_GONE = 1000  # of them: of more the oldest are nobody at once


class Connected(Protocol):
    """What of the service is needed here."""

    devices: dict[int, Device]
    replies: ReplyReceiver

    def cancel(self, device: Device, identifier: str) -> None:
        """Have a device give up a task."""

    def tell(self, device: Device, **what: Any) -> None:
        """Send a frame to a device that is there."""

    def close(self, stream: Stream) -> None:
        """End a connection."""


class Upkeep:
    """Of the service, in its event loop; ``has_changed`` says that another device has connected, or one has gone."""

    def __init__(
        self, service: Connected, admission: Admission | None, folder: Path, report: Callable[[str], None]
    ) -> None:
        self.service, self.admission, self.folder, self.report = service, admission, folder, report
        self.has_changed = True

    async def keep_looking(self) -> None:
        """Look after the devices throughout; what goes wrong once is said, and ends nothing."""
        reported = ""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._look()
            except Exception as error:
                text = f"Looking after the devices failed ({type(error).__name__}: {error})."
                if text != reported:
                    self.report(text)
                reported = text

    async def _look(self) -> None:
        if self.has_changed:
            self.write_connections()
        now = time.monotonic()
        for device in list(self.service.devices.values()):
            for identifier in [i for i, one in device.tasks.items() if one.until < now]:
                self.service.cancel(device, identifier)
        self._forget_gone()
        admission = self.admission
        if admission is not None and await asyncio.to_thread(admission.look):
            self._admit_again(admission)

    def _forget_gone(self) -> None:
        """Without keys whoever comes is somebody new: who has gone for long is forgotten."""
        devices = self.service.devices
        gone = [device for device in devices.values() if device.name is None and device.stream is None]
        gone.sort(key=lambda device: (bool(device.tasks), device.seen), reverse=True)
        for number, device in enumerate(gone):
            if number >= MOST_GONE or time.time() - device.seen > FORGET_SECONDS:
                for identifier in [*device.tasks]:
                    self.service.replies.forget(device, identifier)
                del devices[device.node]

    def _admit_again(self, admission: Admission) -> None:
        """After a change of the registered keys: whoever was removed is shut out."""
        for device in list(self.service.devices.values()):
            stream = device.stream
            if stream is None or admission.names.get(stream.fingerprint or "") == device.name:
                self.renew(device)
                continue
            with contextlib.suppress(WireError):
                stream.outbox.put(refused=Refused(code=Refused.NOT_REGISTERED, text="its certificate was removed"))
            device.left = True
            self.service.close(stream)

    def renew(self, device: Device) -> None:
        """Send a device its new certificate, where it does not show that yet."""
        admission, stream = self.admission, device.stream
        if admission is None or stream is None or device.name is None:
            return
        newest = admission.newest.get(device.name)
        if newest is not None and fingerprint(newest) != stream.fingerprint:
            self.service.tell(device, certificate={"pem": newest})

    def write_connections(self) -> None:
        """Who is connected, for `bouquet status`, which is another process."""
        self.has_changed = False
        connections = [
            {
                "node": device.node,
                "name": device.name,
                "connected": device.stream is not None,
                "since": device.since,
                "seen": device.seen,
                "release": device.hello.release,
            }
            for device in self.service.devices.values()
        ]
        with contextlib.suppress(BouquetError):  # on a full disk
            write_json(self.folder / CONNECTIONS, connections)
