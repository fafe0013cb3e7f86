"""FLUX's steps on descriptions of devices' data, for `benchmarks.data_subspaces`, which says what is our choice."""

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import argrelextrema
from scipy.spatial.distance import cdist
from sklearn.cluster import DBSCAN

ABSENT = -1.0  # of a class with fewer than two samples
FOLDS = 5
Array = NDArray[np.floating]


def moments(samples: Collection[Array]) -> Array:
    """Means, then standard deviations (2 k, L), of k sets of samples (n, L); `ABSENT` for one of fewer than two."""
    absent = np.full(next(iter(samples)).shape[1], ABSENT)
    return np.array([step(x, axis=0) if len(x) > 1 else absent for step in (np.mean, np.std) for x in samples])


def description(samples: Array, labels: NDArray[Any], classes: int) -> Array:
    """What a device says of its projected samples (n, L): in all and by class, (2 + 2 classes, L)."""
    by_class = moments([samples[labels == c] for c in range(classes)])
    return np.concatenate([moments([samples]), by_class])


def scaled(descriptions: Array, known: Array | None = None) -> Array:
    """Descriptions (n, blocks, L), each block from 0 to 1 over all of it in ``known``, if not itself; flat."""
    known = descriptions if known is None else known
    low, high = known.min(axis=(0, 2))[:, None], known.max(axis=(0, 2))[:, None]
    return ((descriptions - low) / np.where(high > low, high - low, 1)).reshape(len(descriptions), -1)


def elbow(values: Array) -> float | None:
    """Where a convex, increasing curve (n,) bends: the point that kneed 0.8.5 finds, with its default sensitivity.

    Satopää et al.: Finding a "Kneedle" in a Haystack, ICDCSW 2011.
    """
    count = len(values)
    if count < 2 or values[-1] == values[0]:
        return None
    height = (values - values[0]) / (values[-1] - values[0])
    beyond = (1 - height)[::-1] - np.arange(count) / (count - 1)
    peaks, valleys = (set(argrelextrema(beyond, of)[0].tolist()) for of in (np.greater_equal, np.less_equal))
    threshold, peak = -np.inf, 0
    for i in range(min(peaks, default=count), count - 1):
        if i in peaks:
            threshold, peak = beyond[i] - 1 / (count - 1), i
        if i in valleys:
            threshold = 0.0
        if beyond[i + 1] < threshold:
            return float(values[-1 - peak])
    return None


def clusters(points: Array) -> list[int]:
    """FLUX's clusters (n,) of devices at points (n, d); who is near nobody has one alone."""
    apart = cdist(points, points)
    nearest = np.sort(np.sort(apart, axis=1)[:, 1])
    radius = elbow(nearest)
    found = DBSCAN(eps=nearest[-1] if radius is None else radius, min_samples=2, metric="precomputed").fit_predict(
        apart
    )
    return [int(label) if label >= 0 else len(found) + i for i, label in enumerate(found)]


def placed(described: Array, groups: NDArray[np.int64], seed: int) -> tuple[int, int]:
    """Of devices described without labels (n, 2, L), how many come into their group, and of how many.

    Those count whose group has others.
    """
    order = np.random.default_rng(seed).permutation(len(groups))
    right = asked = 0
    for fold in range(FOLDS):
        left_out = np.isin(np.arange(len(groups)), order[fold::FOLDS])
        known = np.unique(groups[~left_out])
        others = scaled(described[~left_out])
        means = np.array([others[groups[~left_out] == group].mean(axis=0) for group in known])
        found = known[cdist(scaled(described[left_out], described[~left_out]), means).argmin(axis=1)]
        right += int((found == groups[left_out]).sum())
        asked += int(np.isin(groups[left_out], known).sum())
    return right, asked
