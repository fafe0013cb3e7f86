"""What a round costs beyond its training: a stock Flower app, Bouquet with ``--cold``, and Bouquet, in turns.

The same model, data, number of devices and rounds, local SGD by the same function; Flower's own ``flower-superlink``
and ``flower-supernode`` as shipped for the stock app (FedAvg, training messages only), without TLS on either side. From
the repository's root:

    python benchmarks/round_overhead.py rounds --devices 6 --rounds 5 --turns 2
    python benchmarks/round_overhead.py photos --photos 2000

Seconds a round are from the first round's end to the last's; the ratio is of their sums over all turns. CPU seconds a
message are those of all of a device's processes in that time, less what the same training takes inside one process.
Each line is one measurement, as JSON, with the machine's load.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tomli_w

sys.path.insert(0, str(Path(__file__).parent))
from processes import cpu_seconds, tree

from bouquet.common.system.ports import free_port
from bouquet.common.system.processes import ending_in_order

BIN = Path(sys.executable).parent
KINDS = ("stock", "cold", "warm")
PATIENCE_SECONDS = 1800.0
WARM_ROUNDS = 10  # in place of one, so that there is something to count
SGD = {"local_epochs": 5, "batch_size": 16, "learning_rate": 0.05}
STOCK_CLIENT = """
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
import torch
from stock_training import model, part, train

app = ClientApp()

@app.train()
def work(message, context):
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = part(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    loss = train(net, data)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data.train_y)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
"""
STOCK_SERVER = """
import time
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from stock_training import model

app = ServerApp()

@app.main()
def main(grid, context):
    own = context.run_config
    def note(round_, arrays):
        with open(own["marks"], "a") as file:
            print(round_, time.time(), file=file)
        return MetricRecord({"round": round_})
    nodes = int(own["nodes"])
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes, min_evaluate_nodes=0)
    strategy.start(grid, ArrayRecord(model().state_dict()), num_rounds=int(own["rounds"]), evaluate_fn=note)
"""
STOCK_TRAINING = f"""
import torch
from bouquet.client.training import sgd
from bouquet.client.data.loading import load_partition
from bouquet.common.model.architectures import build_model

def model():
    return build_model("mlp", (1, 8, 8), 10, 0, hidden=[64])

def part(number, of):
    return load_partition("digits", partition="iid", partition_id=number, num_partitions=of, seed=0)

def train(net, data):
    options = sgd.SGDOptions(**{SGD!r})
    x, y = torch.as_tensor(data.train_x), torch.as_tensor(data.train_y)
    return sgd.train(net, x, y, options, (), torch.Generator().manual_seed(0))
"""


def say(**values: Any) -> None:
    """One measurement."""
    print(json.dumps({**values, "load": round(os.getloadavg()[0], 1)}), flush=True)


def listens(port: int) -> bool:
    """Whether something on this machine accepts connections there."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


class Federation:
    """A server and devices of one kind, in ``folder``; the root process of each device in ``devices``."""

    def __init__(self, kind: str, folder: Path, devices: int, rounds: int) -> None:
        self.kind, self.folder, self.count, self.rounds = kind, folder, devices, rounds
        self.port = free_port()
        self.devices: list[int] = []
        self.running: list[subprocess.Popen[bytes]] = []

    def wait(self, true: Callable[[], bool], what: str) -> None:
        """Wait with patience, as long as all of it lives."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not true():
            if time.monotonic() > deadline or any(process.poll() for process in self.running):
                logs = "\n".join(log.read_text(errors="replace")[-2000:] for log in self.folder.glob("*.log"))
                sys.exit(f"{self.kind}: {what} does not come:\n{logs}")
            time.sleep(0.02)

    def start_server(self) -> None:
        """Bouquet's begins its run by itself; the stock one with `begin`."""
        if self.kind == "stock":
            where = ("--insecure", "--host", "127.0.0.1", "--port", str(self.port))
            self._run("superlink", "flower-superlink", *where, "--disable-runtime-dependency-installation")
            self.wait(lambda: listens(self.port), "the SuperLink")
            return
        chosen = {
            "data.dataset": "digits",
            "data.partition": "iid",
            "data.clients": self.count,
            "model.name": "mlp",
            "model.hidden": "[64]",
            "strategy.name": "fedavg",
            "run.rounds": self.rounds,
            "server.min_clients": self.count,
            **{f"train.{name}": value for name, value in SGD.items()},
        }
        sets = [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]
        self._run("server", "bouquet", "server", "--insecure", "--port", str(self.port), "--out", "run", *sets)

    def start_device(self, number: int) -> None:
        """One more."""
        server = f"127.0.0.1:{self.port}"
        if self.kind == "stock":
            config = f"partition-id={number} num-partitions={self.count}"
            where = ("--superlink", server, "--insecure", "--port", str(free_port()), "--node-config", config)
            started = self._run(f"device-{number}", "flower-supernode", *where)
        else:
            where = ("--server", server, "--insecure", "--partition-id", str(number), "--state-dir", f"state-{number}")
            how = ("--cold",) if self.kind == "cold" else ()
            started = self._run(f"device-{number}", "bouquet", "client", *where, *how)
        self.devices.append(started.pid)

    def _run(self, log: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        own = {"FLWR_HOME": str(self.folder / f"{log}-home"), "PATH": f"{BIN}:{os.environ['PATH']}"}
        with (self.folder / f"{log}.log").open("wb") as output:
            process = subprocess.Popen(
                [str(BIN / program), *arguments],
                cwd=self.folder,
                env={**os.environ, **own},
                stdout=output,
                stderr=output,
            )
        self.running.append(process)
        return process

    def connected(self) -> bool:
        """Whether every device has said that it is."""
        word = "SuperNode ID" if self.kind == "stock" else "Connected."
        return all(word in (self.folder / f"device-{n}.log").read_text() for n in range(self.count))

    def begin(self) -> None:
        """Submit the stock run."""
        if self.kind != "stock":
            return
        app, home = self.folder / "app", self.folder / "flwr-home"
        app.mkdir()
        home.mkdir()
        code = {"stock_client": STOCK_CLIENT, "stock_server": STOCK_SERVER, "stock_training": STOCK_TRAINING}
        for name, text in code.items():
            (app / f"{name}.py").write_text(text)
        config = {"marks": str(self.folder / "marks"), "nodes": self.count, "rounds": self.rounds}
        components = {"serverapp": "stock_server:app", "clientapp": "stock_client:app"}
        flower = {"app": {"publisher": "stock", "components": components, "config": config}}
        project = {"name": "stock", "version": "1.0.0", "license": "Apache-2.0", "description": "", "dependencies": []}
        (app / "pyproject.toml").write_text(tomli_w.dumps({"project": project, "tool": {"flwr": flower}}))
        link = {"default": "here", "here": {"address": f"127.0.0.1:{self.port}", "insecure": True}}
        (home / "config.toml").write_text(tomli_w.dumps({"superlink": link}))
        done = subprocess.run(
            [BIN / "flwr", "run", app], env={**os.environ, "FLWR_HOME": str(home)}, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(done.stdout + done.stderr)

    def done(self) -> int:
        """Rounds that are over."""
        file = self.folder / ("marks" if self.kind == "stock" else "run/rounds.jsonl")
        lines = file.read_text().count("\n") if file.exists() else 0
        return max(0, lines - 1) if self.kind == "stock" else lines  # the stock server also notes a round 0

    def end(self) -> None:
        """End all of it, with what it started."""
        every = [pid for process in self.running for pid in tree(process.pid)]
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait(60)
        for pid in every:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


@contextmanager
def federation(kind: str, devices: int, rounds: int) -> Iterator[Federation]:
    """One in a temporary folder, whose devices are there."""
    with tempfile.TemporaryDirectory(prefix=f"overhead-{kind}-", ignore_cleanup_errors=True) as folder:
        made = Federation(kind, Path(folder), devices, rounds)
        try:
            made.start_server()
            for number in range(devices):
                made.start_device(number)
            made.wait(made.connected, "all devices")
            yield made
        finally:
            made.end()


def training_seconds(devices: int) -> float:
    """CPU seconds of one message's training, in one process."""
    import torch

    torch.set_num_threads(1)
    scope: dict[str, Any] = {}
    exec(STOCK_TRAINING, scope)  # the very code that the stock app runs
    data, net = scope["part"](0, devices), scope["model"]()
    scope["train"](net, data)
    started = time.process_time()
    for _ in range(5):
        scope["train"](net, data)
    return (time.process_time() - started) / 5


def rounds(options: argparse.Namespace) -> None:
    """Wall seconds a round and CPU seconds a message, in turns."""
    training = training_seconds(options.devices)
    sums: dict[str, float] = defaultdict(float)
    for turn in range(options.turns):
        for kind in options.kinds:
            number = options.rounds * (WARM_ROUNDS if kind == "warm" else 1)
            with federation(kind, options.devices, number) as run:
                run.begin()
                run.wait(lambda run=run: run.done() >= 1, "the first round")
                first, already, before = time.monotonic(), run.done(), sum(map(cpu_seconds, run.devices))
                run.wait(lambda run=run: run.done() >= run.rounds, "the last round")
                seconds, cpu = time.monotonic() - first, sum(map(cpu_seconds, run.devices)) - before
            counted = number - already
            sums[kind] += seconds / counted
            say(
                part="rounds",
                kind=kind,
                turn=turn,
                seconds_a_round=round(seconds / counted, 3),
                cpu_seconds_a_message=round(cpu / (options.devices * counted) - training, 3),
                training_seconds=round(training, 3),
            )
    if "stock" in sums:
        say(part="rounds", of_stock={kind: round(value / sums["stock"], 4) for kind, value in sums.items()})


def photos(options: argparse.Namespace) -> None:
    """Seconds to have a device's photos ready, for the first message and for later ones, in processes of their own."""
    code = (
        "import sys,time;started=time.perf_counter();from types import SimpleNamespace;"
        "from bouquet.client.context import ClientContext;"
        "from bouquet.common.settings import parse_settings;import bouquet.client.data.cache,torch;"
        "imported=time.perf_counter();"
        "values={'data.dataset':'own','data.classes':'[\"a\",\"b\"]','data.input_shape':'[3,64,64]'};"
        "c=SimpleNamespace(node_config={'state-dir':sys.argv[1],'data':sys.argv[2]});"
        "data=ClientContext(parse_settings({},values),c).data;s=float(data.train_x.sum(dtype='float64'));"
        "print('SECONDS',time.perf_counter()-imported,len(data.train_y),s)"
    )
    import numpy as np
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        for name in ("a", "b"):
            Path(folder, "photos", name).mkdir(parents=True)
        random = np.random.default_rng(0)
        large = Image.fromarray(random.integers(0, 256, (300, 400, 3), dtype=np.uint8)).resize((4000, 3000))
        large.save(Path(folder, "photos", "a", "0.jpg"), quality=90)
        content = Path(folder, "photos", "a", "0.jpg").read_bytes()
        for number in range(1, options.photos):
            Path(folder, "photos", "ab"[number % 2], f"{number}.jpg").write_bytes(content)
        command = [sys.executable, "-c", code, str(Path(folder, "state")), str(Path(folder, "photos"))]
        for which in ("first", "second", "third"):
            done = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            _, seconds, samples, total = done.strip().splitlines()[-1].split()
            about = {"photos": options.photos, "kilobytes_each": len(content) // 1000, "sum": total}
            say(part="photos", message=which, seconds=round(float(seconds), 2), train_samples=int(samples), **about)


def main() -> None:
    """The command line above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["rounds", "photos"])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--devices", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--photos", type=int, default=2000)
    options = parser.parse_args()
    with ending_in_order():
        globals()[options.part](options)


if __name__ == "__main__":
    main()
