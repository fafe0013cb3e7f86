"""A server and devices as processes, as their owner starts them, in one folder; as root, each device behind a link of
its own and with a disk of its own, both of which can fail."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from benchmarks.faults.schedule import DEVICES, ROUNDS
from benchmarks.links import Link
from benchmarks.processes import name_of
from bouquet.client.agent.store import NODE_CONFIG, TASKS
from bouquet.common.data.datasets import load_dataset
from bouquet.common.settings import Settings, parse_settings
from bouquet.common.system.ports import free_port
from bouquet.keys.store import add_device, init_keys
from bouquet.server.run_folder import CONNECTIONS, SERVICE

TAG = "BOUQUET_FAULTS"  # in the environment of every process, so that one that is left is found
CLASSES = [str(digit) for digit in range(10)]
SERVER_DISK, DEVICE_DISK = "96m", "48m"
FIRST_LINK, LAST_LINK = 110, 250
FILLER = "filler"
PROGRAMS = {"trainer": "bouquet-train", "task": "bouquet-task"}  # what they call themselves
SAMPLES = 300  # of a device
COMMON: dict[str, Any] = {
    "run.rounds": ROUNDS,
    "data.dataset": "own",
    "data.classes": CLASSES,
    "data.input_shape": [1, 8, 8],
    "data.test_fraction": 0.3,
    "model.name": "mlp",
    "model.hidden": [1500],  # 450 kB: it travels in chunks
    "train.local_epochs": 8,
    "train.batch_size": 16,
    "train.learning_rate": 0.05,
    "train.momentum": 0.9,
    "server.min_clients": len(DEVICES),
    "server.straggler_grace": 10,
    "server.round_timeout": 45,
}
OF_STRATEGY: dict[str, dict[str, Any]] = {
    "dc-pfl": {"strategy.discrepancy_rounds": 2, "strategy.observe_rounds": 1, "strategy.fixed_gamma": 0.3},
    "fedtsdp": {},
    "fedac": {"strategy.num_clusters": 2},
    "gradient-loss": {"strategy.num_clusters": 2, "strategy.local_update": "epochs"},
    "fesem": {"strategy.num_clusters": 2},
}


def run_settings(strategy: str, name: str, public: Path, **changes: Any) -> Settings:
    """Settings of a short run of a strategy, of which devices can tell their groups."""
    values = {**COMMON, **OF_STRATEGY.get(strategy, {}), "run.name": name, "strategy.name": strategy}
    if strategy == "fedtsdp":
        values["server.public_data"] = str(public)
    text = {key: value if isinstance(value, str) else json.dumps(value) for key, value in (values | changes).items()}
    return parse_settings({}, text)


@dataclass
class Device:
    """A device: its folders, its link where it has one, and its program."""

    name: str
    state: Path
    data: Path
    log: Path
    link: Link | None = None
    process: subprocess.Popen[bytes] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Fleet:
    """A federation in ``folder``. With ``waiting`` its server takes one run after the other."""

    def __init__(self, folder: Path, first: Callable[[Path], Settings], waiting: bool = True) -> None:
        self.folder, self.waiting = folder, waiting
        self.port = free_port()
        self.tag = uuid.uuid4().hex
        self.real = os.geteuid() == 0  # links and disks
        self.server_disk = folder / "server"
        self.public = folder / "public.npz"
        self.log = folder / "server.log"
        self.server: subprocess.Popen[bytes] | None = None
        self.lock = threading.RLock()
        self.first = self.server_disk / "first"
        self.service = self.first / SERVICE
        self.keys = folder / "keys"
        self.devices = {
            name: Device(name, folder / f"state-{name}", folder / f"data-{name}", folder / f"{name}.log")
            for name in DEVICES
        }
        self.mounts: list[Path] = []
        self.stopped: set[int] = set()
        self.disk(self.server_disk, SERVER_DISK)
        self.write_data()
        settings = first(self.public).model_dump(mode="json", exclude_none=True)
        (folder / "first.toml").write_text(tomli_w.dumps(settings))

    def write_data(self) -> None:
        """Digits: two devices name them as they are, the other two the other way round."""
        digits = load_dataset("digits", None)
        order = np.random.default_rng(0).permutation(len(digits.y))
        images = (digits.x.reshape(-1, 1, 8, 8) / 6 - 0.8).astype(np.float32)
        for number, device in enumerate(self.devices.values()):
            own = order[number * SAMPLES : (number + 1) * SAMPLES]
            device.data.mkdir()
            y = digits.y[own]
            np.savez(device.data / "data.npz", x=images[own], y=y if number < len(DEVICES) // 2 else 9 - y)
        np.savez(self.public, x=images[order[-64:]])

    # --- disks and links ------------------------------------------------------------------------------------

    def disk(self, folder: Path, size: str) -> None:
        """A folder, as root on a disk of its own."""
        folder.mkdir(parents=True)
        if self.real:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "bouquet", str(folder)], check=True)
            self.mounts.append(folder)

    def connect(self, device: Device) -> None:
        """A link of its own, under a number that nobody has."""
        for number in range(FIRST_LINK + random.randrange(50), LAST_LINK):
            device.link = Link(number)
            with contextlib.suppress(SystemExit):
                device.link.up()
                return
        sys.exit("There is no free network namespace.")

    # --- programs -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all of it."""
        for device in self.devices.values():
            self.disk(device.state, DEVICE_DISK)
            if self.real:
                self.connect(device)
        init_keys(self.keys, ["127.0.0.1", *(d.link.server for d in self.devices.values() if d.link)])
        for name in self.devices:
            add_device(self.keys, name)
        self.start_server()
        for device in self.devices.values():
            self.start_device(device)

    def start_server(self) -> None:
        """Start the server, or start it again, as a service manager does."""
        how = "--keep-waiting" if self.waiting else "--resume"
        where = ("--host", "0.0.0.0", "--port", str(self.port), "--out", str(self.first))
        with self.lock:
            if not self.serves:
                with self.log.open("a") as log:  # one that was killed has not said that it waits no more
                    log.write("Started.\n")
                self.server = self._run(self.log, "server", "--keys", "keys", *where, "first.toml", how)

    @property
    def serves(self) -> bool:
        """Whether the server's program runs."""
        return self.server is not None and self.server.poll() is None

    def start_device(self, device: Device) -> None:
        """Start a device's program, unless it runs."""
        inside = () if device.link is None else ("ip", "netns", "exec", device.link.namespace)
        server = f"{device.link.server if device.link else '127.0.0.1'}:{self.port}"
        where = ("--server", server, "--keys", f"keys/devices/{device.name}", "--state-dir", str(device.state))
        with device.lock:
            if device.process is None or device.process.poll() is not None:
                device.process = self._run(device.log, "client", *where, "--data", str(device.data), inside=inside)

    def _run(self, log: Path, *arguments: str, inside: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        environment = {**os.environ, TAG: self.tag, "OMP_NUM_THREADS": "1"}
        command = [*inside, str(Path(sys.executable).parent / "bouquet"), *arguments]
        with log.open("ab") as output:
            return subprocess.Popen(
                command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def processes(self, target: str, device: str = "") -> list[int]:
        """The processes that a fault means, parents first; none where there is none just now."""
        process = self.devices[device].process if device else self.server
        if process is None or process.poll() is not None:
            return []
        if target == "agent":
            return [process.pid]
        every = below(process.pid)
        return every if target in ("server", "device") else [pid for pid in every if name_of(pid) == PROGRAMS[target]]

    def connected(self) -> set[str]:
        """The devices that the server says are there."""
        try:
            said = json.loads((self.service / CONNECTIONS).read_text())
        except (OSError, ValueError):
            return set()
        return {one["name"] for one in said if one["connected"]}

    def works(self, device: str) -> bool:
        """Whether a device has a task that it has not answered."""
        folder = self.devices[device].state / TASKS
        tasks = [file for file in folder.glob("*.json") if file.name != NODE_CONFIG]
        return any(not [*folder.glob(f"{task.stem}.reply"), *folder.glob(f"{task.stem}.error")] for task in tasks)

    def replies(self, device: str) -> bool:
        """Whether a device has a reply that the server has not acknowledged."""
        return any((self.devices[device].state / TASKS).glob("*.reply"))

    def signal(self, pids: list[int], number: signal.Signals) -> None:
        """Send a signal to processes that may be gone."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def left(self) -> dict[int, str]:
        """Every process of this federation that still runs."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"{TAG}={self.tag}".encode() in entry.read_bytes().split(b"\0"):
                    found[int(entry.parent.name)] = command(int(entry.parent.name))
        return found

    def stop(self) -> list[str]:
        """End all of it in order; returns what would not end, and what was left."""
        wrong = []
        programs = [("the server", self.server), *((d.name, d.process) for d in self.devices.values())]
        for _, process in programs:
            if process is not None and process.poll() is None:
                process.terminate()
        for name, process in programs:
            if process is None:
                continue
            try:
                process.wait(90)
            except subprocess.TimeoutExpired:
                wrong.append(f"{name} did not end within 90 s of SIGTERM")
                self.signal(below(process.pid), signal.SIGKILL)
                process.wait()
        deadline = time.monotonic() + 30
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.2)
        wrong += [f"process {pid} is left: {text}" for pid, text in left.items()]
        self.signal([*left], signal.SIGKILL)
        return wrong

    def remove(self) -> None:
        """Take links and disks away."""
        for device in self.devices.values():
            if device.link is not None:
                device.link.down()
        for folder in self.mounts:
            subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


@contextlib.contextmanager
def fleet(folder: Path, first: Callable[[Path], Settings], waiting: bool = True) -> Iterator[Fleet]:
    """A running one; what is left of it at the end is ended and taken away."""
    made = Fleet(folder, first, waiting)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        made.remove()


def below(root: int) -> list[int]:
    """A process and all below it, parents first: cheaper than `tree`, which looks at every process there is."""
    found, new = [root], [root]
    while new:
        children: list[int] = []
        for pid in new:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    children += map(int, task.read_text().split())
        found += children
        new = children
    return found


def command(pid: int) -> str:
    """A process's command line; empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
