"""How well each distance of DC-PFL follows the clients' data: its Pearson correlation with the label KLD over pairs.

The paper says 0.895 for 30 clients (section III-A). All three distances are measured in one run: five rounds of one
model for all, as in DC-PFL's first rounds. Run it from the repository's root; it takes some minutes:

    python benchmarks/discrepancy_correlation.py --data-dir DIR --set data.groups=6

Options of ``--set`` are those of ``bouquet simulate``; without ``data.groups`` every client has its own distribution.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from bouquet.client.data.loading import part_of
from bouquet.common.data.heterogeneity import label_counts, label_kld_matrix
from bouquet.common.settings import Settings, load_settings
from bouquet.experiments.simulation.run import simulate
from bouquet.server.record.reader import read_run
from bouquet.strategies.dcpfl.grouping import model_discrepancy
from bouquet.strategies.dcpfl.strategy import DCPFL
from bouquet.strategies.mathematics.meetings import add_meeting, mean_distances

KINDS = ("l1", "l1-own", "cosine")
DEFAULTS = [
    "strategy.name=discrepancy_correlation:ThreeDistances",
    "data.dataset=fashion-mnist",
    "data.partition=dominant",
    "data.clients=30",
    "data.samples_per_client=600",
    "model.name=cnn-dcpfl",
    "run.rounds=5",
    "train.local_epochs=5",
    "train.batch_size=32",
    "train.learning_rate=0.01",
    "simulation.engine=inline",
]


class ThreeDistances(DCPFL):
    """DC-PFL's first rounds, with the distances of the round by all three measures in its record."""

    distances: dict[str, list[list[float]]]

    def update(self, state, round_, replies):
        """Measure, then go on as DC-PFL does."""
        origin = state.centers[0]
        self.distances = {kind: model_discrepancy(replies.W, origin, kind).tolist() for kind in KINDS}
        return super().update(state, round_, replies)

    def record(self, state):
        """The clients and their distances."""
        return {"clients": self.train_round.replies.clients, "distances": self.distances}


def correlations(settings: Settings) -> dict[str, float]:
    """Pearson correlation over pairs of clients, by distance."""
    with tempfile.TemporaryDirectory() as folder:
        simulate(settings, Path(folder) / "run")
        lines = read_run(Path(folder) / "run").rounds
    clients = lines[0]["strategy"]["clients"]
    kld = label_kld_matrix(label_counts([labels(settings, client) for client in clients], num_classes=10))
    pairs = np.triu_indices(len(clients), k=1)
    found = {}
    for kind in KINDS:
        sums = None, None, []
        for line in lines:
            distances = np.array(line["strategy"]["distances"][kind])
            sums = add_meeting(*sums, line["strategy"]["clients"], distances)
        found[kind] = float(np.corrcoef(mean_distances(*sums[:2])[pairs], kld[pairs])[0, 1])
    return found


def labels(settings: Settings, client: str) -> np.ndarray:
    """All labels that a simulated client holds."""
    part = part_of(settings, int(client.removeprefix("client-")))
    return np.concatenate([part.train_y, part.test_y])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="", help="folder that holds the data set")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    options = parser.parse_args()
    settings = load_settings(None, [*DEFAULTS, f"data.data_dir={options.data_dir}", *options.set])
    print(json.dumps({kind: round(value, 3) for kind, value in correlations(settings).items()}))


if __name__ == "__main__":
    main()
