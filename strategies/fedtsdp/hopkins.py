"""The Hopkins statistic of client models' outputs, and the weights by which public samples are drawn.

FedTSDP (cited in `bouquet.strategies.fedtsdp.strategy`), section "Hopkins amended sampling", Eq. 6 to 8.

Models of clients whose data are all alike have an H of 0.58 to 0.67, not 0.5, in B·C dimensions (FashionMNIST, IID, 20
clients, B = 64), and a threshold has to be above that. Neither B nor the draws are why: with B from 16 to 2,000, H is
the same within 0.02. The distances of many independent coordinates hardly differ from their mean, so that H
depends on the bounding box, for two reasons. The outputs' directions: they differ between clients along 5 to 8 of the
640, in which a point has near neighbours, while the box's points are far from all of them; in a box along the principal
axes, H is 0.48 to 0.55. And the outputs' distribution: with σ² the variance of the real points, summed over the
coordinates, and s² the mean squared distance of the box's uniform points from the real ones' mean, H of coordinates
that are independent is about a / (a + 1) with a² = (s² + σ²) / 2σ², 0.52 to 0.54 here, because the outputs of a softmax
lie mostly at one end of their range. The box along the principal axes separates IID clients from others no better (two
classes a client: 0.56 to 0.62, in the paper's box 0.69 to 0.73), so that the paper's is kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.special import entr

from bouquet.strategies.mathematics.similarity import euclidean_distances

Weights = NDArray[np.float64]


class Hopkins(NamedTuple):
    """Mean of H over the draws, and the sample standard deviation of a single draw (0 where there is but one)."""

    mean: float
    deviation: float


def hopkins_statistic(
    points: NDArray[np.floating], sample_size: int, draws: int, generator: np.random.Generator
) -> Hopkins:
    """The clustering tendency of the rows of ``points`` (m × D): about 0.5 for none, toward 1 for clusters (Eq. 6).

    Each draw takes m̃ = ``sample_size`` real points without replacement, v being the distance to their nearest *other*
    point, and as many uniform points in the bounding box of the real ones, z being the distance to their nearest
    real one; H = Σz / (Σz + Σv). Points that are all equal have no structure: 0.5.
    """
    nearest_other = euclidean_distances(points)
    np.fill_diagonal(nearest_other, np.inf)
    v = nearest_other.min(axis=1)
    low, high = points.min(axis=0).astype(np.float64), points.max(axis=0).astype(np.float64)
    values = np.empty(draws)
    for draw in range(draws):
        real = v[generator.choice(len(points), size=sample_size, replace=False)].sum()
        uniform = low + (high - low) * generator.random((sample_size, points.shape[1]))
        empty = cdist(uniform, points).min(axis=1).sum()
        values[draw] = empty / (empty + real) if empty + real > 0 else 0.5
    return Hopkins(float(values.mean()), float(values.std(ddof=1)) if draws > 1 else 0.0)


def uniform_weights(samples: int) -> Weights:
    """W before the first round: every public sample alike, (N,)."""
    return np.full(samples, 1 / samples)


def draw_batch(weights: Weights, size: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Indices (B,) of different public samples, drawn by the weights W (N,), ascending; all of them where N ≤ B."""
    if size >= len(weights):
        return np.arange(len(weights))
    return np.sort(generator.choice(len(weights), size=size, replace=False, p=weights))


def raise_weights(weights: Weights, batch: NDArray[np.int64], gain: float | None = None) -> Weights:
    """W (N,) after a batch whose outputs showed clusters: ``gain`` more for each of it, then normalised (Eq. 7, 8).

    ``gain`` is `|D_pub| / B` where it is None, as in the paper. W sums to one, so that of the new W at least N parts in
    N + 1 lie on the batch. With a gain of 1 / B, it is at least half.
    """
    raised = weights.copy()
    raised[batch] += len(weights) / len(batch) if gain is None else gain
    return raised / raised.sum()


def entropy(weights: Weights) -> float:
    """−Σ W_k ln W_k: ln N for uniform weights, about ln B when all of the weight is on one batch."""
    return float(entr(weights).sum())
