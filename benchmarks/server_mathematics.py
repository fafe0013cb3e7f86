"""The server's mathematics on n models of d parameters, each beside a named peer in the same run, and what bounds it.

    python benchmarks/server_mathematics.py --clients 200 --parameters 1000000

Aggregation into ten clusters is beside Flower's `aggregate_arrayrecords` for one model of the same replies; distances
are beside SciPy's `pdist(…, "cityblock")`, taken of fewer rows and counted by pair and coordinate; FedAC's reduction is
beside scikit-learn's randomised PCA. "GB/s" is how fast
the models were read once, beside what a sum over them reaches; "Gflop/s" beside a square product of matrices. The least
seconds of some turns count. For the memory and seconds of each kind of discrepancy: benchmarks/model_discrepancy.py;
for FedTSDP's inference: benchmarks/server_inference.py. From the repository's root.
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from scipy.spatial.distance import pdist
from sklearn.decomposition import PCA

from bouquet.strategies.dcpfl.grouping import model_discrepancy
from bouquet.strategies.fedac.reduction import fit_map
from bouquet.strategies.mathematics.aggregation import cluster_means
from bouquet.strategies.mathematics.clustering import assign_to_nearest
from bouquet.strategies.mathematics.similarity import cosine_similarity, cosine_to, l1_discrepancy

CLUSTERS = 10
LAYERS = 10
PEER_ROWS = 30  # of which pdist is taken
DIRECTIONS = 10  # to which FedAC reduces the models


def least(turns: int, work: Callable[[], Any]) -> float:
    """The least seconds of some turns."""
    found = []
    for _ in range(turns):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)


def seconds_of_flower(W: np.ndarray, turns: int) -> float:
    """Flower's mean of the models, as replies of ten arrays."""
    records = [
        RecordDict(
            {
                "arrays": ArrayRecord({f"l{i}": Array(part) for i, part in enumerate(np.array_split(row, LAYERS))}),
                "metrics": MetricRecord({"num-examples": 10}),
            }
        )
        for row in W
    ]
    return least(turns, lambda: aggregate_arrayrecords(records, "num-examples"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    n, d, turns = options.clients, options.parameters, options.turns
    W = np.random.default_rng(0).standard_normal((n, d), dtype=np.float32)
    W *= np.float32(0.01)
    labels = np.arange(n) % CLUSTERS
    centers = cluster_means(W, labels, CLUSTERS)
    gigabytes, pairs = W.nbytes / 1e9, n * (n - 1) / 2 * d
    print(f"{n} clients, {d} parameters: {gigabytes:.2f} GB of models; {os.cpu_count()} cores, load "
          f"{os.getloadavg()[0]:.1f}")  # fmt: skip
    bandwidth = gigabytes / least(turns, W.sum)
    square = np.random.default_rng(1).standard_normal((1500, 1500))
    rate = 2 * 1500**3 / least(turns, lambda: square @ square) / 1e9
    print(f"this machine: a sum reads {bandwidth:.1f} GB/s; float64 products {rate:.0f} Gflop/s")

    def show(name: str, seconds: float, flops: float = 0.0, peer: str = "") -> None:
        flop_rate = f"{flops / seconds / 1e9:8.1f}" if flops else " " * 8
        print(f"{name:44} {seconds:8.2f} {gigabytes / seconds:7.1f} {flop_rate} {peer}", flush=True)

    print(f"{'':44} {'seconds':>8} {'GB/s':>7} {'Gflop/s':>8}")
    show("Flower's aggregate_arrayrecords, one model", flower := seconds_of_flower(W, turns))
    own = least(turns, lambda: cluster_means(W, labels, CLUSTERS, np.full(n, 10)))
    show(f"aggregation into {CLUSTERS} clusters", own, 2 * CLUSTERS * n * d, f"{own / flower:.2f} of Flower's")
    show("FeSEM, E-step: distances to the centers", least(turns, lambda: assign_to_nearest(W, centers)), 3 * 10 * n * d)
    show("FedAC: cosines to the centers", least(turns, lambda: cosine_to(W, centers)), 2 * CLUSTERS * n * d)
    randomised = PCA(DIRECTIONS, svd_solver="randomized", random_state=0)
    show(f"scikit-learn's PCA, {DIRECTIONS} directions, randomised", other := least(1, lambda: randomised.fit(W)))
    own = least(turns, lambda: fit_map(W, DIRECTIONS))
    show(f"FedAC: {DIRECTIONS} directions, exact", own, 2 * n * n * d, f"{own / other:.2f} of scikit-learn's")
    found = fit_map(W, DIRECTIONS)
    assert found is not None
    show("FedAC: the models in these directions", least(turns, lambda: found[0].reduce(W)), 2 * DIRECTIONS * n * d)
    show("CFL, ClusterFL: cosines of all pairs", least(turns, lambda: cosine_similarity(W)), 2 * pairs)
    few = W[:PEER_ROWS]
    peer = least(turns, lambda: pdist(few, "cityblock")) / (PEER_ROWS * (PEER_ROWS - 1) / 2 * d)
    kinds: dict[str, Callable[[], Any]] = {
        "DC-PFL's discrepancy, cosine (its default)": lambda: model_discrepancy(W, W[0], "cosine"),
        "DC-PFL's discrepancy, L1": lambda: l1_discrepancy(W),
    }
    for name, work in kinds.items():
        seconds = least(1, work)
        show(name, seconds, 0.0, f"{seconds / pairs / peer:.2f} of pdist's {1e9 * peer:.2f} ns a pair and coordinate")


if __name__ == "__main__":
    main()
