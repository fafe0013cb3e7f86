"""Peak memory of a round's replies on the server, beside what they hold: n models of d values of 4 bytes.

Scripted clients on the in-memory grid answer with models of ten layers; each strategy is a process of its own, whose
resident memory is watched by the kernel. "flower" is Flower's own FedAvg and its own loop, on the same grid.
From the repository's root:

    python benchmarks/round_memory.py --clients 200 --parameters 1000000
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

from bouquet.common import protocol
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid, scripted_client
from bouquet.server.record.writer import RunRecord
from bouquet.server.run.build import build_strategy
from bouquet.server.run.loop import run_rounds

LAYERS = 10
ROUNDS = 2


def peak() -> float:
    """Megabytes that this process had in memory at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def measure(name: str, clients: int, parameters: int) -> dict[str, float]:
    """Megabytes of the clients' models, and what the rounds added to this process at their peak."""
    width = round((parameters / (LAYERS - 1)) ** 0.5)
    changes = [f"strategy.name={name}", f"run.rounds={ROUNDS}", f"data.clients={clients}", "data.dataset=digits"]
    settings = load_settings(None, [*changes[bool(name == "flower") :], f"model.hidden={[width] * LAYERS}"])
    layout, start = state_vector(initial_model(settings))

    def model_of(client: int):  # type: ignore[no-untyped-def]
        def train(start, received):  # type: ignore[no-untyped-def]
            noise = np.random.default_rng([client, received.round]).standard_normal(len(start), dtype=np.float32)
            return start + noise + np.float32(client % 4)

        return train

    names = [f"client-{i:04d}" for i in range(clients)]
    handlers = {i + 2: scripted_client(name, layout, model_of(i)) for i, name in enumerate(names)}
    initial = protocol.to_record(layout, start)
    grid = InlineGrid(handlers)
    if name != "flower":
        build_strategy(settings)  # what it imports is none of a round's memory
    before = peak()
    if name == "flower":
        FlowerFedAvg(fraction_evaluate=0.0).start(grid, initial, num_rounds=ROUNDS, train_config=ConfigRecord())
    else:
        with tempfile.TemporaryDirectory() as folder:
            run_rounds(grid, settings, initial, RunRecord(Path(folder) / "run"))
    models = clients * layout.dim * 4 / 1e6
    return {"models": models, "added": peak() - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--strategies", nargs="+", default=["flower", "fedavg", "fesem", "fedprox"])
    parser.add_argument("--only", help="measure one in this process, and print it as JSON")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only, options.clients, options.parameters)))
        return
    print(f"{options.clients} clients, about {options.parameters} parameters, {ROUNDS} rounds")
    print(f"{'':12} {'models, MB':>10} {'added MB':>9} {'× models':>9}")
    for name in options.strategies:
        size = ["--clients", str(options.clients), "--parameters", str(options.parameters)]
        command = [sys.executable, __file__, *size, "--only", name]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = json.loads(output.strip().splitlines()[-1])
        models, added = found["models"], found["added"]
        print(f"{name:12} {models:10.0f} {added:9.0f} {added / models:9.2f}", flush=True)


if __name__ == "__main__":
    main()
