"""A cluster that falls apart, and how: for a cluster that nobody chose, as k-means puts an empty center elsewhere.

Two devices that trained one model are as far apart as their steps' directions. One mini-batch's step is noisy, and two
devices of one group are then no nearer to each other than to anybody; the mean over rounds is not. What was measured:
docs/papers/gradient-loss.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bouquet.strategies.mathematics.aggregation import Matrix
from bouquet.strategies.mathematics.clustering import hierarchical_clusters, silhouette
from bouquet.strategies.mathematics.meetings import add_meeting, mean_distances
from bouquet.strategies.mathematics.similarity import Distances, cosine_similarity

LEAST_SILHOUETTE = (
    0.25  # as `bouquet.strategies.mathematics.clustering.choose_num_clusters` has it, measured again for steps
)
# Of few devices the best of all divisions is clearer by chance: at least these two, the second over their number.
OF_FEW, OVER_NUMBER = 0.2, 0.5
LEAST_MEETINGS = 3.0  # rounds in which devices of the two halves trained one model, in the mean over their pairs


class Apart(NamedTuple):
    """1 − cosine of the steps of pairs of ``clients``, summed over the ``meetings`` in which both trained one model.

    Both are n × n, and None before the first.
    """

    total: Distances | None
    meetings: Distances | None
    clients: list[str]


class Division(NamedTuple):
    """The two halves of a cluster's devices; ``silhouette`` (−1 to 1) says how clear they are."""

    larger: list[str]
    smaller: list[str]
    silhouette: float
    meetings: float  # of the pairs across the halves, in the mean

    @property
    def clear(self) -> bool:
        """Whether the devices are two groups, as far as can be known."""
        least = max(LEAST_SILHOUETTE, OF_FEW + OVER_NUMBER / (len(self.larger) + len(self.smaller)))
        return self.silhouette >= least and self.meetings >= LEAST_MEETINGS


def compare_steps(before: Apart, trained: Mapping[str, int], models: Matrix, centers: Matrix) -> Apart:
    """What is known after a round: device → the cluster that it ``trained``, and its model's parameters (n, p) by row.

    ``centers`` (K, p) are the models that they began with.
    """
    after = before
    clients, clusters = np.array(list(trained)), np.array(list(trained.values()))
    for cluster in np.unique(clusters):
        rows = np.flatnonzero(clusters == cluster)
        distances = 1.0 - cosine_similarity(models[rows], centers[cluster])
        after = Apart(*add_meeting(*after, clients[rows].tolist(), distances))
    return after


def divide(apart: Apart, members: Sequence[str]) -> Division | None:
    """The two halves of ``members``, all of whom trained one model in some round; None of fewer than three.

    Average linkage; of equally large halves the first has the first member.
    """
    if len(members) < 3 or apart.total is None or apart.meetings is None:
        return None
    place = {client: row for row, client in enumerate(apart.clients)}
    rows = [place[client] for client in members]
    meetings = apart.meetings[np.ix_(rows, rows)]
    distances = mean_distances(apart.total[np.ix_(rows, rows)], meetings)
    half = hierarchical_clusters(distances, num_clusters=2)
    halves = [[client for client, its in zip(members, half, strict=True) if its == side] for side in (0, 1)]
    larger, smaller = sorted(halves, key=len, reverse=True)
    return Division(larger, smaller, silhouette(distances, half), float(meetings[half == 0][:, half == 1].mean()))


def clearest(divisions: Mapping[int, Division | None]) -> Iterable[tuple[int, Division]]:
    """The clusters that are two groups; first that whose smaller half has most devices, then the clearer one."""
    apart = [(cluster, division) for cluster, division in divisions.items() if division and division.clear]
    return sorted(apart, key=lambda one: (-len(one[1].smaller), -one[1].silhouette))
