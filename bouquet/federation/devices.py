"""Several devices on this machine: an agent each, and one trainer whose imports they share."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bouquet.client.agent.main import command
from bouquet.client.agent.settings import DeviceSettings
from bouquet.client.agent.worker import SMALL
from bouquet.common.system.files import make_folder

GRACE_SECONDS = 5.0


@contextlib.contextmanager
def local_devices(devices: Sequence[DeviceSettings]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run devices inside the ``with`` block; what each prints goes to ``device.log`` in its state folder.

    They end with this process, however that ends.
    """
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in devices]
    started: list[subprocess.Popen[bytes]] = []

    def start(argv: list[str], folder: Path, log: str, descriptors: Sequence[int]) -> None:
        with (make_folder(folder, "the folder of a device") / log).open("ab") as said:
            own, quiet = {**os.environ, **SMALL}, subprocess.DEVNULL
            started.append(subprocess.Popen(argv, env=own, pass_fds=descriptors, stdin=quiet, stdout=said, stderr=said))

    try:
        numbers = [theirs.fileno() for _, theirs in pairs]
        trainer = [sys.executable, "-P", "-m", "bouquet.client.agent.trainer", *map(str, numbers)]
        start(trainer, devices[0].state_dir.parent, "trainer.log", numbers)
        for device, (ours, _) in zip(devices, pairs, strict=True):
            argv = command(replace(device, trainer=ours.fileno(), with_parent=True))
            start(argv, device.state_dir, "device.log", [ours.fileno()])
        for ends in pairs:
            for end in ends:
                end.close()
        yield started[1:]
    finally:
        for process in started[1:]:
            process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        for process in [*started[1:], *started[:1]]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.wait()
