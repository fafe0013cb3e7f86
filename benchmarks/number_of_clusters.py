"""Is the number of clusters found? FeSEM on digits in groups, K found beside K given and FedAvg.

    python benchmarks/number_of_clusters.py RUNS.csv --seeds 2001 2002      # what RUNS.csv has already is not run again
    python benchmarks/number_of_clusters.py RUNS.csv --seeds 2003 --kinds dominant unequal
    python benchmarks/number_of_clusters.py RUNS.csv --seeds                # the summary alone

From the repository's root; a line a run in ``RUNS.csv``, the summary on standard output. A run is right where it has as
many clusters as there are groups and no cluster has devices of two. Default settings, 15 rounds. ``sampled``: three of
ten devices in each of 30 rounds. ``dominant`` and ``dirichlet`` have no true number: there the accuracies count.
``unequal``: alike devices, some with sixteen times as many samples as others, in one group. ``lenet``: FashionMNIST and
LeNet, from the folder of ``BOUQUET_DATA_DIR``, where --kinds asks for it.
"""

import argparse
import csv
import sys
import tempfile
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from bouquet.common.data.datasets import Dataset, dataset_info, described, load_dataset
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate

PARTITIONS = {"rotated": "rotated", "permuted": "label-permuted", "class": "class-groups"}
UNEQUAL = (f"data.dataset={__file__}:unequal", "data.partition=natural", "data.min_samples=8")
LENET = ("data.dataset=fashion-mnist", "model.name=cnn-dcpfl", "data.samples_per_client=100", "data.test_samples=400")
SAMPLED = ("server.fraction_train=0.3", "run.rounds=30")
ALL = (
    ("all rotated and permuted", ("rotated", "permuted"), "5 to 8"),
    ("all rotated and permuted", ("rotated", "permuted"), "10 to 40"),
    ("all of these three", ("rotated", "permuted", "class"), "10 to 40"),
)
COLUMNS = ("kind", "groups", "devices", "learning_rate", "seed", "method", "clusters", "purity", "accuracy")


class Cell(NamedTuple):
    """A run: how devices differ, in how many groups, how many they are, and the method, with K behind a colon."""

    kind: str
    groups: int
    devices: int
    learning_rate: float
    seed: int
    method: str

    def settings(self) -> list[str]:
        kind = self.kind.removeprefix("sampled ").removeprefix("lenet ")
        name, _, given = self.method.partition(":")
        found = [f"data.partition={PARTITIONS.get(kind, kind.split()[0])}", f"data.clients={self.devices}"]
        found += [f"train.learning_rate={self.learning_rate}", f"run.seed={self.seed}", f"strategy.name={name}"]
        found += [f"data.groups={self.groups}"] if kind in PARTITIONS else []
        found += [f"data.beta={kind.split()[1]}"] if kind.startswith("dirichlet") else []
        found += UNEQUAL if kind == "unequal" else ()
        found += [f"strategy.num_clusters={given}"] if given else []
        found += LENET if self.kind.startswith("lenet") else ()
        found += SAMPLED if self.kind.startswith("sampled") else ("run.rounds=15",)
        return [*found, "simulation.engine=batched"]


def cells(seed: int) -> Iterator[Cell]:
    """All runs of a seed; the large fleets, which take the longest, come last."""
    for devices, kind, groups in product((5, 6, 7, 8), ("rotated", "permuted"), (2, 3)):
        for method in ("fesem", f"fesem:{groups}", "fedavg"):
            yield Cell(kind, groups, devices, 0.05, seed, method)
    for devices in (10, 20, 40):
        for rate in (0.05, 0.1, 0.02):
            yield Cell("iid", 1, devices, rate, seed, "fesem")
            for kind in PARTITIONS:
                for groups in (2, 3, 4, 5, 6):
                    for method in ("fesem", f"fesem:{groups}", *(("fedavg",) if rate == 0.05 else ())):
                        yield Cell(kind, groups, devices, rate, seed, method)
        if devices == 20:
            for kind, groups in (("rotated", 2), ("rotated", 4), ("permuted", 4), ("iid", 1)):
                yield Cell(f"sampled {kind}", groups, 10, 0.05, seed, "fesem")
            for method in ("fesem", "fedavg"):
                yield Cell("unequal", 1, 12, 0.05, seed, method)
            for rate in (0.05, 0.02):
                for kind in ("dominant", "dirichlet 0.1", "dirichlet 0.5"):
                    for method in ("fesem", "fedavg"):
                        yield Cell(kind, 0, devices, rate, seed, method)
            for kind, groups in product(("lenet rotated", "lenet permuted"), (1, 2, 4)):
                for method in ("fesem", *((f"fesem:{groups}", "fedavg") if groups > 1 else ())):
                    yield Cell(kind, groups, devices, 0.05, seed, method)


@described(dataset_info("digits"))
def unequal(data_dir: Path | None) -> Dataset:
    """Digits of owners who differ in nothing but how many they have: 8 to 128, evenly in their logarithms."""
    digits = load_dataset("digits", data_dir)
    sizes = np.geomspace(8, 128, 40).round().astype(np.int64)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    order = np.random.default_rng(0).permutation(len(digits.y))[: len(owners)]
    return Dataset("unequal", digits.x[order], digits.y[order], owners=owners)


def measured(cell: Cell) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        found = simulate(load_settings(None, cell.settings()), Path(folder) / "run")
    about = {**cell._asdict(), "devices": cell.devices}
    return {**about, "clusters": found["clusters"], "purity": found["purity"], "accuracy": found["accuracy_macro"]}


def read(path: Path) -> dict[Cell, dict[str, Any]]:
    if not path.exists():
        return {}
    found = {}
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            about = {name: kind(line[name]) for name, kind in Cell.__annotations__.items()}
            found[Cell(**about)] = {name: float(line[name] or 1) for name in ("clusters", "purity", "accuracy")}
    return found


def summary(runs: dict[Cell, dict[str, Any]]) -> Iterator[list[str]]:
    """A line for each way to differ and number of devices, over groups, learning rates and seeds; then those of `ALL`.

    A rival is compared on the runs that both have. Where there is no right number, each learning rate has its own line.
    """
    beside = ("gain over K given", "gain over FedAvg", "over a point below FedAvg")
    yield ["devices differ by", "devices", "K found", "K found, where K given is right", *beside]
    lines: dict[tuple[str, str], dict[Cell, dict[str, Any]]] = {}
    found = [cell for cell in sorted(runs) if cell.method == "fesem"]
    for cell in found:
        name = cell.kind if cell.groups else f"{cell.kind}, rate {_text(cell.learning_rate, '')}"
        lines.setdefault((name, str(cell.devices)), {})[cell] = runs[cell]
    for name, kinds, sizes in ALL:
        least, most = map(int, sizes.split(" to "))
        line = {cell: runs[cell] for cell in found if cell.kind in kinds and least <= cell.devices <= most}
        lines |= {(name, sizes): line} if line else {}
    for (name, devices), own in lines.items():
        given, fedavg = (
            {cell: rival for cell in own if (rival := cell._replace(method=of.format(cell.groups))) in runs}
            for of in ("fesem:{}", "fedavg")
        )
        over = [[own[cell]["accuracy"] - runs[rival]["accuracy"] for cell, rival in r.items()] for r in (given, fedavg)]
        below = f"{sum(gain < -0.01 for gain in over[1])} of {len(fedavg)}" if fedavg else "–"
        both = [(cell, own[cell]) for cell, rival in given.items() if _is_right(rival, runs[rival])]
        gains = [_text(mean(gains), "+") if gains else "–" for gains in over]
        yield [name, devices, _right([*own.items()]), _right(both), *gains, below]


def _text(value: float, sign: str) -> str:
    return f"{value:{sign}.3f}".replace("0.", ".", 1)


def _is_right(cell: Cell, found: dict[str, Any]) -> bool:
    return bool(found["clusters"] == cell.groups and found["purity"] == 1)


def _right(found: list[tuple[Cell, dict[str, Any]]]) -> str:
    """In how many runs it is right, or how many have one cluster where there is no right number."""
    if not found:
        return "–"
    if not found[0][0].groups:
        return f"one in {sum(one['clusters'] == 1 for _, one in found)} of {len(found)}"
    right = sum(_is_right(*one) for one in found)
    return f"{right} of {len(found)}" + (
        f" ({right / len(found):.0%})" if len({cell.kind for cell, _ in found}) > 1 else ""
    )


def _is_asked(cell: Cell, kinds: list[str] | None) -> bool:
    return any(cell.kind.startswith(kind) for kind in kinds) if kinds else not cell.kind.startswith("lenet")


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[2001])
    parser.add_argument("--kinds", nargs="*", help="those that begin so, alone")
    options = parser.parse_args(arguments if arguments is None else list(arguments))
    runs = read(options.runs)
    asked = (cell for seed in options.seeds for cell in cells(seed) if _is_asked(cell, options.kinds))
    for cell in (cell for cell in asked if cell not in runs):
        fresh, runs[cell] = not options.runs.exists(), (line := measured(cell))
        with options.runs.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if fresh:
                writer.writeheader()
            writer.writerow(line)
    csv.writer(sys.stdout, lineterminator="\n").writerows(summary(runs))


if __name__ == "__main__":
    main()
