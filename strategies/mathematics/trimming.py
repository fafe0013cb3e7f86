"""Robust statistics of client models: means and clusters that a few outliers, however far off, cannot move much.

Sources: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018 (the trimmed
mean); Cuesta-Albertos, Gordaliza and Matrán, "Trimmed k-Means: An Attempt to Robustify Quantizers", Annals of
Statistics 25, 1997.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bouquet.common.errors import BouquetError
from bouquet.strategies.mathematics.aggregation import Assignment, Matrix, Vector, mean_without_ends
from bouquet.strategies.mathematics.clustering import canonical_labels
from bouquet.strategies.mathematics.similarity import Distances, euclidean_distances

MAX_STEPS = 100  # of Lloyd's algorithm, which ends long before


class TrimmedKMeans(NamedTuple):
    """``assignment`` (n,) of all rows, the ones that were trimmed (n,), and the sum of squares of the others."""

    assignment: Assignment
    trimmed: NDArray[np.bool_]
    inertia: float


def trimmed_mean(W: Matrix, share: float) -> Vector:
    """The mean (d,) of the rows of W (n × d) without the ⌈share · n⌉ largest and smallest values of each coordinate.

    Yin et al. 2018, Definition 2, which does not say how β·n is rounded: up, so that one outlier among three rows is
    left out at every share above 0; but one value, or two, always stay. Raises `BouquetError` for no rows, and for a
    share below 0, or of 0.5 and above.
    """
    if not len(W) or not 0 <= share < 0.5:
        raise BouquetError(f"No trimmed mean of {len(W)} models with a share of {share}; it goes from 0 to below 0.5.")
    return mean_without_ends(W, min(math.ceil(share * len(W)), (len(W) - 1) // 2))


def trimmed_kmeans(W: Matrix, num_clusters: int, share: float, seed: int, restarts: int = 20) -> TrimmedKMeans:
    """K-means of the rows of W (n × d), of which ⌈share · n⌉ count for nothing: in each step those farthest off.

    Lloyd's algorithm from ``restarts`` draws of K rows; of its ends the one with the least sum of squares of the rows
    that count. A row that does not count is assigned to its nearest center all the same. There are fewer clusters where
    fewer than K rows that count are distinct. Raises `BouquetError` for fewer rows that count
    than clusters, and for a share below 0, or of 1 and above.
    """
    counting = len(W) - math.ceil(share * len(W)) if 0 <= share < 1 else 0
    if not 1 <= num_clusters <= counting:
        raise BouquetError(
            f"No trimmed k-means of {len(W)} models into {num_clusters} clusters with a share of {share}: "
            f"{counting} models would count."
        )
    squared = euclidean_distances(W) ** 2
    rng = np.random.default_rng(seed)
    draws = [rng.choice(len(W), num_clusters, replace=False) for _ in range(restarts)]
    best = min((_lloyd(squared, draw, counting) for draw in draws), key=lambda result: result.inertia)
    return best._replace(assignment=canonical_labels(best.assignment))


def _lloyd(squared: Distances, draw: NDArray[np.int64], counting: int) -> TrimmedKMeans:
    """Lloyd's algorithm on squared distances (n × n) alone, from the rows of a draw (K,).

    The squared distance of row i to the mean of a set is the mean of its own to the members, less half the mean of
    theirs to each other. So an outlier far off costs the others no precision.
    """
    members = [np.array([row]) for row in draw]
    best = TrimmedKMeans(np.zeros(len(squared), dtype=np.int64), np.ones(len(squared), dtype=bool), math.inf)
    for _ in range(MAX_STEPS):
        to_centers = np.stack([squared[:, m].mean(axis=1) - squared[np.ix_(m, m)].mean() / 2 for m in members], axis=1)
        nearest = to_centers.min(axis=1)
        trimmed = np.ones(len(squared), dtype=bool)
        trimmed[np.argsort(nearest, kind="stable")[:counting]] = False
        clustering = TrimmedKMeans(to_centers.argmin(axis=1), trimmed, float(nearest[~trimmed].sum()))
        if clustering.inertia >= best.inertia:
            break
        best = clustering
        # A center that nothing counts for any more is none.
        counted = [np.flatnonzero((clustering.assignment == k) & ~trimmed) for k in range(len(members))]
        members = [m for m in counted if len(m)]
    return best
