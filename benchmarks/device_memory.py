"""Memory and disk that a client needs: a real federation of a server and two clients on loopback.

    python benchmarks/device_memory.py [--rounds N] [--model NAME ...]

Memory is read from /proc every 20 ms over all processes of a client: the sum of their proportional set size (PSS:
pages that several processes share are divided among them, so the sum is what the client takes), its peak at rest and
in training, and the peak of any one process. A client is in training while a ``flwr-clientapp`` process of it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from common.processes import free_port

# name → settings: the digits' MLP with 90 samples a device, LeNet with 500 images of 32×32
MODELS = {
    "mlp": ["data.dataset=digits", "data.clients=20", "model.name=mlp"],
    "cnn-dcpfl": ["model.name=cnn-dcpfl", "train.learning_rate=0.01"],
    "resnet18": ["model.name=resnet18", "train.learning_rate=0.01", "train.local_epochs=1"],
}
IMAGES = 500
EVERY_SECONDS = 0.02


@dataclass
class Peak:
    """Largest memory seen, in MB."""

    tree: float = 0.0
    process: float = 0.0

    def see(self, sizes: list[float]) -> None:
        self.tree = max(self.tree, sum(sizes))
        self.process = max(self.process, *sizes)


def processes_of(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in task.read_text().split()]
    return found


def memory(pid: int) -> float | None:
    """Proportional set size in MB; None for a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), None)


def is_training(pid: int) -> bool:
    try:
        return b"flwr-clientapp" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class Watch(threading.Thread):
    """Follows one client's processes until it is stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.connected, self.over = threading.Event(), threading.Event()
        self.rest, self.training = Peak(), Peak()

    def run(self) -> None:
        while not self.over.wait(EVERY_SECONDS):
            pids = processes_of(self.pid)
            training = any(map(is_training, pids))  # before it is measured: it may end meanwhile
            sizes = [size for pid in pids if (size := memory(pid)) is not None]
            if sizes and self.connected.is_set():
                (self.training if training else self.rest).see(sizes)


def write_images(file: Path, seed: int) -> None:
    import numpy as np

    generator = np.random.default_rng(seed)
    y = np.arange(IMAGES) % 10
    x = generator.integers(0, 206, size=(IMAGES, 3, 32, 32)) + 5 * y[:, None, None, None]
    np.savez(file, x=x.astype(np.uint8), y=y)


def measure(model: str, rounds: int, folder: Path) -> dict[str, float | str]:
    port = free_port()
    own = "data.dataset=digits" not in MODELS[model]
    settings = [*MODELS[model], f"run.rounds={rounds}", "server.min_clients=2", "strategy.num_clusters=1"]
    if own:
        settings += ["data.dataset=own", f"data.classes={','.join(map(str, range(10)))}", "data.input_shape=3,32,32"]
    bouquet = [sys.executable, "-m", "bouquet"]
    sets = [word for text in settings for word in ("--set", text)]
    server_command = [*bouquet, "server", "--insecure", "--host", "127.0.0.1", "--port", str(port), "--out", "run"]
    environment = {**os.environ, "FLWR_LOG_LEVEL": "INFO"}
    log = (folder / "log").open("wb")
    started: list[subprocess.Popen[bytes]] = []
    try:
        for client in range(2):
            data = ["--partition-id", str(client)]
            if own:
                write_images(folder / f"{client}.npz", client)
                data = ["--data", f"{client}.npz"]
            command = [*bouquet, "client", "--insecure", "--server", f"127.0.0.1:{port}", "--state-dir", f"{client}"]
            output = (folder / f"client-{client}.log").open("wb")
            started.append(
                subprocess.Popen([*command, *data], cwd=folder, stdout=output, stderr=output, env=environment)
            )
        watch = Watch(started[0].pid)
        watch.start()
        server = subprocess.Popen([*server_command, *sets], cwd=folder, stdout=log, stderr=log)
        started.append(server)
        while b"SuperNode ID" not in (folder / "client-0.log").read_bytes():
            if server.poll() is not None:
                raise SystemExit((folder / "log").read_text())
            time.sleep(0.1)
        watch.connected.set()
        if server.wait() != 0:
            raise SystemExit((folder / "log").read_text())
        watch.over.set()
        watch.join()
    finally:
        for process in started[::-1]:
            if process.poll() is None:
                process.terminate()
        for process in started:
            process.wait()
    lines = [json.loads(line) for line in (folder / "run" / "rounds.jsonl").read_text().splitlines()]
    state = sum(file.stat().st_size for file in (folder / "0").rglob("*") if file.is_file()) / 1e6
    return {
        "model": model,
        "rest": round(watch.rest.tree),
        "training": round(watch.training.tree),
        "largest process": round(watch.training.process),
        "state on disk": round(state, 2),
        "seconds a round": round(sum(line["seconds"] for line in lines[1:]) / max(1, len(lines) - 1), 1),
    }


def environment_size() -> float:
    """MB of the packages beside PyTorch, and of itself."""
    site = Path(torch.__file__).parents[1]
    return sum(file.stat().st_size for file in site.rglob("*") if file.is_file() and not file.is_symlink()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=["mlp", "cnn-dcpfl"])
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started ends, too
    print(f"{os.uname().machine}, {os.cpu_count()} cores, PyTorch {torch.__version__}, Python {sys.version.split()[0]}")
    print(f"packages on disk: {environment_size():.0f} MB")
    for model in arguments.model:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(model, arguments.rounds, Path(folder))
        print(", ".join(f"{key} {value}" for key, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
