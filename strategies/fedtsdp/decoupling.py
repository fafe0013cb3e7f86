"""The clusters of FedTSDP: DBSCAN in two stages, and who belongs where afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

import numpy as np

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.strategies.mathematics.aggregation import Assignment, Matrix
from bouquet.strategies.mathematics.clustering import canonical_labels
from bouquet.strategies.mathematics.similarity import Distances, euclidean_distances

UNKNOWN = -1
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


class Regrouped(NamedTuple):
    """The new cluster of every client, and the old clusters that go on after the new ones, in this order."""

    assignment: dict[str, int]
    survivors: list[int]


def density_clusters(distances: Distances, eps: float, min_samples: int) -> Assignment:
    """DBSCAN on n × n ``distances``: clusters (n,) numbered from 0; a point that is noise is a cluster of its own."""
    from sklearn.cluster import DBSCAN  # half a second, which a server's check of settings does without

    labels = DBSCAN(eps=eps, min_samples=min_samples, metric="precomputed").fit(distances).labels_.astype(np.int64)
    noise = labels < 0
    labels[noise] = len(labels) + np.arange(noise.sum())
    return canonical_labels(labels)


def second_stage(first: Assignment, distances: Distances, eps: float, min_samples: int) -> Assignment:
    """`density_clusters` inside each cluster of the ``first`` stage (n,), flattened into one numbering (n,)."""
    parts = np.zeros(len(first), dtype=np.int64)
    for cluster in np.unique(first):
        members = np.flatnonzero(first == cluster)
        within = density_clusters(distances[np.ix_(members, members)], eps, min_samples)
        parts[members] = within + parts.max() + 1
    return canonical_labels(parts)


def regroup(before: Mapping[str, int], assignment: Mapping[str, int]) -> Regrouped:
    """The clusters of all clients that ever replied, after those of ``assignment`` were clustered anew.

    A client that was absent goes where most of those are that it was with, of equals to the lower cluster. An old
    cluster of which nobody was present goes on as it is.
    """
    present = {old: Counter(k for c, k in assignment.items() if before.get(c) == old) for old in set(before.values())}
    survivors = sorted(old for old, counts in present.items() if not counts)
    first_free = max(assignment.values(), default=-1) + 1
    target = {old: min(counts, key=lambda new: (-counts[new], new)) for old, counts in present.items() if counts}
    target |= {old: first_free + index for index, old in enumerate(survivors)}
    return Regrouped({**{client: target[old] for client, old in before.items()}, **assignment}, survivors)


def join_nearest(distances: Distances, labels: Assignment) -> Assignment:
    """Clusters (n,) with every `UNKNOWN` row put where its mean distance (n × n) to the known members is least.

    Where no row is known, all stay unknown.
    """
    clusters = np.unique(labels[labels != UNKNOWN])
    joined = labels.copy()
    for row in np.flatnonzero(labels == UNKNOWN) if len(clusters) else []:
        joined[row] = clusters[np.argmin([distances[row, labels == cluster].mean() for cluster in clusters])]
    return joined


def weight_distances(W: Matrix, layout: ParameterLayout) -> Distances:
    """‖w_i − w_j‖₂ (n × n) of models W (n × d), Eq. 9, over the parameters: counters would drown them."""
    return euclidean_distances(layout.parameters_of(W))


def quantiles(distances: Distances) -> list[float]:
    """The `QUANTILES` of the n × n distances of different clients, at least two."""
    pairs = distances[np.triu_indices(len(distances), k=1)]
    return [float(q) for q in np.quantile(pairs, QUANTILES)]


def whole_layers(shared_layers: float) -> int:
    """How many layers are really shared when their real-valued number is L_s: ceil(L_s − 0.5), at least one."""
    return max(1, ceil(shared_layers - 0.5))
