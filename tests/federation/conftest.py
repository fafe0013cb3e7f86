"""Real SuperLinks and SuperNodes on loopback, through the command line as a user types it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from bouquet.keys import add_device, init_keys
from common.processes import free_port


class Commands:
    """Starts ``bouquet`` commands in a folder and ends them all afterwards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, log: str, *arguments: str) -> subprocess.Popen[bytes]:
        output = (self.folder / f"{log}.log").open("ab")
        environment = {**os.environ, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}
        command = [sys.executable, "-m", "bouquet", *arguments]
        process = subprocess.Popen(command, cwd=self.folder, stdout=output, stderr=subprocess.STDOUT, env=environment)
        output.close()
        self.running.append(process)
        return process

    def server(self, *arguments: str) -> subprocess.Popen[bytes]:
        return self.start("server", "server", "--host", "127.0.0.1", "--port", str(self.port), *arguments)

    def client(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        where = ("--server", f"127.0.0.1:{self.port}", "--state-dir", f"state-{name}", "--name", name)
        return self.start(name, "client", *where, "--keys", f"devices/{name}", *arguments)

    def keys(self, *names: str) -> Path:
        """Make the server's ``keys`` and, copied out of them as to another machine, ``devices/NAME``."""
        keys = self.folder / "keys"
        init_keys(keys, ["127.0.0.1"])
        for name in names:
            folder = add_device(keys, name)
            assert folder is not None
            shutil.copytree(folder, self.folder / "devices" / name)
        return keys

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait_for(self, condition: Callable[[], bool], seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {path.name}\n{path.read_text()[-2000:]}" for path in self.folder.glob("*.log"))
                raise AssertionError(f"not within {seconds} s\n{logs}")
            time.sleep(0.2)

    def rounds(self, run: str) -> int:
        path = self.folder / run / "rounds.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def end(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.terminate()
        for process in self.running:
            process.wait(timeout=60)


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    made = Commands(tmp_path)
    yield made
    made.end()


@pytest.fixture
def own_data(tmp_path: Path) -> Callable[[str, bool], Path]:
    """Write a device's own .npz: two classes that a threshold tells apart, in one of two opposite ways."""

    def write(name: str, opposite: bool) -> Path:
        generator = np.random.default_rng(sum(name.encode()))
        y = np.arange(60) % 2
        x = generator.normal(size=(60, 1, 2, 2)) + np.where(y == 1, 1.5, -1.5)[:, None, None, None]
        folder = tmp_path / f"data-{name}"
        folder.mkdir()
        np.savez(folder / "data.npz", x=x.astype(np.float32), y=1 - y if opposite else y)
        return folder

    return write
