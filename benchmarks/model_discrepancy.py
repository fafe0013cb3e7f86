"""Time and memory of DC-PFL's model discrepancy for 1,000 clients, against SciPy's `pdist` in the same run.

Each measurement is a process of its own, so that its peak memory is its own: what it adds to a process that holds the
clients' models and nothing else. The models are random, around one model, in float32. From the repository's root:

    python benchmarks/model_discrepancy.py --clients 1000 --parameters 44426
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np
from scipy.spatial.distance import pdist

from bouquet.strategies.dcpfl.grouping import model_discrepancy

PARAMETERS = 44426  # cnn-dcpfl on FashionMNIST


def models(clients: int, parameters: int) -> np.ndarray:
    """W (n × d): the clients' models."""
    generator = np.random.default_rng(0)
    center = generator.normal(scale=0.1, size=parameters).astype(np.float32)
    W = generator.standard_normal((clients, parameters), dtype=np.float32)
    W *= np.float32(0.01)
    W += center
    return W


def scipy_pdist(W: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """The peer: one call, on the models as they are (it converts them to float64)."""
    return pdist(W, "cityblock")


MEASURED = {
    "nothing": lambda W, origin: W[:1, :1],
    "scipy pdist cityblock": scipy_pdist,
    "l1": lambda W, origin: model_discrepancy(W, origin, "l1"),
    "l1-own": lambda W, origin: model_discrepancy(W, origin, "l1-own"),
    "cosine": lambda W, origin: model_discrepancy(W, origin, "cosine"),
}


def measure(name: str, clients: int, parameters: int) -> dict[str, float]:
    """Seconds and peak megabytes of one measurement, in this process."""
    W = models(clients, parameters)
    started = time.perf_counter()
    MEASURED[name](W, W[0])
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--parameters", type=int, default=PARAMETERS)
    parser.add_argument("--repeats", type=int, default=3, help="the least seconds count")
    parser.add_argument("--only", choices=MEASURED, help="measure one in this process, and print it as JSON")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only, options.clients, options.parameters)))
        return
    size = ["--clients", str(options.clients), "--parameters", str(options.parameters)]
    found = {}
    for name in MEASURED:
        command = [sys.executable, __file__, *size, "--only", name]
        runs = [
            json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            for _ in range(options.repeats)
        ]
        found[name] = (min(run["seconds"] for run in runs), min(run["megabytes"] for run in runs))
    peer, nothing = found["scipy pdist cityblock"][0], found["nothing"][1]
    megabytes = options.clients * options.parameters * 4 / 1e6
    print(f"{options.clients} clients, {options.parameters} parameters: {megabytes:.0f} MB of models")
    print(f"{'':28} {'seconds':>8} {'× pdist':>8} {'added MB':>9}")
    for name, (seconds, peak) in found.items():
        if name != "nothing":
            print(f"{name:28} {seconds:8.2f} {seconds / peer:8.3f} {peak - nothing:9.0f}")


if __name__ == "__main__":
    main()
