"""Metrics: of one client's predictions, over clients, and of a clustering whose true groups are known.

Devices import this module, so scikit-learn (a second to load on a desk, far more on a Pi) is only loaded by the
metrics of a clustering, which the server takes. A value that is None or NaN is not known and is left out; None comes
back where nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bouquet.common.errors import BouquetError

Values = Sequence[float | None]


def accuracy(y_true: ArrayLike, y_pred: ArrayLike) -> float | None:
    """Fraction of equal labels (n,), or None without samples."""
    true, predicted = np.asarray(y_true), np.asarray(y_pred)
    _check_lengths(true, predicted)
    return float(np.mean(true == predicted)) if true.size else None


def macro_f1(y_true: ArrayLike, y_pred: ArrayLike, num_classes: int) -> float | None:
    """Plain mean of the classes' F1 = 2·TP / (2·TP + FP + FN), or None without samples.

    The mean runs over the classes that occur in ``y_true`` or ``y_pred`` (scikit-learn's default): a client is not
    marked down for classes it never sees. Labels (n,) are from 0 to ``num_classes`` − 1.
    """
    true, predicted = np.asarray(y_true, dtype=np.int64), np.asarray(y_pred, dtype=np.int64)
    _check_lengths(true, predicted)
    if not true.size:
        return None
    labels = np.concatenate([true, predicted])
    if labels.min() < 0 or labels.max() >= num_classes:
        raise BouquetError(
            f"Labels go from {labels.min()} to {labels.max()}, but the model has {num_classes} classes (0 to "
            f"{num_classes - 1}); check data.classes."
        )
    hits = np.bincount(true[true == predicted], minlength=num_classes)
    # 2·TP + FP + FN is how often a class occurs on either side.
    occurrences = np.bincount(labels, minlength=num_classes)
    present = occurrences > 0
    return float(np.mean(2 * hits[present] / occurrences[present]))


def micro(values: Values, counts: Sequence[float]) -> float | None:
    """Mean over clients weighted by ``counts``, their numbers of test examples; None when these sum to 0."""
    numbers, weights = _as_floats(values), np.asarray(counts, dtype=np.float64)
    _check_lengths(numbers, weights)
    known = ~np.isnan(numbers)
    total = weights[known].sum()
    return float(numbers[known] @ weights[known] / total) if total > 0 else None


def macro(values: Values) -> float | None:
    """Plain mean over clients."""
    known = _known(values)
    return float(known.mean()) if known.size else None


def deviation(values: Values) -> float | None:
    """Standard deviation over clients (of all of them, not of a sample: divided by n)."""
    known = _known(values)
    return float(known.std()) if known.size else None


def worst_decile(values: Values, higher_is_better: bool = True) -> float | None:
    """Mean of the lowest (of an error the highest) tenth of the clients, rounded up to a whole number of them."""
    known = np.sort(_known(values))
    known = known if higher_is_better else known[::-1]
    return float(known[: math.ceil(known.size / 10)].mean()) if known.size else None


def purity(true: ArrayLike | None, clusters: ArrayLike) -> float | None:
    """(1/n) Σ_k max_j |true group j ∩ found cluster k| (the joint gradient and loss paper); None without groups.

    Both are one label per client (n,). Singletons are pure: read it beside the number of clusters.
    """
    if true is None or not np.size(true):
        return None
    from sklearn.metrics.cluster import contingency_matrix

    return float(contingency_matrix(true, clusters).max(axis=0).sum() / np.size(true))


def adjusted_rand_index(true: ArrayLike | None, clusters: ArrayLike) -> float | None:
    """Hubert and Arabie's index: 1 for equal groupings, about 0 for a random one; None without groups."""
    if true is None or not np.size(true):
        return None
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(true, clusters))


def written(value: float, digits: int = 3) -> str:
    """A metric as text, with so many decimals; a loss that blew up as a power of ten, not with all its digits."""
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.3g}"


def _as_floats(values: Values) -> NDArray[np.float64]:
    """None becomes NaN."""
    return np.asarray(values, dtype=np.float64)


def _known(values: Values) -> NDArray[np.float64]:
    numbers = _as_floats(values)
    return numbers[~np.isnan(numbers)]


def _check_lengths(first: NDArray[Any], second: NDArray[Any]) -> None:
    if first.shape != second.shape:
        raise BouquetError(f"Two lists that belong together have the shapes {first.shape} and {second.shape}.")
