"""How different clients' label distributions are: the Kullback–Leibler divergence of DC-PFL, section II-B, Eq. 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common.errors import BouquetError

LEVELS = ("low", "mid", "high")


def label_counts(parts: Sequence[NDArray[Any]], num_classes: int) -> NDArray[np.int64]:
    """Counts (n, C) of each class in each of n arrays of labels."""
    return np.stack([np.bincount(labels, minlength=num_classes) for labels in parts]).astype(np.int64)


def label_kld_matrix(counts: NDArray[Any]) -> NDArray[np.float64]:
    """Symmetric divergences (n, n) between the rows of class counts (n, C), in nats.

    D_ij = ½ (KL(P_i ‖ P_j) + KL(P_j ‖ P_i)), where P_i is row i with one added to each count, so that an absent
    class stays finite, divided by its sum.
    """
    smoothed = np.asarray(counts, dtype=np.float64) + 1.0
    shares = smoothed / smoothed.sum(axis=1, keepdims=True)
    cross = shares @ np.log(shares).T  # cross_ij = Σ_c P_i(c) ln P_j(c)
    own = np.diag(cross)
    divergence: NDArray[np.float64] = np.maximum(own[:, None] + own[None, :] - cross - cross.T, 0.0) / 2
    return divergence


def heterogeneity_of_counts(counts: NDArray[Any]) -> float:
    """Mean of `label_kld_matrix` over all pairs of two different clients; 0 for a single one."""
    n = len(counts)
    if n < 2:
        return 0.0
    return float(label_kld_matrix(counts)[np.triu_indices(n, k=1)].mean())


def draw_at_level(values: Sequence[float], level: str) -> int:
    """Which of many draws stands for a level: of those in its third of the range, the one nearest to the middle.

    The thirds cut the range between the lowest and the highest of ``values`` into equal lengths (DC-PFL, section V).
    Raises `BouquetError` when no draw lies in the third.
    """
    drawn = np.asarray(values, dtype=np.float64)
    third = float(np.ptp(drawn)) / 3
    distance = np.abs(drawn - (drawn.min() + third * (LEVELS.index(level) + 0.5)))
    nearest = int(distance.argmin())
    # The bound is inclusive up to rounding: with equal draws every third is that one point.
    if distance[nearest] > third / 2 * (1 + 1e-9) + 1e-12:
        raise BouquetError(
            f"None of {len(drawn)} draws has {level!r} heterogeneity; take more clients or groups, or another seed."
        )
    return nearest
