"""Clustering of client models: k-means, silhouettes, and a hierarchy of groups.

Clusters are numbered by their first member in row order, so that equal groupings are equal arrays.

Sources: Long et al., "Multi-Center Federated Learning" (FeSEM; the start, Eq. 8); Zhang et al., DC-PFL,
section III-B (the hierarchy); Rousseeuw, "Silhouettes", J. Comput. Appl. Math. 20, 1987; Müllner, "Modern
hierarchical, agglomerative clustering algorithms", arXiv 1109.2378 (the linkages).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from threadpoolctl import threadpool_limits

from bouquet.common.errors import BouquetError
from bouquet.strategies.mathematics.aggregation import Assignment, Matrix, cluster_means, weighted_mean
from bouquet.strategies.mathematics.similarity import Distances, distances_to, euclidean_distances

LINKAGES = ("average", "single", "complete", "ward")


class KMeansResult(NamedTuple):
    """``assignment`` (n,), ``centers`` (K × d) and the sum of squared distances of the rows to their centers."""

    assignment: Assignment
    centers: Matrix
    inertia: float


def canonical_labels(labels: ArrayLike) -> Assignment:
    """The same grouping (n,) with clusters numbered 0, 1, … by their first member in row order."""
    _, first, inverse = np.unique(np.asarray(labels), return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)


def kmeans(W: Matrix, num_clusters: int, seed: int, restarts: int = 20, compared: Matrix | None = None) -> KMeansResult:
    """Group the rows of W (n × d) by k-means++, the best of ``restarts`` random starts (FeSEM starts from this).

    ``compared`` (n × p) is what the rows are grouped by where that is not W itself: a model's parameters, whose buffers
    are averaged with it (`bouquet.common.parameters.layout.ParameterLayout.parameters_of`). Centers are (K × d) all the
    same.

    Where d exceeds n, the search runs on n exact coordinates of the rows, recovered from their distances; centers
    are then means of the rows of W. When fewer than K rows are distinct, the surplus clusters stay empty and their
    centers are the mean of all rows. Raises `BouquetError` for fewer rows than clusters.
    """
    _check_rows(len(W), num_clusters)
    compared = W if compared is None else compared
    points, origin = _coordinates(compared, euclidean_distances(compared))
    labels, inertia = _partition(points, origin, num_clusters, seed, restarts)
    fallback = np.tile(weighted_mean(W), (num_clusters, 1))
    return KMeansResult(labels, cluster_means(W, labels, num_clusters, previous=fallback), inertia)


def assign_to_nearest(W: Matrix, centers: Matrix) -> Assignment:
    """For each row of W (n × d) the cluster whose center (K × d) is nearest, the lower one in a tie (FeSEM, Eq. 8)."""
    return np.argmin(distances_to(W, centers), axis=1).astype(np.int64)


def silhouette_by_k(
    W: Matrix, candidates: Iterable[int], seed: int, restarts: int = 20, unit_length: bool = False
) -> dict[int, float]:
    """Mean silhouette (−1 to 1) of the k-means grouping of W (n × d) into each candidate number of clusters.

    A silhouette needs 2 to n − 1 clusters, and as many distinct rows; other candidates are left out. With
    ``unit_length`` each row is first divided by its norm, so that directions are compared (FedAC's reduced models).
    """
    if unit_length:
        norms = np.linalg.norm(W, axis=1, keepdims=True)
        W = np.divide(W, norms, out=np.zeros_like(W), where=norms > 0)
    distances = euclidean_distances(W)
    points, origin = _coordinates(W, distances)
    scores = {}
    for k in sorted(set(candidates)):
        if 2 <= k < len(W) and k <= len(np.unique(origin)):
            labels, _ = _partition(points, origin, k, seed, restarts)
            scores[k] = silhouette(distances, labels)
    return scores


def silhouette(distances: Distances, labels: Assignment) -> float:
    """Mean silhouette of the clusters (n,) over n × n ``distances``, of at least 2 and fewer than n clusters."""
    from sklearn.metrics import silhouette_score  # half a second, which a server's check of settings does without

    return float(silhouette_score(distances, labels, metric="precomputed"))


def linkage_matrix(distances: Distances, linkage: str = "average") -> NDArray[np.float64]:
    """SciPy's linkage matrix ((n − 1) × 4) of agglomerative clustering of n × n ``distances``.

    ``linkage`` says how far two clusters are apart, as one of `LINKAGES`: the mean, least or greatest distance of
    their members, or with "ward", whose ``distances`` must be Euclidean, by how much joining them raises the sum of
    squares. Raises `BouquetError` for another one, where a distance is unknown (not finite), and when the matrix is
    not symmetric.
    """
    if linkage not in LINKAGES:
        raise BouquetError(f"The linkage is {linkage!r}; allowed are {', '.join(LINKAGES)}.")
    if not np.isfinite(distances).all():
        i, j = np.argwhere(~np.isfinite(distances))[0].tolist()
        raise BouquetError(f"The distance of clients {i} and {j} is not known: no hierarchy without it.")
    if not np.array_equal(distances, distances.T):
        raise BouquetError("The distances of the clients are not symmetric: that of i and j must be that of j and i.")
    if len(distances) < 2:
        return np.empty((0, 4))
    return hierarchy.linkage(squareform(distances, checks=False), method=linkage)


def hierarchical_clusters(
    distances: Distances, *, linkage: str = "average", num_clusters: int | None = None, threshold: float | None = None
) -> Assignment:
    """The clusters (n,) of agglomerative clustering of n × n ``distances``: see `linkage_matrix` for ``linkage``.

    Either ``num_clusters`` K, from 1 to n, of which there are then exactly so many, or ``threshold``, in the unit of
    the distances: clusters are joined while they are at most so far apart. Raises `BouquetError` for neither or both,
    for values out of range, and for distances that are unknown or not symmetric.
    """
    if (num_clusters is None) == (threshold is None):
        raise BouquetError("Hierarchical clusters need either their number (num_clusters) or a threshold.")
    n = len(distances)
    merges = linkage_matrix(distances, linkage)
    if threshold is not None:
        if not threshold >= 0:
            raise BouquetError(f"The threshold of the clusters is {threshold}; a distance is at least 0.")
        joined = int(np.searchsorted(merges[:, 2], threshold, side="right"))
    else:
        assert num_clusters is not None
        _check_rows(n, num_clusters)
        joined = n - num_clusters
    if n < 2:
        return np.zeros(n, dtype=np.int64)
    # The merges in their order, not by their heights: of equal heights, as many as are wanted.
    order = np.arange(n - 1, dtype=np.float64)
    return canonical_labels(hierarchy.fcluster(merges, joined - 1, criterion="monocrit", monocrit=order))


def groups_at(linkage: NDArray[np.float64], fraction: float) -> Assignment:
    """The groups (n,) of a linkage matrix below the normalised threshold g = γ / γ_global (DC-PFL, III-B).

    γ_global is the height of the last merge. g = 1 is one group, g = 0 singletons, even of equal clients, and the
    groups at a lower g are parts of those at a higher one.
    """
    if not 0 <= fraction <= 1:
        raise BouquetError(f"The normalised threshold of the groups is {fraction}; it goes from 0 to 1.")
    n = len(linkage) + 1
    if fraction == 0:
        return np.arange(n)
    if n == 1:
        return np.zeros(1, dtype=np.int64)
    return canonical_labels(hierarchy.fcluster(linkage, fraction * linkage[-1, 2], criterion="distance"))


def _check_rows(rows: int, num_clusters: int) -> None:
    if num_clusters < 1:
        raise BouquetError(f"strategy.num_clusters is {num_clusters}; there must be at least 1 cluster.")
    if rows < num_clusters:
        raise BouquetError(
            f"{rows} client models cannot form {num_clusters} clusters: lower strategy.num_clusters, "
            "or raise server.min_replies so that more clients take part."
        )


def _coordinates(W: Matrix, distances: Distances) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Points (n × min(n, d)) at the rows' own distances, and for each row the first row equal to it.

    For n < d these are the eigenvectors of the centred Gram matrix, −½ J D² J, times the roots of its eigenvalues
    (Torgerson 1952).
    """
    origin = np.argmax(distances == 0, axis=1)
    if W.shape[1] <= len(W):
        points = W.astype(np.float64)
        return points - points.mean(axis=0), origin
    gram = -0.5 * distances**2
    gram -= gram.mean(axis=0)
    gram -= gram.mean(axis=1, keepdims=True)
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    return vectors * np.sqrt(np.maximum(values, 0.0)), origin


def _partition(
    points: NDArray[np.float64], origin: NDArray[np.int64], num_clusters: int, seed: int, restarts: int
) -> tuple[Assignment, float]:
    """Canonical labels and inertia of k-means into at most as many clusters as there are distinct points."""
    from sklearn.cluster import KMeans  # as above

    distinct = min(num_clusters, len(np.unique(origin)))
    # Without a tolerance it ends where no row is nearer to another center, as FeSEM's E-step would have it.
    # One thread: the points are few, and on a busy machine the threads of OpenMP wait for each other most of the time.
    with threadpool_limits(1):
        fitted: Any = KMeans(distinct, n_init=restarts, random_state=seed, tol=0.0).fit(points)
    return canonical_labels(fitted.labels_), float(fitted.inertia_)
