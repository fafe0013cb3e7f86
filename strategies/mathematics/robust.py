"""Aggregation that a minority of bad models cannot move far: median, trimmed mean and Krum inside each cluster.

Sources: Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates.
ICML 2018 (median, trimmed mean, by coordinate). Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with
Adversaries: Byzantine Tolerant Gradient Descent. NeurIPS 2017 (Krum). Sun, Kairouz, Suresh, McMahan: Can You Really
Backdoor Federated Learning? 2019 (limits on the norm of updates). Tukey: Exploratory Data Analysis. 1977 (the outer
fences, `fences`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bouquet.common.errors import BouquetError
from bouquet.strategies.mathematics.aggregation import Matrix, Vector, cluster_means, mean_without_ends

Rule = Literal["mean", "median", "trimmed-mean", "krum"]


@dataclass(frozen=True)
class Aggregation:
    """How the models of a cluster's members become one.

    ``"mean"`` is the mean, weighted where the method weighs. The others weigh all members alike, so that nobody gains
    influence by the number of samples that it claims. ``trim`` is the share of bad members that is expected: it is cut
    off at either end of each coordinate (``"trimmed-mean"``), or f / n of Krum. ``compared`` is a mask (d,) of the
    columns that Krum's distances are over, None for all: a model's parameters, whose buffers follow the amount of data.
    Of the columns that it does not see it takes the median, not those of the model that it chose.
    ``most_weight`` caps each weight in a cluster (`capped`); None leaves them.
    Raises `BouquetError` for another rule, and for a ``trim`` outside of [0, 0.5).
    """

    rule: Rule = "mean"
    trim: float = 0.2
    compared: NDArray[np.bool_] | None = field(default=None, compare=False, repr=False)
    most_weight: int | None = None

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise BouquetError(f"rule = {self.rule!r}: one of {', '.join(get_args(Rule))}.")
        if not 0 <= self.trim < 0.5:
            raise BouquetError(f"trim = {self.trim}: a number from 0, below 0.5.")

    def cluster_means(
        self,
        W: Matrix,
        assignment: NDArray[np.integer[Any]] | Sequence[int],
        num_clusters: int,
        weights: ArrayLike | None = None,
        previous: Matrix | None = None,
    ) -> Matrix:
        """The center of each cluster, (K, d); arguments and errors as of `aggregation.cluster_means`."""
        members = np.asarray(assignment, dtype=np.int64)
        if weights is not None and len(members):
            weights = self.weights(weights, members)
        centers = cluster_means(W, members, num_clusters, weights, previous)
        if self.rule == "mean":
            return centers
        for cluster in np.unique(members):
            rows = W[members == cluster]
            if len(rows) > 2:  # of two, no rule can tell which is bad
                centers[cluster] = self._center(rows)
        return centers

    def weights(self, given: ArrayLike, assignment: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """The weights (n,) that count, in the clusters of an assignment (n,) or in one: as given, or capped."""
        weights = np.asarray(given)
        if self.most_weight is None:
            return weights
        members = np.zeros(len(weights), dtype=np.int64) if assignment is None else assignment
        counted = weights.copy()
        for cluster in np.unique(members):
            counted[members == cluster] = capped(weights[members == cluster], self.most_weight)
        return counted

    def center(self, W: Matrix, weights: ArrayLike | None = None) -> Matrix:
        """The center of all rows as one cluster, (1, d)."""
        return self.cluster_means(W, [0] * len(W), 1, weights)

    def _center(self, rows: Matrix) -> Vector:
        if self.rule == "krum":
            num_bad = int(self.trim * len(rows))
            if self.compared is None or self.compared.all():
                return rows[krum(rows, num_bad)]
            center: Vector = rows[krum(rows[:, self.compared], num_bad)].copy()
            center[~self.compared] = np.median(rows[:, ~self.compared], axis=0)
            return center
        if self.rule == "trimmed-mean":
            return mean_without_ends(rows, int(self.trim * len(rows)))
        return mean_without_ends(rows, (len(rows) - 1) // 2)  # the median: all but the one or two in the middle go


def krum(W: Matrix, num_bad: int) -> int:
    """The row of W (n × d) whose squared distances to its n − f − 2 nearest others sum to least; f is ``num_bad``."""
    from bouquet.strategies.mathematics.similarity import euclidean_distances  # SciPy, which the others do without

    squared = np.square(euclidean_distances(W))
    nearest = max(1, len(W) - num_bad - 2)
    return int(np.sort(squared, axis=1)[:, 1 : nearest + 1].sum(axis=1).argmin())


def capped(weights: NDArray[Any], factor: int) -> NDArray[Any]:
    """The weights (n,), none of them more than ``factor`` times their median, of an even number the lower one.

    Of n members none then has more than ``factor`` / (``factor`` + ⌊n / 2⌋) of all weight, whatever it claims: beside
    it ⌊n / 2⌋ others weigh as much as the median or more. Zeros, of members that do not count, are none of the n.
    """
    positive = weights[weights > 0]
    return np.minimum(weights, factor * _lower_median(positive)) if len(positive) else weights


def _lower_median(values: NDArray[Any]) -> Any:
    """Of two the smaller: the mean of both is whatever the larger makes it."""
    return np.sort(values)[(len(values) - 1) // 2]


def fences(values: Matrix) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The least and the largest value (b,) that is no outlier among the rows (n × b).

    That is 3 quartile distances off the median. What three quarters of the rows have at 0 or above goes not below 0.
    Fewer than a quarter of the rows, whatever they hold, move these no further than the others lie apart.
    """
    low, middle, high = np.quantile(values.astype(np.float64), (0.25, 0.5, 0.75), axis=0)
    reach = 3 * (high - low)
    return np.where(low >= 0, np.maximum(middle - reach, 0), middle - reach), middle + reach


def norm_limits(norms: NDArray[np.float64], clusters: NDArray[np.int64], factor: float) -> NDArray[np.float64]:
    """How much of each update is kept, (n,), 0 to 1, so that its norm is at most ``factor`` times its cluster's median.

    ``norms`` (n,) are those of the updates, of which zeros do not count (nothing was uploaded), ``clusters`` (n,) where
    the clients belong. A cluster with fewer than three members takes the median of all, and two who are all the smaller
    norm: of two, either could be the bad one.
    """
    moved = norms > 0
    middle = np.median if moved.sum() > 2 else _lower_median
    medians = np.full(len(norms), middle(norms[moved]) if moved.any() else 0.0)
    for cluster in np.unique(clusters):
        members = moved & (clusters == cluster)
        if members.sum() > 2:
            medians[members] = np.median(norms[members])
    limits = factor * medians
    return np.minimum(1.0, np.divide(limits, norms, out=np.ones_like(norms), where=norms > 0))
