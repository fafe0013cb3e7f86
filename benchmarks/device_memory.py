"""What a device takes: memory and disk in a real federation, and memory, CPU and bytes while nobody asks for anything.

    python benchmarks/device_memory.py [--rounds N] [--model NAME ...] [--cold]     (server and two clients, loopback)
    python benchmarks/device_memory.py --rest MINUTES [--cold] [--away]             (root, iproute2)
    python benchmarks/device_memory.py --watch $(docker inspect --format '{{.State.Pid}}' CONTAINER)
    python benchmarks/device_memory.py --photos 224 [--model torchvision:NAME ...] [--batches 1 8 16 32]

Memory is read from /proc as fast as that goes, as root: all processes of a client, each page once, at its peak while a
message is worked on, at its peak at other times, and as it was last. At the peak also by process, as proportional set
size, in which what a process shares is divided among all that have it, those of other clients too. With ``--watch`` of
a client that somebody else has started, in a container for example, until that process ends.

With ``--rest`` one device, over mutual TLS, of a server that waits for another: proportional set size of its agent and
its trainer, and CPU seconds and bytes of an hour, told from so many minutes. The device lives in a network namespace
of its own, whose interface counts its bytes with all headers; ``--away`` switches the server off first.

With ``--photos`` instead: the peak resident memory of one process that trains a model on photos of so many pixels a
side, and tests it, by the size of the mini-batch; all layers, and only the head. No federation.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from links import Link, programs
from processes import cpu_seconds, memory_bytes, name_of, proportional, tree

from bouquet.common.system.ports import free_port
from bouquet.common.system.processes import ending_in_order
from bouquet.keys.store import add_device, init_keys

# name → settings: the digits' MLP with 90 samples a device, LeNet with 500 images of 32×32
MODELS = {
    "mlp": ["data.dataset=digits", "data.clients=20", "model.name=mlp"],
    "cnn-dcpfl": ["model.name=cnn-dcpfl", "train.learning_rate=0.01"],
    "resnet18": ["model.name=resnet18", "train.learning_rate=0.01", "train.local_epochs=1"],
}
IMAGES = 500
EVERY_SECONDS = 0.02
SETTLING_SECONDS = 10.0
PATIENCE_SECONDS = 300.0
LINK = 105  # of the network namespaces that benchmarks make


def program(pid: int) -> str:
    """What a process of a device is."""
    with contextlib.suppress(OSError):
        if b"bouquet.client.agent.task" in Path(f"/proc/{pid}/cmdline").read_bytes():  # --cold
            return "task"
    return {"bouquet-train": "trainer", "bouquet-task": "task"}.get(name := name_of(pid), name)


class Watch(threading.Thread):
    """Follows a client's processes, named by what they are, until it is stopped or they have ended."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.over = threading.Event()
        self.peak, self.rest, self.last = 0.0, 0.0, 0.0
        self.parts: Counter[str] = Counter()

    def run(self) -> None:
        while not self.over.wait(EVERY_SECONDS):
            parts: Counter[str] = Counter()
            for pid in tree(self.pid):
                if size := proportional(pid):
                    parts[program(pid)] += size / 1e6
            if not parts:
                return
            size = memory_bytes(self.pid) / 1e6
            if "task" in parts:
                if size > self.peak:
                    self.peak, self.parts = size, parts
            else:
                self.rest, self.last = max(self.rest, size), size

    def found(self) -> dict[str, float | str]:
        """MB."""
        sizes = {"peak": self.peak, "largest without a message": self.rest, "at last": self.last}
        parts = ", ".join(f"{name} {size:.0f}" for name, size in self.parts.most_common())
        return {**{kind: round(size) for kind, size in sizes.items()}, "by process at the peak": parts}


def write_images(file: Path, seed: int) -> None:
    import numpy as np

    generator = np.random.default_rng(seed)
    y = np.arange(IMAGES) % 10
    x = generator.integers(0, 206, size=(IMAGES, 3, 32, 32)) + 5 * y[:, None, None, None]
    np.savez(file, x=x.astype(np.uint8), y=y)


def measure(model: str, rounds: int, cold: bool, folder: Path) -> dict[str, float | str]:
    port = free_port()
    own = "data.dataset=digits" not in MODELS[model]
    settings = [*MODELS[model], f"run.rounds={rounds}", "server.min_clients=2", "strategy.num_clusters=1"]
    if own:
        settings += ["data.dataset=own", f"data.classes={','.join(map(str, range(10)))}", "data.input_shape=3,32,32"]
    bouquet = [sys.executable, "-m", "bouquet"]
    sets = [word for text in settings for word in ("--set", text)]
    server_command = [*bouquet, "server", "--insecure", "--host", "127.0.0.1", "--port", str(port), "--out", "run"]
    log = (folder / "log").open("wb")
    started: list[subprocess.Popen[bytes]] = []
    try:
        for client in range(2):
            data = ["--partition-id", str(client)]
            if own:
                write_images(folder / f"{client}.npz", client)
                data = ["--data", f"{client}.npz"]
            command = [*bouquet, "client", "--insecure", "--server", f"127.0.0.1:{port}", "--state-dir", f"{client}"]
            command += ["--cold"] if cold else []
            output = (folder / f"client-{client}.log").open("wb")
            started.append(subprocess.Popen([*command, *data], cwd=folder, stdout=output, stderr=output))
        watch = Watch(started[0].pid)
        watch.start()
        server = subprocess.Popen([*server_command, *sets], cwd=folder, stdout=log, stderr=log)
        started.append(server)
        if server.wait() != 0:
            raise SystemExit((folder / "log").read_text())
        time.sleep(SETTLING_SECONDS)
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
        **watch.found(),
        "state on disk": round(state, 2),
        "seconds a round": round(sum(line["seconds"] for line in lines[1:]) / max(1, len(lines) - 1), 1),
    }


def at_rest(minutes: float, cold: bool, away: bool, folder: Path) -> dict[str, float | str]:
    """One device that is connected, or looks for its server, and has nothing to do."""
    link, port = Link(LINK), free_port()
    bouquet = (sys.executable, "-m", "bouquet")
    init_keys(folder / "keys", [link.server])
    add_device(folder / "keys", "device")
    link.down()
    link.up()
    try:
        with programs(folder) as start:
            where = ("--keys", "keys", "--host", "0.0.0.0", "--port", str(port), "--out", "run")
            server = start(*bouquet, "server", *where, "--set", "server.min_clients=2", "--set", "data.clients=2")
            inside = ("ip", "netns", "exec", link.namespace)
            own = ("--keys", "keys/devices/device", "--state-dir", "state", "--partition-id", "0")
            how = ("--cold",) if cold else ()
            device = start(*inside, *bouquet, "client", "--server", f"{link.server}:{port}", *own, *how).pid
            deadline = time.monotonic() + PATIENCE_SECONDS
            while "Connected." not in (log := (folder / "log").read_text()):
                if time.monotonic() > deadline:
                    raise SystemExit(log)
                time.sleep(0.2)
            if away:
                server.terminate()
                server.wait()
            time.sleep(2 * SETTLING_SECONDS)
            before = cpu_seconds(device), sum(link.counters())
            time.sleep(60 * minutes)
            after = cpu_seconds(device), sum(link.counters())
            parts = {program(pid): round(proportional(pid) / 1e6, 1) for pid in tree(device)}
            # The interpreter of the command line becomes the agent, under its own process id.
            agent = parts.pop(program(device))
            return {
                "MB of the agent": agent,
                **{f"MB of the {name}": size for name, size in parts.items()},
                "CPU seconds an hour": round((after[0] - before[0]) * 60 / minutes, 2),
                "bytes an hour": round((after[1] - before[1]) * 60 / minutes),
            }
    finally:
        link.down()


def photo_step(model: str, side: int, batch: int, frozen: str) -> None:
    """In a process of its own: train on two mini-batches of bytes, test, and print the peak and the time of a step."""
    from bouquet.client.training import evaluation, sgd
    from bouquet.client.training.transforms import standardising
    from bouquet.common.model.build import initial_model
    from bouquet.common.model.card import ModelCard
    from bouquet.common.settings import load_settings

    torch.set_num_threads(1)
    own = ["data.dataset=own", "data.classes=a,b,c,d,e", f"data.input_shape=3,{side},{side}", f"model.name={model}"]
    settings = load_settings(None, [*own, *([f"model.frozen={frozen}"] if frozen else [])])
    net = initial_model(settings, tried=False)
    net.register_forward_pre_hook(standardising(ModelCard.of(settings)), prepend=True)
    net = torch.nn.utils.convert_conv2d_weight_memory_format(net, torch.channels_last)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (2 * batch + 2, 3, side, side), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, 5, (len(x),), generator=generator)
    before = peak_resident()
    options = sgd.SGDOptions(1, batch, 0.01, 0.9, 0.0, 2.0)
    clock = time.monotonic()
    sgd.train(net, x, y, options, [], generator)
    seconds = (time.monotonic() - clock) / len(x)
    trained = peak_resident()
    evaluation.test(net, x, y)
    print(json.dumps({"before": before, "training": trained, "testing": peak_resident(), "seconds": seconds}))


def peak_resident() -> float:
    """The largest resident memory of this process so far, in MB."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM:"))


def photo_table(models: list[str], side: int, batches: list[int]) -> None:
    print(f"| model at {side} × {side} | mini-batch | peak, all layers | peak, all but the head frozen | s a photo |")
    for model in models:
        for batch in batches:
            found = []
            for frozen in ("", "all-but-head"):
                command = [sys.executable, __file__, "--step", model, str(side), str(batch), frozen]
                done = subprocess.run(command, capture_output=True, text=True)
                found.append(json.loads(done.stdout) if done.returncode == 0 else {"died": done.stderr[-300:]})
            peaks = " | ".join(f"{f['training']:.0f} MB" if "training" in f else f"died {f['died']}" for f in found)
            seconds = ", ".join(f"{f['seconds']:.2f}" for f in found if "seconds" in f)
            begun = f" (begins at {found[0].get('before', 0):.0f} MB)" if batch == batches[0] else ""
            print(f"| `{model}`{begun} | {batch} | {peaks} | {seconds} |", flush=True)


def environment_size() -> float:
    """MB of the packages beside PyTorch, and of itself."""
    site = Path(torch.__file__).parents[1]
    return sum(file.stat().st_size for file in site.rglob("*") if file.is_file() and not file.is_symlink()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--model", nargs="+", help=f"of {', '.join(MODELS)}; with --photos torchvision's")
    parser.add_argument("--cold", action="store_true", help="a fresh program for each message")
    parser.add_argument("--rest", type=float, metavar="MINUTES")
    parser.add_argument("--away", action="store_true", help="at rest while the server is switched off")
    parser.add_argument("--watch", type=int, metavar="PID", help="the processes of a client that runs already")
    parser.add_argument("--photos", type=int, metavar="PIXELS")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 8, 16, 32])
    parser.add_argument("--step", nargs=4, metavar=("MODEL", "PIXELS", "BATCH", "FROZEN"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        model, side, batch, frozen = arguments.step
        photo_step(model, int(side), int(batch), frozen)
        return
    if arguments.photos:
        photo_table(arguments.model or ["torchvision:mobilenet_v3_small"], arguments.photos, arguments.batches)
        return
    if arguments.watch:
        watch = Watch(arguments.watch)
        watch.run()
        show(watch.found())
        return
    print(f"{os.uname().machine}, {os.cpu_count()} cores, PyTorch {torch.__version__}, Python {sys.version.split()[0]}")
    with ending_in_order(), tempfile.TemporaryDirectory() as folder:
        if arguments.rest:
            show(at_rest(arguments.rest, arguments.cold, arguments.away, Path(folder)))
            return
        print(f"packages on disk: {environment_size():.0f} MB")
        for model in arguments.model or ["mlp", "cnn-dcpfl"]:
            (Path(folder) / model).mkdir()
            show(measure(model, arguments.rounds, arguments.cold, Path(folder) / model))


def show(found: dict[str, float | str]) -> None:
    values = {**found, "load": round(os.getloadavg()[0], 1)}
    print("; ".join(f"{key} {value}" for key, value in values.items()), flush=True)


if __name__ == "__main__":
    main()
