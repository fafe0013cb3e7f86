"""What FedTSDP's Hopkins statistic sees: H by round for divisions of the data, and the quantities that it depends on.

FedTSDP runs without ever clustering, so that all divisions are measured on one model for all. Beside H in the paper's
bounding box it prints H in a box along the principal axes that hold 95 % of the variance of the outputs, the number of
these axes, and how many clients have another within ε₁ in Jensen–Shannon divergence: H tells whether clients come in
groups, not how different they are. Run it from the repository's root; a line takes about a minute:

    python benchmarks/hopkins_by_partition.py --data-dir DIR --seeds 0 1 2

Options of ``--set`` are those of ``bouquet simulate``.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from bouquet.common.settings import Settings, load_settings
from bouquet.experiments.simulation.run import simulate
from bouquet.server.record.reader import read_run
from bouquet.strategies.fedtsdp.hopkins import hopkins_statistic
from bouquet.strategies.fedtsdp.strategy import HOPKINS_DRAWS, HOPKINS_STREAM, FedTSDP

PARTITIONS = {
    "IID": ["data.partition=iid"],
    "Dirichlet 0.5": ["data.partition=dirichlet", "data.beta=0.5"],
    "Dirichlet 0.2": ["data.partition=dirichlet", "data.beta=0.2"],
    "two classes": ["data.partition=pathological", "data.classes_per_client=2"],
}
DEFAULTS = [
    "strategy.name=hopkins_by_partition:Observing",
    "data.dataset=fashion-mnist",
    "data.clients=20",
    "data.samples_per_client=300",
    "model.name=cnn-dcpfl",
    "run.rounds=30",
    "train.local_epochs=2",
    "train.batch_size=25",
    "train.learning_rate=0.05",
    "train.momentum=0.5",
    "train.learning_rate_decay=0.95",
    "simulation.engine=inline",
]


class Observing(FedTSDP):
    """FedTSDP that measures and never clusters."""

    extra: dict[str, float]

    def __init__(self, **options):
        super().__init__(**{**options, "hopkins_threshold": 1.0})

    def _observe(self, state, round_, outputs, divergence, distances):
        state = super()._observe(state, round_, outputs, divergence, distances)
        rows = PCA(n_components=0.95, svd_solver="full").fit_transform(outputs.reshape(len(outputs), -1))
        generator = self._generator(round_, HOPKINS_STREAM)
        principal = hopkins_statistic(rows, max(1, len(rows) // 4), HOPKINS_DRAWS, generator)
        others = divergence + np.diag(np.full(len(divergence), np.inf))
        near = int((others.min(axis=1) < self.eps_outputs).sum())
        self.extra = {"principal": principal.mean, "axes": rows.shape[1], "near": near}
        return state

    def record(self, state):
        """FedTSDP's, and what was measured beside it."""
        return {**super().record(state), **self.extra}


def by_round(settings: Settings) -> dict[str, NDArray[np.float64]]:
    """H, H along the principal axes, their number and the clients with a near one, each by round."""
    with tempfile.TemporaryDirectory() as folder:
        simulate(settings, Path(folder) / "run")
        lines = read_run(Path(folder) / "run").rounds
    seen = [line["strategy"] for line in lines if line.get("strategy")]
    return {key: np.array([line[key] for line in seen]) for key in ("hopkins", "principal", "axes", "near")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="", help="folder that holds the data set")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--partition", choices=PARTITIONS, nargs="+", default=list(PARTITIONS))
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    options = parser.parse_args()
    columns = "H: round 1", "2", "3", "later", "above 0.65 in rounds", "principal: later", "axes", "near"
    print("  ".join(["partition     seed", *columns]))
    for name in options.partition:
        for seed in options.seeds:
            chosen = [*PARTITIONS[name], f"run.seed={seed}", f"data.data_dir={options.data_dir}"]
            found = by_round(load_settings(None, [*DEFAULTS, *chosen, *options.set]))
            h, principal = found["hopkins"], found["principal"]
            above = (np.flatnonzero(h > 0.65) + 1).tolist()
            figures = [*(f"{value:.3f}" for value in h[:3]), f"{h[3:].mean():.3f}", f"{above}"]
            figures += [f"{principal[3:].mean():.3f}", f"{found['axes'].mean():.1f}", f"{found['near'].mean():.1f}"]
            print("  ".join([f"{name:<13}", f"{seed}", *figures]), flush=True)


if __name__ == "__main__":
    main()
