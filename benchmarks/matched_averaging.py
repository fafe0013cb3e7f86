"""Where matched averaging (FeSEM, section 5.1) matters: devices that start from one model, or from models of their own.

Each of a few devices trains on its own part of the same distribution; their models are averaged as they are, and with
their hidden units put into the order of the first device's. Then every device trains once more, from that mean, and
the models, which have a start in common now, are averaged plainly. Accuracy is that on all devices' test samples.

    python benchmarks/matched_averaging.py --data-dir FOLDER     # FashionMNIST; without a folder the embedded digits

From the repository's root.
"""

import argparse
from collections.abc import Sequence

import numpy as np
import torch

from bouquet.client.data.loading import part_of
from bouquet.client.rounds.model import Built
from bouquet.client.training.evaluation import test
from bouquet.client.training.sgd import SGDOptions, sgd_options, train
from bouquet.common.parameters.layout import Vector
from bouquet.common.settings import Settings, load_settings
from bouquet.strategies.fesem.matching import match_rows
from bouquet.strategies.mathematics.aggregation import weighted_mean

MODELS = {"mlp 64-64": ["model.name=mlp", "model.hidden=[64,64]"], "LeNet": ["model.name=cnn-dcpfl"]}
STARTS = ("one for all", "its own")
COLUMNS = ("each device's", "plain mean", "matched mean", "plain, then a round", "matched, then a round")


class Fleet:
    """Devices with IID data and one model in PyTorch that they take turns with."""

    def __init__(self, settings: Settings) -> None:
        parts = [part_of(settings, i) for i in range(settings.data.clients)]
        self.data = [(torch.as_tensor(p.train_x), torch.as_tensor(p.train_y)) for p in parts]
        self.test_x = torch.cat([torch.as_tensor(p.test_x) for p in parts])
        self.test_y = torch.cat([torch.as_tensor(p.test_y) for p in parts])
        self.built = Built.of(settings)
        self.options: SGDOptions = sgd_options({}, settings.train)
        self.seed = settings.run.seed

    def trained(self, starts: Sequence[Vector], round_: int) -> np.ndarray:
        """Each device's model (n × d) after local training from its start."""
        rows = []
        for device, (start, (x, y)) in enumerate(zip(starts, self.data, strict=True)):
            model = self.built.load(start)
            generator = torch.Generator().manual_seed(1000 * self.seed + 10 * round_ + device)
            train(model, x, y, self.options, [], generator)
            rows.append(self.built.vector())
        return np.stack(rows)

    def accuracy(self, vector: Vector) -> float:
        return test(self.built.load(vector), self.test_x, self.test_y).score


def measured(settings: Settings, own_starts: bool) -> list[float]:
    """The accuracies of `COLUMNS`."""
    fleet, seeds = Fleet(settings), range(settings.data.clients)
    changed = [settings.with_overrides({"run.seed": 1000 + 10 * settings.run.seed + i}) for i in seeds]
    starts = [Built.of(s if own_starts else settings).initial for s in changed]
    W = fleet.trained(starts, 0)
    means = [weighted_mean(W), weighted_mean(match_rows(W[0], W, fleet.built.layout))]
    again = [weighted_mean(fleet.trained([mean] * len(W), 1)) for mean in means]
    return [float(np.mean([fleet.accuracy(row) for row in W])), *map(fleet.accuracy, [*means, *again])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 5])
    parser.add_argument("--samples", type=int, default=0, help="a device; by default 600, of digits 200")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    samples = options.samples or (600 if options.data_dir else 200)
    base = [
        f"data.dataset={'fashion-mnist' if options.data_dir else 'digits'}",
        f"data.data_dir={options.data_dir}",
        "data.partition=iid",
        f"data.samples_per_client={samples}",
        f"train.local_epochs={options.epochs}",
    ]
    print(f"{'model':10} {'devices':>7} {'start':12} " + " ".join(f"{column:>23}" for column in COLUMNS))
    for name, changes in MODELS.items():
        for devices in options.devices:
            for start in STARTS:
                found = []
                for seed in options.seeds:
                    own = [*base, *changes, f"data.clients={devices}", f"run.seed={seed}"]
                    found.append(measured(load_settings(None, own), start == STARTS[1]))
                texts = [f"{np.mean(column):.3f} ± {np.std(column, ddof=1):.3f}" for column in zip(*found, strict=True)]
                print(f"{name:10} {devices:>7} {start:12} " + " ".join(f"{text:>23}" for text in texts), flush=True)


if __name__ == "__main__":
    main()
