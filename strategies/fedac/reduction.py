"""Low-rank model similarity: clients' models reduced to p numbers, compared by their cosine.

Zhang, Chen, Lin, Chen, Zhao: FedAC: An Adaptive Clustered Federated Learning Framework for Heterogeneous Data, 2024,
section 4.3 and Algorithm 2. https://arxiv.org/abs/2403.16460
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bouquet.common.errors import BouquetError
from bouquet.strategies.mathematics.aggregation import Assignment, Matrix, Vector, in_threads
from bouquet.strategies.mathematics.similarity import cosine_to, product_blocks

# A variance below this share of the models' squared norms is the rounding of float32, not a direction.
_ROUNDING = 1e-14
# One model that is so many times as far from all others as any two of them from each other leads no map.
_FURTHEST = 3.0
_BLOCK_COLUMNS, _BLOCK_ELEMENTS = 2**16, 2**22  # that are converted at a time, and of all models together

Reduced = NDArray[np.float64]


class LowRankMap(NamedTuple):
    """r = P (w − m): ``directions`` P (p × d) float32, orthonormal rows, and ``offset`` P m (p,) float64."""

    directions: NDArray[np.float32]
    offset: Reduced

    def reduce(self, W: NDArray[np.floating[Any]]) -> Reduced:
        """P (W_i − m) for the rows of W (n × d), as an n × p matrix; accumulated in float64, some columns at a time."""
        reduced = np.tile(-self.offset, (len(W), 1))
        width = max(1, min(_BLOCK_COLUMNS, _BLOCK_ELEMENTS // max(1, len(W))))
        for start in range(0, W.shape[1], width):
            columns = slice(start, start + width)
            # One memory order, so that a map from a file gives the very numbers that it gave when it was made.
            directions = self.directions[:, columns].astype(np.float64, order="C")
            reduced += W[:, columns].astype(np.float64, order="C") @ directions.T
        return reduced


class Remembered(NamedTuple):
    """Models as an earlier map holds them: ``mean`` m (d,) + ``reduced`` (n × p) · ``directions`` (p × d)."""

    reduced: Reduced
    directions: Matrix
    mean: Vector

    def block(self, columns: slice) -> Reduced:
        """Some columns of the models, (n, width)."""
        return self.mean[columns] + self.reduced @ self.directions[:, columns].astype(np.float64)


def fit_map(
    W: Matrix, num_dims: int, ignored: NDArray[np.bool_] | None = None, remembered: Remembered | None = None
) -> tuple[LowRankMap, Vector] | None:
    """Principal component analysis of rows of W (n × d): a map of at most ``num_dims`` directions, and their mean.

    The directions, at most n − 1, come from the Gram matrix of the centred rows, a block of columns at a time, because
    d is far larger than n. ``ignored`` masks columns (d,) in which no direction goes, such as BatchNorm's buffers.
    ``remembered`` models are further rows. One that is by itself far away is drawn near (`_loner`): else the mean would
    lie so far towards it that, seen from there, all others had one direction. None when all rows are equal: then there
    is no direction. Raises `BouquetError` for a ``num_dims`` below 1.
    """
    if num_dims < 1:
        raise BouquetError(f"strategy.pca_dim = {num_dims}: a whole number from 1.")
    n, d = len(W) + (0 if remembered is None else len(remembered.reduced)), W.shape[1]
    mean, blocks = np.zeros(d), product_blocks(W)

    def centred(columns: slice) -> Reduced:
        """Some columns of all rows minus their mean, which is written to ``mean``; zero where ignored."""
        rows = W[:, columns].astype(np.float64)
        if remembered is not None:
            rows = np.vstack([rows, remembered.block(columns)])
        mean[columns] = rows.mean(axis=0)
        rows -= mean[columns]
        if ignored is not None:
            rows[:, ignored[columns]] = 0.0
        return rows

    def products(columns: slice) -> tuple[Reduced, float]:
        rows = centred(columns)
        compared = mean[columns] if ignored is None else mean[columns][~ignored[columns]]
        return rows @ rows.T, float(np.square(rows).sum() + n * np.square(compared).sum())

    gram, size = np.zeros((n, n)), 0.0
    for product, squares in in_threads(products, blocks):
        gram += product
        size += squares
    if (loner := _loner(gram)) is not None:
        row, kept = loner
        models = W if remembered is None else np.vstack([W, remembered.block(slice(None))])
        others = np.delete(models, row, axis=0).mean(axis=0, dtype=np.float64)
        nearer = models.astype(np.float32)
        nearer[row] = others + kept * (models[row] - others)
        return fit_map(nearer, num_dims, ignored)
    values, vectors = np.linalg.eigh(gram)
    order = np.argsort(-values, kind="stable")[: min(num_dims, n - 1)]
    order = order[values[order] > _ROUNDING * size]
    if not len(order):
        return None
    vectors = vectors[:, order]
    # A direction's sign is arbitrary; in this one the row that it moves most is positive.
    vectors *= np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(len(order))])
    combined = (vectors / np.sqrt(values[order])).T
    directions = np.empty((len(order), d), dtype=np.float32)

    def direct(columns: slice) -> Reduced:
        directions[:, columns] = combined @ centred(columns)
        return directions[:, columns].astype(np.float64) @ mean[columns]

    offset = np.sum(list(in_threads(direct, blocks)), axis=0)
    return LowRankMap(directions, offset), mean.astype(np.float32)


def _loner(gram: Reduced) -> tuple[int, float] | None:
    """Of four or more centred rows, by their Gram matrix (n × n), the one that is `_FURTHEST` from all others or more.

    With the share of its way from their mean at which it is none, by a little. None where there is none: several that
    lie far away together are a group.
    """
    norms = np.diag(gram)
    squared = norms[:, None] + norms - 2 * gram
    for row in np.unravel_index(squared.argmax(), squared.shape) if len(gram) > 3 else ():
        others = np.delete(np.arange(len(gram)), row)
        limit = _FURTHEST**2 * squared[np.ix_(others, others)].max()
        if 0 < limit < squared[row, others].min():
            return int(row), float(0.9 * np.sqrt(limit / squared[row, others].mean()))
    return None


def most_similar(reduced: Reduced, centers: Reduced) -> Assignment:
    """For each reduced model (n × p) the reduced center (K × p) of the largest cosine, the lower one in a tie (Eq. 4).

    Both are relative to the map's mean already, which is what makes a cosine of models say anything.
    """
    return np.argmax(cosine_to(reduced, centers), axis=1).astype(np.int64)


def unit_rows(rows: NDArray[np.floating[Any]]) -> Reduced:
    """Each row (n × p) divided by its norm; a row of zeros stays one."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, norms, out=np.zeros(rows.shape), where=norms > 0)
