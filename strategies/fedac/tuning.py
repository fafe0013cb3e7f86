"""Cluster number tuning: whether a round's clusters are too few or too many, and which to split or to merge.

Zhang, Chen, Lin, Chen, Zhao: FedAC: An Adaptive Clustered Federated Learning Framework for Heterogeneous Data, 2024,
section 4.5 and Algorithm 3 (`ratios`, `by_ratio`). https://arxiv.org/abs/2403.16460
Rousseeuw: Silhouettes, J. Comput. Appl. Math. 20, 1987 (`by_silhouette`).

The paper splits a cluster whose ρ = intra / inter is large. But ρ is large with too few and with too many clusters
alike, because the nearest center to a piece of a group is another piece of it; the silhouette tells the two apart.

Everything here is a function of the clients' reduced models, n × p. Clusters are 0 to K − 1 before a tuning; after it,
those that live on come first, in their old order, then the new ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bouquet.strategies.fedac.reduction import Reduced, unit_rows
from bouquet.strategies.mathematics.aggregation import Assignment
from bouquet.strategies.mathematics.clustering import kmeans, silhouette, silhouette_by_k
from bouquet.strategies.mathematics.similarity import distances_to, euclidean_distances

MARGIN = 0.05  # by how much a grouping must beat the silhouette of the present one
LEAST_SILHOUETTE = 0.25  # without a grouping that has it, there is one cluster
SPLIT_ABOVE, MERGE_BELOW = 0.5, 0.02  # of the paper's ρ, for which it gives no values


@dataclass(frozen=True)
class Change:
    """A split, a merge, or the removal of a cluster that has no clients, and the figure that decided it.

    ``clusters``, numbered as before the tuning: the one that was split or removed, or the one that was merged and the
    one that took it in. ``figure`` was compared with ``against``: a threshold, or the silhouette of the old clusters.
    """

    kind: Literal["split", "merge", "removal"]
    clusters: list[int]
    figure: float | None = None
    against: float | None = None


class Tuning(NamedTuple):
    """What a tuning decided.

    ``labels`` (n,) are the clients' new clusters; ``parents`` holds, for each of these, the old one that it is or was
    split from; ``scores`` are the silhouettes of the candidates for K.
    """

    labels: Assignment
    parents: list[int]
    changes: list[Change]
    scores: dict[int, float]

    @property
    def num_clusters(self) -> int:
        """K after the tuning."""
        return len(self.parents)


def ratios(reduced: Reduced, labels: Assignment, centers: Reduced) -> NDArray[np.float64]:
    """ρ_k = intra_k / inter_k of each cluster, (K,): mean distance of members to their center, by that to the nearest.

    ``reduced`` is n × p, ``centers`` K × p. Clusters without members do not count: theirs is NaN, and so is that of
    the only one that has any.
    """
    own = distances_to(reduced, centers)[np.arange(len(labels)), labels]
    inter = _between(centers, labels).min(axis=1)
    rho = np.full(len(centers), np.nan)
    for k in np.unique(labels):
        if np.isfinite(inter[k]) and inter[k] > 0:
            rho[k] = own[labels == k].mean() / inter[k]
    return rho


def by_silhouette(reduced: Reduced, labels: Assignment, centers: Reduced, most: int, seed: int) -> Tuning:
    """Group the clients anew into the number of clusters with the best mean silhouette, if it wins by `MARGIN`.

    Reduced models (n × p) are compared by direction. The figure to beat is the silhouette of the clusters as they are,
    ``labels`` (n,) around ``centers`` (K × p), so that a bad grouping into the right number of clusters is put right
    too; one cluster, which has no silhouette, counts as `LEAST_SILHOUETTE`. When the best of the candidates up to
    ``most`` is under that, there is nothing to tell apart: one cluster. Where none has a silhouette
    (`bouquet.strategies.mathematics.clustering.silhouette_by_k`), nothing changes.
    """
    unit = unit_rows(reduced)
    scores = silhouette_by_k(unit, range(1, most + 1), seed)
    best = max(scores, key=lambda k: scores[k], default=0)
    figure, against = scores.get(best), _silhouette(unit, labels)
    if figure is None:
        keep = True
    elif figure < LEAST_SILHOUETTE:
        best, against = 1, LEAST_SILHOUETTE
        keep = len(np.unique(labels)) == 1
    else:
        keep = figure < (LEAST_SILHOUETTE if against is None else against) + MARGIN
    followed = _follow(labels, labels if keep else kmeans(unit, best, seed).assignment, len(centers))
    splits = [Change("split", [k], figure, against) for k in followed.splits]
    merges = [Change("merge", [k, into], figure, against) for k, into in followed.merges]
    return followed.tuning(splits + merges, scores)


def by_ratio(reduced: Reduced, labels: Assignment, centers: Reduced, most: int, seed: int) -> Tuning:
    """The paper's rule: split a cluster whose ρ is over `SPLIT_ABOVE`, merge one under `MERGE_BELOW`.

    A cluster is split by 2-means over the reduced models (n × p) of its members, unless it has only one; it is merged
    into the cluster of the nearest of the reduced ``centers`` (K × p). The most extreme ρ comes first, each cluster
    takes part in one change, and there are never more than ``most`` clusters.
    """
    rho = ratios(reduced, labels, centers)
    order = [int(k) for k in np.argsort(rho) if np.isfinite(rho[k])]
    grouped, changes, changed = labels.copy(), list[Change](), set[int]()
    count = fresh = len(centers)
    for k in reversed(order):
        members = np.flatnonzero(labels == k)
        if rho[k] <= SPLIT_ABOVE or len(members) < 2 or count >= most:
            continue
        half = kmeans(reduced[members], 2, seed).assignment == 1
        if half.any():  # equal models cannot be told apart
            grouped[members[half]] = fresh
            changes.append(Change("split", [k], float(rho[k]), SPLIT_ABOVE))
            changed.add(k)
            count, fresh = count + 1, fresh + 1
    nearest = _between(centers, labels).argmin(axis=1)
    for k in order:
        into = int(nearest[k])
        if rho[k] < MERGE_BELOW and not {k, into} & changed:
            grouped[labels == k] = into
            changes.append(Change("merge", [k, into], float(rho[k]), MERGE_BELOW))
            changed |= {k, into}
    return _follow(labels, grouped, len(centers)).tuning(changes, {})


class _Followed(NamedTuple):
    """New groups, numbered after the old clusters that they are or came from."""

    labels: Assignment
    parents: list[int]
    splits: list[int]  # for each new cluster, the old one that it came from
    merges: list[tuple[int, int]]  # old clusters that ended, each with the one that took it in
    removed: list[int]  # old clusters without clients

    def tuning(self, changes: list[Change], scores: dict[int, float]) -> Tuning:
        return Tuning(self.labels, self.parents, changes + [Change("removal", [k]) for k in self.removed], scores)


def _follow(old: Assignment, grouped: Assignment, num_clusters: int) -> _Followed:
    """Match groups to old clusters one to one, so that as many clients as possible keep their cluster."""
    from scipy.optimize import linear_sum_assignment  # a tenth of a second, where nothing is tuned

    overlap = np.zeros((num_clusters, int(grouped.max()) + 1), dtype=np.int64)
    np.add.at(overlap, (old, grouped), 1)
    pairs = zip(*linear_sum_assignment(overlap, maximize=True), strict=True)
    heir = {int(k): int(group) for k, group in pairs if overlap[k, group]}
    parent_of = {group: k for k, group in heir.items()}
    living = sorted(heir)
    new = [g for g in range(overlap.shape[1]) if overlap[:, g].sum() and g not in parent_of]
    splits = [int(overlap[:, group].argmax()) for group in new]
    number = {heir[k]: i for i, k in enumerate(living)} | {g: len(living) + i for i, g in enumerate(new)}
    # A matching of the greatest weight leaves no overlap between what it leaves over: a cluster without an heir has
    # all its clients in groups that are another's heir.
    ended = [k for k in np.unique(old).tolist() if k not in heir]
    return _Followed(
        labels=np.array([number[group] for group in grouped.tolist()], dtype=np.int64),
        parents=living + splits,
        splits=splits,
        merges=[(k, parent_of[int(overlap[k].argmax())]) for k in ended],
        removed=[k for k in range(num_clusters) if not overlap[k].sum()],
    )


RULES = {"silhouette": by_silhouette, "ratio": by_ratio}


def _between(centers: Reduced, labels: Assignment) -> Reduced:
    """Distances of the centers (K × p) to one another; infinite to themselves and to those without members."""
    between = euclidean_distances(centers)
    between[:, ~np.isin(np.arange(len(centers)), labels)] = np.inf
    np.fill_diagonal(between, np.inf)
    return between


def _silhouette(rows: Reduced, labels: Assignment) -> float | None:
    """Mean silhouette of a grouping (n,) of rows (n × p); None where it has none: 1 cluster, or n of them."""
    if not 2 <= len(np.unique(labels)) < len(labels):
        return None
    return silhouette(euclidean_distances(rows), labels)
