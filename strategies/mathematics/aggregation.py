"""Aggregation: the models of n clients, rows of a matrix W, become one model or one per cluster.

Products with W are accumulated in float64, a block of columns at a time, and rounded once at the end: the mean of
equal rows is that row exactly, and no second copy of W in float64 is ever held.

Sources: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017
(the mean weighted by data size); Nichol, Achiam and Schulman, "On First-Order Meta-Learning Algorithms", 2018
(Reptile).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import ThreadpoolController

from bouquet.common.errors import BouquetError
from bouquet.common.system.resources import available_cores

Matrix = NDArray[np.floating[Any]]
Vector = NDArray[np.floating[Any]]
Assignment = NDArray[np.int64]
Part = TypeVar("Part")
Result = TypeVar("Result")

_BLOCK_ELEMENTS = 2**20
# Values that a thread converts at once for a mean, and how many columns at least and at most: much of a row at a
# stretch, while the rows of a cluster stay in the processor's cache. All threads together convert one of so many parts
# of the matrix at once (an eighth is a quarter of its memory in float64), however many cores there are.
_AVERAGED, _LEAST_COLUMNS, _MOST_COLUMNS = 2**20, 256, 2**14
_PARTS = 8


def column_blocks(W: Matrix) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield (columns, W[:, columns] as a float64 copy) from left to right, about 8 MB at a time."""
    width = max(256, _BLOCK_ELEMENTS // max(1, len(W)))
    for columns in column_slices(W, width):
        yield columns, W[:, columns].astype(np.float64)


def column_slices(W: Matrix, width: int) -> list[slice]:
    """The columns of W from left to right, ``width`` at a time."""
    return [slice(start, min(start + width, W.shape[1])) for start in range(0, W.shape[1], width)]


def in_threads(work: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
    """``work`` of each part, in order, done by a thread for each core; products inside take no threads of their own.

    As many parts at a time as there are threads, so that no more results are held; what is added up of them in this
    order does not depend on how many threads there are.
    """
    if len(parts) < 2:
        yield from map(work, parts)
        return
    threads = available_cores()
    with _blas().limit(limits=1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(parts), threads):
            yield from pool.map(work, parts[first : first + threads])


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    """The libraries of this process; to look for them takes longer than a small product."""
    return ThreadpoolController()


def weighted_mean(W: Matrix, weights: ArrayLike | None = None) -> Vector:
    """The mean (d,) of the rows of W (n × d), in W's dtype, weighted by ``weights`` (n,) where they are given.

    Weights need not sum to one. Raises `BouquetError` when there is no row, when a weight is negative or not
    finite, or when all of them are zero.
    """
    if not np.any(_check_weights(weights, len(W))):
        raise BouquetError(f"No mean of {len(W)} models: there must be at least one with a weight above 0.")
    return cluster_means(W, np.zeros(len(W), dtype=np.int64), 1, weights)[0]


def mean_of_centers(centers: NDArray[np.float32]) -> NDArray[np.float32]:
    """The plain mean (d,) of the centers (K × d), every cluster alike: the model for a client that is in none."""
    mean: NDArray[np.float32] = centers.mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean


def cluster_means(
    W: Matrix,
    assignment: NDArray[np.integer[Any]] | Sequence[int],
    num_clusters: int,
    weights: ArrayLike | None = None,
    previous: Matrix | None = None,
) -> Matrix:
    """The mean of each cluster's rows, all clusters at once: (K × n) · (n × d), in W's dtype.

    ``assignment`` (n,) holds the cluster of each row, 0 to K − 1; ``weights`` (n,) are as in `weighted_mean`. This is
    the M-step of FeSEM (Eq. 9), of FedAC (Eq. 5) and of the joint gradient and loss method (Eq. 7).
    A cluster without members, or whose members all weigh 0, keeps its row of ``previous`` (K × d).
    Raises `BouquetError` for such a cluster without ``previous``, for a cluster out of range and for bad weights.
    """
    members = np.asarray(assignment, dtype=np.int64)  # of nobody, too
    if members.shape != (len(W),) or np.any((members < 0) | (members >= num_clusters)):
        raise BouquetError(
            f"The assignment must hold one cluster from 0 to {num_clusters - 1} for each of {len(W)} models; "
            f"it holds {members.tolist()}."
        )
    shares = _check_weights(weights, len(W))
    totals = np.bincount(members, weights=shares, minlength=num_clusters)
    empty = totals == 0
    if previous is None and empty.any():
        raise BouquetError(
            f"Cluster {int(np.argmax(empty))} of {num_clusters} has no members and no previous center to keep."
        )
    centers = np.empty((num_clusters, W.shape[1]), dtype=W.dtype)
    rows_of = [(k, np.flatnonzero(members == k)) for k in np.flatnonzero(~empty)]

    def average(columns: slice) -> None:
        for k, rows in rows_of:
            converted = np.empty((len(rows), columns.stop - columns.start))
            for place, row in enumerate(rows):
                converted[place] = W[row, columns]
            # Divided last, so that a plain mean of small whole numbers is exact.
            centers[k, columns] = shares[rows] @ converted / totals[k]

    largest = max((len(rows) for _, rows in rows_of), default=1)
    converted_at_once = min(_AVERAGED, W.size // (_PARTS * available_cores()))
    width = min(_MOST_COLUMNS, max(_LEAST_COLUMNS, converted_at_once // largest))
    for _ in in_threads(average, column_slices(W, width)):
        pass
    if previous is not None:
        centers[empty] = previous[empty]
    return centers


def mean_without_ends(W: Matrix, cut: int) -> Vector:
    """The mean (d,) of the rows of W (n × d) without the ``cut`` largest and smallest values of each coordinate."""
    mean = np.empty(W.shape[1], dtype=W.dtype)
    for columns, block in column_blocks(W):
        mean[columns] = np.sort(block, axis=0)[cut : len(W) - cut].mean(axis=0)
    return mean


def _check_weights(weights: ArrayLike | None, count: int) -> NDArray[np.float64]:
    """One finite, non-negative float64 weight for each of ``count`` rows; all 1 where none are given."""
    if weights is None:
        return np.ones(count)
    values = np.asarray(weights, dtype=np.float64)
    if values.shape != (count,):
        raise BouquetError(f"{count} models need {count} weights, but their shape is {values.shape}.")
    if bad := [float(value) for value in values if not (np.isfinite(value) and value >= 0)]:
        raise BouquetError(f"A model's weight is {bad[0]}; weights are finite and not negative.")
    return values
