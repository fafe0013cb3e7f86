"""Are the groups of devices in their data? Clusters by what devices say of their data, beside those of FeSEM.

    python -m benchmarks.data_subspaces experiments/results/benchmarks/number-of-clusters-runs.csv
    python -m benchmarks.data_subspaces experiments/results/benchmarks/number-of-clusters-runs.csv --unlabelled

From the repository's root. It makes the fleets of that file anew, those of ten and more devices; FeSEM's figures are
read from it, at the learning rate .05. A fleet is right as in ``number_of_clusters.py``.

PACFL (Vahidian et al., AAAI 2023, arXiv 2209.10526): each device sends a few left singular vectors of its samples once,
here the three of each class. The server clusters devices by the angles between these subspaces: agglomeratively, with
average linkage, until all are further apart than a threshold. The threshold here is the one, of 1 to 90 degrees, with
which most of all fleets are right: nobody has it beforehand.

FLUX (Fenoglio et al., NeurIPS 2025, arXiv 2511.22305), by its authors' code (github.com/dariofenoglio98/FLUX): after
some rounds of FedAvg each device describes its samples, as that model's last layer is given them, by means and standard
deviations, in all and by class. The server clusters these with DBSCAN, whose radius is the elbow of the devices'
distances to their nearest. What is our choice: five rounds of warm-up (their earliest clustering is in round 4, by a
rule on the fleet's accuracy); the input of the last layer (theirs is that of the first dense one, here the image); the
largest distance where there is no elbow, which leaves nobody alone; with K given, k-means with ten starts (theirs one).

``--unlabelled``: a fifth of the devices has no labels, each fifth once, and the clusters are the groups of the others.
A device gets the cluster of the nearest mean of what needs no labels, the means and standard deviations in all: of what
FLUX takes them, and of 32 random projections of the samples themselves. FLUX's model has seen all devices.
"""

import argparse
import csv
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from benchmarks.flux import Array, clusters, description, moments, placed, scaled
from benchmarks.number_of_clusters import PARTITIONS, Cell, read
from bouquet.client.data.loading import ClientData, part_of
from bouquet.common.model.build import initial_model
from bouquet.common.settings import Settings, load_settings
from bouquet.experiments.simulation.run import simulate

RATE, FEWEST = 0.05, 10
VECTORS = 3
FARTHEST = 90.0  # degrees, of a class that one device lacks
WARM_UP = 5  # rounds
PROJECTIONS = 32  # of samples themselves
Fleet = tuple[str, int, int, int]  # kind, groups, devices, seed


def settings_of(fleet: Fleet) -> Settings:
    kind, groups, devices, seed = fleet
    options = Cell(kind, groups, devices, RATE, seed, "fedavg").settings()
    return load_settings(None, [*options, f"run.rounds={WARM_UP}"])


@cache
def parts_of(fleet: Fleet) -> list[ClientData]:
    return [part_of(settings_of(fleet), device) for device in range(fleet[2])]


def groups_of(fleet: Fleet) -> list[int]:
    return [part.group or 0 for part in parts_of(fleet)]


def is_right(found: Collection[int], groups: Collection[int]) -> bool:
    return len(set(found)) == len(set(groups)) == len(set(zip(found, groups, strict=True)))


# --- PACFL --------------------------------------------------------------------------------------------------------


def basis(samples: Array) -> Array:
    """Left singular vectors (features, `VECTORS`) of samples (n, …)."""
    return np.linalg.svd(samples.reshape(len(samples), -1).T, full_matrices=False)[0][:, :VECTORS]


@cache
def tree(fleet: Fleet, by_class: bool) -> Array:
    """Average linkage of the devices by the mean principal angle between their subspaces."""
    bases = []
    for part in parts_of(fleet):
        classes = (
            {c: part.train_x[part.train_y == c] for c in range(part.num_classes)} if by_class else {0: part.train_x}
        )
        bases.append({c: basis(samples) for c, samples in classes.items() if len(samples)})
    apart = np.zeros((len(bases), len(bases)))
    for i, j in zip(*np.triu_indices(len(bases), 1), strict=True):
        angles = [FARTHEST] * len(bases[i].keys() ^ bases[j].keys())
        for c in bases[i].keys() & bases[j].keys():
            cosines = np.linalg.svd(bases[i][c].T @ bases[j][c], compute_uv=False)
            angles.append(np.degrees(np.arccos(cosines.clip(0, 1))).mean())
        apart[i, j] = apart[j, i] = np.mean(angles)
    return linkage(squareform(apart), "average")


def by_angles(fleet: Fleet, by_class: bool, threshold: float | None = None) -> bool:
    """Whether the clusters below a threshold, or as many as there are groups, are the groups."""
    merges = tree(fleet, by_class)
    found = fcluster(merges, fleet[1], "maxclust") if threshold is None else fcluster(merges, threshold, "distance")
    return is_right(found.tolist(), groups_of(fleet))


# --- FLUX ---------------------------------------------------------------------------------------------------------


@cache
def projected(fleet: Fleet) -> list[Array]:
    """For each device its training samples as the last layer of the fleet's first common model is given them.

    Each (n, classes): projected on the first components of random points, which are the same for all devices.
    """
    settings = settings_of(fleet)
    with tempfile.TemporaryDirectory() as folder:
        simulate(settings, Path(folder) / "run")
        model = initial_model(settings)
        model.load_state_dict(load_file(Path(folder) / "run" / "models" / "cluster-0.safetensors"))
    body = torch.nn.Sequential(*list(model.children())[:-1]).eval()
    with torch.no_grad():
        kept, held_out = (
            [body(torch.from_numpy(x)).numpy() for x in samples]
            for samples in zip(*((part.train_x, part.test_x) for part in parts_of(fleet)), strict=True)
        )
    largest = 1.02 * max(float(latents.max()) for latents in held_out)
    points = np.random.RandomState(1).uniform(0, largest, (200, kept[0].shape[1]))
    axes = PCA(parts_of(fleet)[0].num_classes).fit(points)
    return [axes.transform(latents) for latents in kept]


@cache
def by_descriptions(fleet: Fleet, given: bool) -> bool:
    """Whether FLUX's clusters are the groups, or those of k-means with as many as there are."""
    described = zip(parts_of(fleet), projected(fleet), strict=True)
    points = scaled(np.array([description(x, part.train_y, part.num_classes) for part, x in described]))
    kmeans = KMeans(fleet[1], n_init=10, random_state=fleet[3])
    return is_right(kmeans.fit_predict(points).tolist() if given else clusters(points), groups_of(fleet))


# --- devices without labels ---------------------------------------------------------------------------------------


@cache
def without_labels(fleet: Fleet, by_model: bool) -> tuple[int, int]:
    """How many devices come into their group without labels, and of how many."""
    if by_model:
        samples = projected(fleet)
    else:
        flat = [part.train_x.reshape(len(part.train_x), -1) for part in parts_of(fleet)]
        axes = np.random.default_rng(fleet[3]).normal(size=(flat[0].shape[1], PROJECTIONS))
        samples = [x @ axes for x in flat]
    return placed(np.array([moments([x]) for x in samples]), np.array(groups_of(fleet)), fleet[3])


# --- the benchmark ------------------------------------------------------------------------------------------------


def chosen(runs: Collection[Cell]) -> dict[tuple[str, int], list[Cell]]:
    """By how devices differ and how many they are, FeSEM's runs with K found on the fleets that are made anew."""
    found = defaultdict(list)
    for run in sorted(runs):
        alike = run.method == "fesem" and run.learning_rate == RATE and run.devices >= FEWEST
        if alike and run.kind in (*PARTITIONS, "iid"):
            found[run.kind, run.devices].append(run)
    return dict(sorted(found.items()))


def fleet_of(run: Cell) -> Fleet:
    return run.kind, run.groups, run.devices, run.seed


def summary(runs: Collection[Cell], right_runs: set[Cell]) -> Iterator[list[str]]:
    """A line for each way to differ and number of devices: in how many runs each is right."""
    kinds = chosen(runs)
    every = [run for found in kinds.values() for run in found]

    def share(found: list[Cell], by_class: bool, threshold: float | None = None) -> int:
        return sum(by_angles(fleet_of(run), by_class, threshold) for run in found)

    best = {by: max(map(float, range(1, 91)), key=lambda degrees: share(every, by, degrees)) for by in (True, False)}
    names = {True: "vectors of each class", False: "of all samples"}
    heads = [f"{names[by]}, {what}" for by in best for what in ("K given", f"{best[by]:.0f}°")]
    ours = [f"{name}, K {how}" for name in ("FeSEM", "FLUX") for how in ("found", "given")]
    yield ["devices differ by", "devices", "runs", *ours, *heads]
    for (kind, devices), found in kinds.items():
        given = [cell for run in found if (cell := run._replace(method=f"fesem:{run.groups}")) in runs]
        counts = [sum(run in right_runs for run in found), sum(run in right_runs for run in given) if given else "–"]
        counts += [sum(by_descriptions(fleet_of(run), given=how) for run in found) for how in (False, True)]
        counts += [share(found, by, degrees) for by in best for degrees in (None, best[by])]
        yield [kind, str(devices), str(len(found)), *map(str, counts)]


def unlabelled(runs: Collection[Cell]) -> Iterator[list[str]]:
    """A line for each way to differ and number of groups: the share of devices that come into their group."""
    fleets = defaultdict(list)
    for run in (run for (kind, _), found in chosen(runs).items() if kind in PARTITIONS for run in found):
        fleets[run.kind, run.groups, run.devices].append(fleet_of(run))
    sizes = sorted({devices for *_, devices in fleets})
    names = {True: "FLUX's model", False: "projected samples"}
    heads = [f"{name}, {devices} devices" for name in names.values() for devices in sizes]
    yield ["devices differ by", "groups", *heads]
    for kind, groups in dict.fromkeys(fleet[:2] for fleet in sorted(fleets)):
        found = [
            np.sum([without_labels(fleet, by_model) for fleet in fleets[kind, groups, devices]] or [(0, 0)], axis=0)
            for by_model in names
            for devices in sizes
        ]
        yield [kind, str(groups), *(f"{right / placed:.2f}" if placed else "–" for right, placed in found)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--unlabelled", action="store_true", help="devices without labels, in place of the clusters")
    options = parser.parse_args()
    runs = read(options.runs)
    right_runs = {run for run, one in runs.items() if one["clusters"] == run.groups and one["purity"] == 1}
    csv.writer(sys.stdout, lineterminator="\n").writerows(
        unlabelled(runs) if options.unlabelled else summary(runs, right_runs)
    )


if __name__ == "__main__":
    main()
