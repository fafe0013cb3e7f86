"""Similarity of client models: every measure of the papers is a function of the matrix W (n × d) or of its slices.

All results are float64. W itself may be float32: its columns are converted a block at a time, so that no n × n × d
array and no float64 copy of W is held.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist, pdist, squareform
from scipy.special import entr

from bouquet.common.errors import BouquetError
from bouquet.strategies.mathematics.aggregation import Matrix, Vector, column_blocks, column_slices, in_threads

Distances = NDArray[np.float64]

# Below this fraction of the squared norms, the difference of Gram entries has lost half of float64's digits.
_CANCELLATION = 1e-8
# Columns a thread hands to SciPy at once: 1,000 rows of them (2 MB) stay in a core's cache.
_COLUMNS = 256
# Values, and columns at least, that a thread converts for a product at once.
_ELEMENTS, _LEAST_COLUMNS = 2**18, 1024


def euclidean_distances(W: Matrix) -> Distances:
    """‖W_i − W_j‖₂ for all pairs of rows of W (n × d), as an n × n matrix.

    It comes from the Gram matrix of W minus its first row, in float64: the common part of the models cancels before
    anything is squared. Pairs so close, beside their distance to the first row, that ‖a‖² + ‖b‖² − 2ab would lose
    their difference are computed again directly, so that equal rows are at distance 0 exactly.
    """
    gram = gram_matrix(W, W[0])
    norms = np.add.outer(np.diag(gram), np.diag(gram))
    squared = np.triu(norms - 2 * gram, k=1)
    close = np.triu(squared < _CANCELLATION * norms, k=1)
    squared[close] = 0.0
    if close.any():
        for _, block in column_blocks(W):
            for i in np.flatnonzero(close.any(axis=1)):
                difference = block[close[i]] - block[i]
                squared[i, close[i]] += np.einsum("ij,ij->i", difference, difference)
    return np.sqrt(squared + squared.T)


def distances_to(W: Matrix, centers: Matrix) -> Distances:
    """‖W_i − C_k‖₂ for rows of W (n × d) and of ``centers`` (K × d), as an n × K matrix (FeSEM, Eq. 8).

    The differences themselves are squared and summed in float64, without the expansion ‖a‖² + ‖b‖² − 2ab, which
    would drown small differences between large vectors. Equal vectors are at distance 0 exactly.
    """

    def squared_in(columns: slice) -> Distances:
        return cdist(W[:, columns], centers[:, columns], "sqeuclidean")

    squared = np.zeros((len(W), len(centers)))
    for part in in_threads(squared_in, column_slices(W, _COLUMNS)):
        squared += part
    return np.sqrt(squared)


def cosine_similarity(W: Matrix, origin: Matrix | Vector | None = None) -> Distances:
    """cos(U_i, U_j) for all pairs of rows of U = W − ``origin``, as an n × n matrix with ones on its diagonal.

    ``origin`` is absent (the cosine of the models), one vector (d,) or one row per client (n × d): with the model
    that each client received, U holds the updates (Sattler et al. 2021). An all-zero row is like no other row: 0.
    """
    gram = gram_matrix(W, origin)
    norms = np.sqrt(np.diag(gram))
    similarity = _divide_by_norms(gram, norms, norms)
    np.fill_diagonal(similarity, 1.0)
    return similarity


def cosine_to(W: Matrix, directions: Matrix, origin: Vector | None = None) -> Distances:
    """cos(W_i − m, V_k − m) for rows of W (n × d) and of ``directions`` V (K × d), as an n × K matrix; m is ``origin``.

    FedAC's model similarity is this on reduced models, with m the mean of the principal component analysis. A vector
    that is all zero is like no other: 0.
    """

    def sums_in(columns: slice) -> tuple[Distances, Distances, Distances]:
        block, others = W[:, columns].astype(np.float64), directions[:, columns].astype(np.float64)
        if origin is not None:
            block -= origin[columns]
            others -= origin[columns]
        squares = np.einsum("ij,ij->i", block, block), np.einsum("ij,ij->i", others, others)
        return block @ others.T, *squares

    product = np.zeros((len(W), len(directions)))
    row_norms, direction_norms = np.zeros(len(W)), np.zeros(len(directions))
    for part, rows, others in in_threads(sums_in, product_blocks(W)):
        product += part
        row_norms += rows
        direction_norms += others
    return _divide_by_norms(product, np.sqrt(row_norms), np.sqrt(direction_norms))


def l1_discrepancy(W: Matrix, scaling: Literal["shared", "own"] = "shared") -> Distances:
    """DC-PFL's model discrepancy ‖S(w_i) − S(w_j)‖₁ / d of all pairs of rows of W (n × d), as an n × n matrix (Eq. 3).

    S(w) = (w − min) / (max − min). ``"own"`` takes minimum and maximum of each model, as the paper prints it (a
    constant model scales to 0); ``"shared"`` takes those of all of W: the plain L1 distance up to a constant. The
    latter follows the clients' data far better, because a model's own minimum is one noisy weight that shifts all
    the others. Values are from 0 to 1.

    The blocks of columns are shared out to threads and added up in one order, so that the result does not depend on
    how many threads there are.
    """
    if scaling not in ("shared", "own"):
        raise BouquetError(f"The scaling of the L1 discrepancy is {scaling!r}; it can be 'shared' or 'own'.")
    n, d = W.shape
    low, high = W.min(axis=1).astype(np.float64), W.max(axis=1).astype(np.float64)
    if scaling == "shared":
        low, high = np.full(n, low.min()), np.full(n, high.max())
    width = high - low
    scale = np.divide(1.0, width, out=np.zeros(n), where=width > 0)

    def scaled(block: slice) -> NDArray[np.float64]:
        part: NDArray[np.float64] = (W[:, block] - low[:, None]) * scale[:, None]
        return part

    total = np.zeros(n * (n - 1) // 2)
    for part in in_threads(lambda block: pdist(scaled(block), "cityblock"), column_slices(W, _COLUMNS)):
        total += part
    return squareform(total / d)


def jensen_shannon_divergence(probabilities: NDArray[np.floating]) -> Distances:
    """Jensen–Shannon divergence of all pairs of models, with the natural logarithm, as an n × n matrix (0 to ln 2).

    ``probabilities`` (n × B × C) are the models' softmax outputs on the same B samples; the divergence of two models
    is the mean over the samples of H((p + q) / 2) − (H(p) + H(q)) / 2 (FedTSDP, stage one).
    Raises `BouquetError`, naming the model's row, when an output is not a distribution.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    valid = (np.isfinite(p) & (p >= 0)).all(axis=(1, 2)) & (np.abs(p.sum(axis=2) - 1) < 1e-3).all(axis=1)
    if not valid.all():
        raise BouquetError(
            f"The outputs of model {int(np.argmin(valid))} of {len(p)} on the public data are not probabilities that "
            "sum to 1: that model has probably diverged; lower train.learning_rate."
        )
    entropy = entr(p).sum(axis=2)
    divergence = np.zeros((len(p), len(p)))
    for i in range(len(p) - 1):
        of_mixtures = entr((p[i + 1 :] + p[i]) / 2).sum(axis=2)
        divergence[i, i + 1 :] = (of_mixtures - (entropy[i + 1 :] + entropy[i]) / 2).mean(axis=1)
    # Rounding can leave a tiny negative number for near-equal models.
    return np.maximum(divergence + divergence.T, 0.0)


def gram_matrix(W: Matrix, origin: Matrix | Vector | None = None) -> Distances:
    """(W − origin) · (W − origin)ᵀ in float64, n × n; ``origin`` is of one row, or of as many as W."""

    def gram_of(columns: slice) -> Distances:
        block = W[:, columns].astype(np.float64)
        if origin is not None:
            block -= origin[..., columns]
        product: Distances = block @ block.T
        return product

    gram = np.zeros((len(W), len(W)))
    for part in in_threads(gram_of, product_blocks(W)):
        gram += part
    return gram


def product_blocks(W: Matrix) -> list[slice]:
    """Columns for a product of a thread: what is converted of few rows stays in a core's cache, as far as it goes."""
    return column_slices(W, max(_LEAST_COLUMNS, _ELEMENTS // max(1, len(W))))


def _divide_by_norms(product: Distances, rows: NDArray[np.float64], columns: NDArray[np.float64]) -> Distances:
    """``product`` over the outer product of norms, within [−1, 1]; 0 where a norm is 0."""
    norms = np.outer(rows, columns)
    return np.clip(np.divide(product, norms, out=np.zeros_like(product), where=norms > 0), -1.0, 1.0)
