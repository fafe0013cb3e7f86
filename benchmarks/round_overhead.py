"""What a round costs beyond its training: a stock Flower app, Bouquet with ``--cold``, and Bouquet, in turns.

The same model, data, number of devices and rounds, local SGD by the same function; Flower's own ``flower-superlink``
and ``flower-supernode`` as shipped for the stock app (FedAvg, training messages only). Linux, root. From the
repository's root:

    python benchmarks/round_overhead.py rounds --devices 6 --rounds 5 --turns 2
    python benchmarks/round_overhead.py memory
    python benchmarks/round_overhead.py idle --minutes 10     (with iproute2; --away: while the server is switched off)
    python benchmarks/round_overhead.py photos --photos 2000
    python benchmarks/round_overhead.py keys --keys 100

Seconds a round are from the first round's end to the last's. CPU seconds a message are those of all of a device's
processes in that time, less what the same training takes inside one process. Each line is one measurement, as JSON,
with the machine's load: wall times mean something on a quiet machine only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import tomli_w

sys.path.insert(0, str(Path(__file__).parent))
from processes import cpu_seconds, memory_bytes, tree
from wire import Link

from common.system.ports import free_port, wait_for_port
from common.system.process_group import ProcessGroup
from common.system.programs import program_environment
from server.superlink.control_api import control
from server.superlink.process import start_superlink

KINDS = ("stock", "cold", "warm")
AS_SHIPPED = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1.0"}
PATIENCE_SECONDS = 1800.0
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
from client.training import sgd
from client.data.loading import load_partition
from common.model.architectures import build_model

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


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Wait with patience."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if time.monotonic() > deadline:
            sys.exit(f"not in {PATIENCE_SECONDS:g} s: {what}")
        time.sleep(0.1)


class Federation:
    """A server and devices of one kind; the root process of each device in ``devices``."""

    def __init__(self, kind: str, folder: Path, devices: int, rounds: int) -> None:
        self.kind, self.folder, self.count, self.rounds = kind, folder, devices, rounds
        self.port = free_port()
        self.devices: list[int] = []
        self.running: list[subprocess.Popen[bytes]] = []

    def start_server(self) -> None:
        """Bouquet's begins its run by itself; the stock one with `begin`."""
        if self.kind == "stock":
            where = ("--insecure", "--host", "0.0.0.0", "--port", str(self.port))
            server = self._run("superlink", "flower-superlink", *where, "--disable-runtime-dependency-installation")
            wait_for_port("127.0.0.1", self.port, PATIENCE_SECONDS, lambda: server.poll() is None)
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

    def start_device(self, number: int, address: str = "127.0.0.1", inside: tuple[str, ...] = ()) -> int:
        """Its root process."""
        server = f"{address}:{self.port}"
        if self.kind == "stock":
            config = f"partition-id={number} num-partitions={self.count}"
            where = ("--superlink", server, "--insecure", "--port", str(free_port()), "--node-config", config)
            started = self._run(f"device-{number}", "flower-supernode", *where, inside=inside)
        else:
            where = ("--server", server, "--insecure", "--partition-id", str(number), "--state-dir", f"state-{number}")
            how = ("--cold",) if self.kind == "cold" else ()
            started = self._run(f"device-{number}", "bouquet", "client", *where, *how, inside=inside)
        self.devices.append(started.pid)
        return started.pid

    def _run(self, log: str, program: str, *arguments: str, inside: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        home = {"FLWR_HOME": str(self.folder / log), "FLWR_LOG_LEVEL": "INFO"}
        environment = program_environment({**AS_SHIPPED, **home} if self.kind == "stock" else home)
        command = [*inside, str(Path(sys.executable).parent / program), *arguments]
        with (self.folder / f"{log}.log").open("wb") as output:
            process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=output, stderr=output)
        self.running.append(process)
        return process

    def connected(self) -> bool:
        """Whether every device has its node id."""
        return all("SuperNode ID" in (self.folder / f"device-{n}.log").read_text() for n in range(len(self.devices)))

    def begin(self) -> None:
        """Submit the stock run."""
        if self.kind != "stock":
            return
        app = self.folder / "app"
        app.mkdir()
        code = {"stock_client": STOCK_CLIENT, "stock_server": STOCK_SERVER, "stock_training": STOCK_TRAINING}
        for name, text in code.items():
            (app / f"{name}.py").write_text(text)
        config = {"marks": str(self.folder / "marks"), "nodes": self.count, "rounds": self.rounds}
        components = {"serverapp": "stock_server:app", "clientapp": "stock_client:app"}
        flower = {"app": {"publisher": "stock", "components": components, "config": config}}
        project = {"name": "stock", "version": "1.0.0", "license": "Apache-2.0", "description": "", "dependencies": []}
        (app / "pyproject.toml").write_text(tomli_w.dumps({"project": project, "tool": {"flwr": flower}}))
        with control(f"127.0.0.1:{self.port}") as api:
            api.start_run(app, {})

    def done(self) -> int:
        """Rounds that are over."""
        file = self.folder / ("marks" if self.kind == "stock" else "run/rounds.jsonl")
        lines = file.read_text().count("\n") if file.exists() else 0
        return max(0, lines - 1) if self.kind == "stock" else lines  # the stock server also notes a round 0

    def end(self) -> None:
        """End all of it, the devices with what they started."""
        for process in self.running:
            below = tree(process.pid)[1:]
            process.terminate()
            for pid in below if self.kind == "stock" else []:
                end_process(pid)
        for process in self.running:
            process.wait(60)


def end_process(pid: int) -> None:
    """A process that may be gone."""
    try:
        os.kill(pid, 15)
    except ProcessLookupError:
        return


@contextmanager
def federation(kind: str, devices: int, rounds: int) -> Iterator[Federation]:
    """One in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix=f"overhead-{kind}-") as folder:
        made = Federation(kind, Path(folder), devices, rounds)
        try:
            made.start_server()
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
    for turn in range(options.turns):
        for kind in options.kinds:
            with federation(kind, options.devices, options.rounds) as run:
                for number in range(options.devices):
                    run.start_device(number)
                wait_until(run.connected, f"{kind}: all devices connected")
                begun = time.monotonic()
                run.begin()
                wait_until(lambda run=run: run.done() >= 1, f"{kind}: the first round")
                first, before = time.monotonic(), sum(map(cpu_seconds, run.devices))
                wait_until(lambda run=run: run.done() >= options.rounds, f"{kind}: the last round")
                seconds, cpu = time.monotonic() - first, sum(map(cpu_seconds, run.devices)) - before
            messages = options.devices * (options.rounds - 1)
            say(
                part="rounds",
                kind=kind,
                turn=turn,
                seconds_a_round=round(seconds / (options.rounds - 1), 2),
                seconds_to_the_first=round(first - begun, 2),
                cpu_seconds_a_message=round(cpu / messages - training, 3),
                training_seconds=round(training, 3),
            )


def memory(options: argparse.Namespace) -> None:
    """A device's memory at its peak, from its start to its last round, and at rest after that."""
    for kind in options.kinds:
        with federation(kind, 1, options.rounds) as run:
            device, begun, peak = run.start_device(0), False, 0
            while run.done() < options.rounds:
                peak = max(peak, memory_bytes(device))
                if not begun and run.connected():
                    run.begin()
                    begun = True
                time.sleep(0.02)
            time.sleep(options.settle)
            rest = memory_bytes(device)
        say(part="memory", kind=kind, rest_mb=round(rest / 1e6), peak_mb=round(peak / 1e6))


def idle(options: argparse.Namespace) -> None:
    """CPU seconds, and bytes on its own interface, of a device that waits, all kinds at the same time."""
    with ExitStack() as stack:
        runs, links = [], []
        for number, kind in enumerate(options.kinds, 101):  # away from those of wire.py
            link = Link(number, None)
            stack.callback(link.down)
            link.up()
            # Nobody else comes, so that no run begins.
            run = Federation(kind, Path(stack.enter_context(tempfile.TemporaryDirectory())), 2, 1)
            stack.callback(run.end)
            run.start_server()
            run.start_device(0, link.server, ("ip", "netns", "exec", link.namespace))
            runs.append(run)
            links.append(link)
        for run in runs:
            wait_until(run.connected, f"{run.kind}: the device connected")
        if options.away:
            for run in runs:
                # The server alone: devices follow it in the list.
                run.running[0].kill()
        time.sleep(options.settle)
        before = [(cpu_seconds(run.devices[0]), sum(link.counters())) for run, link in zip(runs, links, strict=True)]
        time.sleep(60 * options.minutes)
        for run, link, (cpu, count) in zip(runs, links, before, strict=True):
            say(
                part="idle, server away" if options.away else "idle",
                kind=run.kind,
                minutes=options.minutes,
                cpu_seconds_an_hour=round((cpu_seconds(run.devices[0]) - cpu) * 60 / options.minutes, 1),
                bytes_an_hour=round((sum(link.counters()) - count) * 60 / options.minutes),
            )


def photos(options: argparse.Namespace) -> None:
    """Seconds to have a device's photos ready, for the first message and for later ones, in processes of their own."""
    code = (
        "import sys,time;started=time.perf_counter();from types import SimpleNamespace;"
        "from client.context import ClientContext;"
        "from common.settings import parse_settings;import client.data.cache,torch;imported=time.perf_counter();"
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


def keys(options: argparse.Namespace) -> None:
    """Seconds until a server has admitted all keys of a folder."""
    from bouquet.keys.store import add_device, init_keys, server_keys
    from server.fleet.admission import Admission

    with tempfile.TemporaryDirectory() as folder, ProcessGroup() as group:
        made = Path(folder) / "keys"
        init_keys(made, ["127.0.0.1"])
        for number in range(options.keys):
            add_device(made, f"device-{number}")
        own = server_keys(made, False)
        assert own is not None
        superlink = start_superlink(
            group,
            Path(folder) / "superlink",
            fleet_address=f"127.0.0.1:{free_port()}",
            certificates=own.certificates,
            supernode_auth=True,
            database=Path(folder) / "superlink" / "superlink.db",
        )
        said: list[str] = []
        started = time.monotonic()
        Admission(superlink, own.registered, said.append).apply()
        say(part="keys", keys=len(said), seconds=round(time.monotonic() - started, 2))


def main() -> None:
    """The command line above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["rounds", "memory", "idle", "photos", "keys"])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--devices", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--settle", type=float, default=20.0, help="seconds after a start before memory is looked at")
    parser.add_argument("--away", action="store_true")
    parser.add_argument("--photos", type=int, default=2000)
    parser.add_argument("--keys", type=int, default=100)
    options = parser.parse_args()
    globals()[options.part](options)


if __name__ == "__main__":
    main()
