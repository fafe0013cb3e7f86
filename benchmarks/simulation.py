"""Seconds a round of a simulation in one process, beside a bare PyTorch loop over the same clients; and many clients.

    python benchmarks/simulation.py rounds --data-dir FOLDER     # engines inline and batched against the loop
    python benchmarks/simulation.py many --data-dir FOLDER       # 100, 1,000 and 10,000 clients, 50 sampled a round

The loop is what one would write down: for each client load the model, take its loss on the training data and its
accuracy, train, take the accuracy again; then average. It writes no files and checks nothing. Both do the same steps on
the same data, in turns in one process, and the least seconds of a round count: of one thread CPU seconds, which other
work on the machine hardly changes, of all cores wall seconds. FashionMNIST; without a folder the
embedded digits, of which 36 samples a client are the most for 50 clients. From the repository's root.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from bouquet.common.model.build import initial_model
from bouquet.common.settings import Settings, load_settings
from bouquet.common.system.resources import available_cores
from bouquet.experiments.simulation.batched_sgd import CPU_BYTES
from bouquet.experiments.simulation.run import simulate

Clock = Callable[[], float]
MODELS = {
    "mlp 8": ["model.name=mlp", "model.hidden=[8]"],
    "mlp 64-64": ["model.name=mlp", "model.hidden=[64,64]"],
    "cnn-dcpfl": ["model.name=cnn-dcpfl"],
}


def settings_of(clients: int, samples: int, data_dir: str, changes: list[str]) -> Settings:
    base = [
        f"data.dataset={'fashion-mnist' if data_dir else 'digits'}",
        f"data.data_dir={data_dir}",
        f"data.clients={clients}",
        f"data.samples_per_client={samples}",
        "data.min_samples=2",
        "strategy.name=fedavg",
        "simulation.engine=inline",
    ]
    return load_settings(None, [*base, *changes])


def seconds_of_rounds(settings: Settings, clock: Clock = time.perf_counter) -> list[float]:
    """Seconds of each round of a simulation but the first, in which the data are read."""
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        simulate(settings, Path(folder) / "run", follow=lambda line: ends.append(clock()))
    return [after - before for before, after in pairwise(ends)]


def bare_rounds(settings: Settings, clock: Clock) -> list[float]:
    """The loop's seconds a round, after one that warms up."""
    from bouquet.client.data.loading import part_of

    train = settings.train
    parts = [part_of(settings, i) for i in range(settings.data.clients)]
    clients = [tuple(map(torch.as_tensor, (p.train_x, p.train_y, p.test_x, p.test_y))) for p in parts]
    torch.set_num_threads(train.threads or available_cores())
    model = initial_model(settings)
    shared = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    seconds = []
    for _ in range(settings.run.rounds):
        started = clock()
        total, count = {name: torch.zeros_like(t) for name, t in shared.items()}, 0
        for x, y, test_x, test_y in clients:
            model.load_state_dict(shared)
            with torch.no_grad():
                F.cross_entropy(model(x), y).item()
                (model(test_x).argmax(dim=1) == test_y).float().mean().item()
            optimiser = torch.optim.SGD(model.parameters(), lr=train.learning_rate, momentum=train.momentum)
            for _ in range(train.local_epochs):
                for batch in torch.randperm(len(y)).split(train.batch_size):
                    optimiser.zero_grad()
                    F.cross_entropy(model(x[batch]), y[batch]).backward()
                    nn.utils.clip_grad_norm_(model.parameters(), train.max_gradient_norm or 1e9)
                    optimiser.step()
            with torch.no_grad():
                (model(test_x).argmax(dim=1) == test_y).float().mean().item()
            for name, tensor in model.state_dict().items():
                total[name] += tensor * len(y)
            count += len(y)
        shared = {name: tensor / count for name, tensor in total.items()}
        seconds.append(clock() - started)
    return seconds[1:]


def products(settings: Settings, clock: Clock) -> float:
    """Seconds of a round's products of matrices alone, on one thread; 0 for a model that is not of linear layers."""
    model = initial_model(settings)
    if any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return 0.0
    shapes = [module.weight.shape for module in model.modules() if isinstance(module, nn.Linear)]
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    clients = min(settings.data.clients, max(1, CPU_BYTES // size))
    train, batch = settings.train, settings.train.batch_size
    steps = train.local_epochs * -(-int(settings.data.samples_per_client * (1 - settings.data.test_fraction)) // batch)
    layers = [
        (torch.randn(clients, batch, i), torch.randn(clients, o, i), torch.randn(clients, batch, o)) for o, i in shapes
    ]
    torch.set_num_threads(1)
    started = clock()
    for _ in range(steps):
        for number, (x, weight, gradient) in enumerate(layers):
            torch.bmm(x, weight.mT)
            torch.bmm(gradient.mT, x)
            if number:
                torch.bmm(gradient, weight)
    return (clock() - started) * settings.data.clients / clients


def rounds(options: argparse.Namespace) -> None:
    data = "FashionMNIST" if options.data_dir else "digits"
    print(f"{data}, {options.clients} clients of {options.samples} samples, 2 epochs of mini-batches of 16; load "
          f"{os.getloadavg()[0]:.1f}")  # fmt: skip
    print(f"{'model':10} {'threads':>7} {'loop s':>7} {'inline s':>9} {'× loop':>7} {'batched s':>10} {'× loop':>7}"
        f" {'products s':>11} {'× loop':>7}")  # fmt: skip
    for name in options.models:
        for threads in options.threads:
            changes = [*MODELS[name], f"run.rounds={options.rounds}", f"train.threads={threads}"]
            settings = settings_of(options.clients, options.samples, options.data_dir, changes)
            clock = time.process_time if threads == 1 else time.perf_counter
            found: dict[str, list[float]] = {"loop": [], "inline": [], "batched": [], "products": []}
            for _ in range(options.turns):
                found["loop"] += bare_rounds(settings, clock)
                for engine in ("inline", "batched"):
                    found[engine] += seconds_of_rounds(settings.with_overrides({"simulation.engine": engine}), clock)
                found["products"] += [products(settings, clock) for _ in range(3 if threads == 1 else 0)]
            loop, inline, batched, least = (min(seconds, default=0.0) for seconds in found.values())
            bound = f" {least:11.2f} {least / loop:7.2f}" if least else ""
            print(
                f"{name:10} {threads or 'all':>7} {loop:7.2f} {inline:9.2f} {inline / loop:7.2f} {batched:10.2f} "
                f"{batched / loop:7.2f}{bound}",
                flush=True,
            )


def many(options: argparse.Namespace) -> None:
    """Each number of clients in a process of its own, for its memory."""
    if options.only:
        share = options.sampled / options.only
        changes = [*MODELS["mlp 64-64"], f"run.rounds={options.rounds}", f"server.fraction_train={share}"]
        changes += ["simulation.engine=batched", "server.fraction_evaluate=" + str(share)]
        settings = settings_of(options.only, 7, options.data_dir, changes)
        started = time.perf_counter()
        seconds = seconds_of_rounds(settings, time.process_time)  # of one thread
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(json.dumps({"round": min(seconds), "megabytes": peak, "all": time.perf_counter() - started}))
        return
    print(f"{options.sampled} clients a round; load {os.getloadavg()[0]:.1f}")
    print(f"{'clients':>8} {'CPU ms a sampled one':>20} {'peak MB':>8} {'whole run, s':>13}")
    for clients in options.clients_many:
        command = [sys.executable, __file__, "many", "--only", str(clients), "--sampled", str(options.sampled)]
        command += ["--rounds", str(options.rounds), "--data-dir", options.data_dir]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = json.loads(output.strip().splitlines()[-1])
        each = 1000 * found["round"] / options.sampled
        print(f"{clients:8} {each:20.2f} {found['megabytes']:8.0f} {found['all']:13.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rounds", "many"])
    parser.add_argument("--data-dir", default=os.environ.get("BOUQUET_DATA_DIR", ""))
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 0], help="0: all cores")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--clients-many", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--sampled", type=int, default=50)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    if not options.data_dir:
        options.samples = min(options.samples, 1797 // options.clients)
    rounds(options) if options.what == "rounds" else many(options)


if __name__ == "__main__":
    main()
