"""Are the groups of devices in their data? PACFL's clusters, before any training, beside those that FeSEM found.

    python -m benchmarks.data_subspaces experiments/results/benchmarks/data-subspaces-runs.csv

From the repository's root. It makes the fleets of that file anew; FeSEM's figures are read from it. In PACFL (Vahidian
et al., AAAI 2023, arXiv 2209.10526) each device sends a few left singular vectors of its samples once, here the three
of each class. The server clusters devices by the angles between these subspaces: agglomeratively, with average linkage,
until all are further apart than a threshold. The threshold here is the one, of 1 to 90 degrees, with which most of
all fleets are right: nobody has it beforehand. A fleet is right as in ``number_of_clusters.py``.
"""

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from benchmarks.number_of_clusters import PARTITIONS, Cell, read
from bouquet.client.data.loading import part_of
from bouquet.common.settings import load_settings

VECTORS = 3
FARTHEST = 90.0  # degrees, of a class that one device lacks
Fleet = tuple[str, int, int, int]  # kind, groups, devices, seed


def basis(samples: NDArray[np.floating]) -> NDArray[np.floating]:
    """Left singular vectors (features, `VECTORS`) of samples (n, …)."""
    return np.linalg.svd(samples.reshape(len(samples), -1).T, full_matrices=False)[0][:, :VECTORS]


@cache
def tree(fleet: Fleet, by_class: bool) -> tuple[NDArray[np.floating], list[int]]:
    """Average linkage of the devices by the mean principal angle between their subspaces, and their true groups."""
    kind, groups, devices, seed = fleet
    options = Cell(kind, groups, devices, 0.05, seed, "fesem").settings()
    parts = [part_of(load_settings(None, options), device) for device in range(devices)]
    bases = []
    for part in parts:
        classes = (
            {c: part.train_x[part.train_y == c] for c in range(part.num_classes)} if by_class else {0: part.train_x}
        )
        bases.append({c: basis(samples) for c, samples in classes.items() if len(samples)})
    apart = np.zeros((devices, devices))
    for i, j in zip(*np.triu_indices(devices, 1), strict=True):
        angles = [FARTHEST] * len(bases[i].keys() ^ bases[j].keys())
        for c in bases[i].keys() & bases[j].keys():
            cosines = np.linalg.svd(bases[i][c].T @ bases[j][c], compute_uv=False)
            angles.append(np.degrees(np.arccos(cosines.clip(0, 1))).mean())
        apart[i, j] = apart[j, i] = np.mean(angles)
    return linkage(squareform(apart), "average"), [part.group or 0 for part in parts]


def right(fleet: Fleet, by_class: bool, threshold: float | None = None) -> bool:
    """Whether the clusters below a threshold, or as many as there are groups, are the groups."""
    merges, groups = tree(fleet, by_class)
    found = fcluster(merges, fleet[1], "maxclust") if threshold is None else fcluster(merges, threshold, "distance")
    return len(set(found)) == len(set(groups)) == len(set(zip(found, groups, strict=True)))


def summary(runs: Collection[Cell], right_runs: set[Cell]) -> Iterator[list[str]]:
    """A line for each way to differ: in how many runs each is right."""
    fleets = defaultdict(list)
    for run in runs:
        if run.kind in (*PARTITIONS, "iid") and run.method == "fesem":
            fleets[run.kind].append(run)
    every = [run for found in fleets.values() for run in found]

    def share(found: list[Cell], by_class: bool, threshold: float | None = None) -> int:
        return sum(right((run.kind, run.groups, run.devices, run.seed), by_class, threshold) for run in found)

    best = {by: max(map(float, range(1, 91)), key=lambda degrees: share(every, by, degrees)) for by in (True, False)}
    names = {True: "vectors of each class", False: "of all samples"}
    heads = [f"{names[by]}, {what}" for by in best for what in ("K given", f"{best[by]:.0f}°")]
    yield ["devices differ by", "runs", "FeSEM, K found", "FeSEM, K given", *heads]
    for kind, found in sorted(fleets.items()):
        given = [cell for run in found if (cell := run._replace(method=f"fesem:{run.groups}")) in runs]
        counts = [sum(run in right_runs for run in found), sum(run in right_runs for run in given) if given else "–"]
        counts += [share(found, by, degrees) for by in best for degrees in (None, best[by])]
        yield [kind, str(len(found)), *map(str, counts)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    runs = read(parser.parse_args().runs)
    right_runs = {run for run, one in runs.items() if one["clusters"] == run.groups and one["purity"] == 1}
    csv.writer(sys.stdout, lineterminator="\n").writerows(summary(runs, right_runs))


if __name__ == "__main__":
    main()
