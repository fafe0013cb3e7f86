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
    environment = {**os.environ, **SMALL}
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in devices]
    started: list[subprocess.Popen[bytes]] = []
    try:
        numbers = [theirs.fileno() for _, theirs in pairs]
        trainer = [sys.executable, "-P", "-m", "bouquet.client.agent.trainer", *map(str, numbers)]
        log = make_folder(devices[0].state_dir.parent, "the folder of the devices") / "trainer.log"
        with log.open("ab") as output:
            started.append(
                subprocess.Popen(
                    trainer, env=environment, pass_fds=numbers, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                )
            )
        for device, (ours, _) in zip(devices, pairs, strict=True):
            with (make_folder(device.state_dir, "the state folder") / "device.log").open("ab") as output:
                argv = command(replace(device, trainer=ours.fileno(), with_parent=True))
                started.append(
                    subprocess.Popen(
                        argv,
                        env=environment,
                        pass_fds=[ours.fileno()],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                    )
                )
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
