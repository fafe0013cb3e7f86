"""Real servers and devices on loopback, through the command line as a user types it."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.settings import load_settings
from bouquet.common.system.ports import free_port
from bouquet.experiments.simulation.inline_grid import scripted_client
from bouquet.keys.store import add_device, init_keys
from tests.helpers.two_classes import settings_of
from tests.helpers.wire_device import Ended, Script, WireDevice, answering

HONEST = ("garden-pi", "porch-pi")
QUICK = """
[server]
min_clients = {clients}
round_timeout = 1200
straggler_grace = {grace}
"""


class Commands:
    """Starts ``bouquet`` commands in a folder and ends them all afterwards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, log: str, *arguments: str) -> subprocess.Popen[bytes]:
        output = (self.folder / f"{log}.log").open("ab")
        command = [sys.executable, "-m", "bouquet", *arguments]
        process = subprocess.Popen(command, cwd=self.folder, stdout=output, stderr=subprocess.STDOUT)
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

    def run(self, log: str, *arguments: str, code: int = 0) -> None:
        """Start a command that ends, and wait for that."""
        self.wait_for_end(self.start(log, *arguments), code)

    def wait_for_end(self, process: subprocess.Popen[bytes], code: int = 0) -> None:
        """Wait until a command has ended, with this exit status."""
        self.wait_for(lambda: process.poll() is not None)
        assert process.returncode == code, f"{process.args} ended with {process.returncode}\n{self._logs()}"

    def wait_for(self, condition: Callable[[], bool], seconds: float = 1200) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds} s\n{self._logs()}")
            time.sleep(0.2)

    def _logs(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in logs)

    def rounds(self, run: str) -> int:
        path = self.folder / run / "rounds.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def end(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.terminate()
        for process in self.running:
            process.wait(timeout=300)  # for one that hangs


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


class Wired:
    """A server with TLS and keys, honest devices on the wire, and hostile ones: see the fixture `wired`."""

    def __init__(self, commands: Commands, names: Sequence[str], settings: str, *options: str) -> None:
        self.commands = commands
        self.folder = commands.folder / "runs" / "wired"
        (commands.folder / "wired.toml").write_text(settings)
        self.layout, _ = state_vector(initial_model(load_settings(commands.folder / "wired.toml")))
        commands.keys(*names)
        self.server = commands.server("wired.toml", *options)
        self.stack = contextlib.ExitStack()
        self.devices = {name: self._device(name) for name in names}

    def _device(self, name: str) -> WireDevice:
        folder = self.commands.folder / "devices" / name
        for _ in range(600):
            if self.server.poll() is not None:
                break
            device = WireDevice(f"127.0.0.1:{self.commands.port}", folder, name=name)
            try:
                device.wait_for("welcome")
                return device
            except Ended:
                device.close(goodbye=False)
            time.sleep(0.1)
        raise AssertionError(self.commands.log("server"))

    def answer(self, scripts: Mapping[str, Script], metrics: Mapping[str, float] | None = None) -> None:
        """Have every device answer from now on: by its script, else honestly, with these ``metrics`` beside."""
        for name, device in self.devices.items():
            honest = scripted_client(name, self.layout, lambda model, received: model + np.float32(0.01), metrics)
            self.stack.enter_context(answering(device, honest, scripts.get(name)))

    def end(self, code: int = 0) -> list[dict[str, Any]]:
        """Wait for the run's end, with this exit status; the lines of its rounds."""
        self.commands.wait_for_end(self.server, code)
        return [json.loads(line) for line in (self.folder / "rounds.jsonl").read_text().splitlines()]


@pytest.fixture
def wired(commands: Commands) -> Iterator[Callable[..., Wired]]:
    """Start a run of quick rounds over gRPC with TLS and keys, with scripted devices: no agent, no ClientApp.

    ``run = wired("mallory", rounds=3)`` starts the server and connects two honest devices and mallory;
    ``run.answer({"mallory": script})`` has all of them answer (`wire_device` says what a script is), and ``run.end()``
    waits for the end. Several hostile devices cost no more rounds than one; who is refused three times in a row sits
    out. Leave nothing to chance: a device that is silent costs its round ``straggler_grace``, ``grace`` seconds.
    ``options`` are more of ``bouquet server``.
    """
    started: list[Wired] = []

    def start(*hostile: str, rounds: int = 3, more: str = "", grace: int = 5, options: Sequence[str] = ()) -> Wired:
        server = QUICK.format(clients=len(HONEST) + len(hostile), grace=grace)
        settings = settings_of("wired", rounds, hidden=8, more=server) + more
        started.append(run := Wired(commands, (*HONEST, *hostile), settings, *options))
        return run

    yield start
    for run in started:
        run.stack.close()
