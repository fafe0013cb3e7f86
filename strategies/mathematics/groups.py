"""Whether clients are one cloud or K groups, and which: a test that needs no threshold on distances.

Let Z (n × p) be the directions in which n clients move one model, centred. Were the clients one Gaussian cloud, of
whatever covariance Σ, Z would be G Σ^½ with independent normal rows G, and its left singular vectors U would be spread
evenly over all frames at right angles to the constant: their law knows neither Σ nor p, only n. K clear groups make the
first K − 1 of them constant within each group. So W_K, the part of U[:, :K−1] that k-means with K centers leaves over,
is compared with what it leaves of frames that are drawn at random, and K is where it is the least probable. A linear
map of Z changes none of this, so that directions may be sketched (`sketch`). Compare Liu, Hayes, Nobel, Marron:
Statistical Significance of Clustering for High-Dimension, Low–Sample Size Data, JASA 2008, whose null needs Σ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bouquet.strategies.mathematics.aggregation import Assignment, Vector
from bouquet.strategies.mathematics.clustering import canonical_labels

MOST = 6  # groups at one look; each of them is looked at again
LOG_LEVEL = math.log(1e-5)  # of one look, with what the devices say; there is one for each cluster and round
LOG_SEEN = math.log(1e-3)  # from there on down devices are asked
LONGEST = 2.0  # of the median norm: a longer direction is cut to that, so that no client decides alone
LOG_EFFECT = math.log(0.8)  # W_K is at most so much of what one cloud leaves: with many clients anything is significant
LOG_ONE = math.log(0.1)  # two groups are one if one cloud leaves as little so often
MANY = 16  # clients from which on lengths that chance makes stay as they are
FEW = 10  # clients of two groups together, below which the test says too little to join them
WIDTH = 2**12  # numbers of a sketch
_DRAWS, _RESTARTS, _STEPS = 200, 10, 10
_EXACT, _GRID, _LARGEST = 32, 1.1, 256  # numbers of clients: all up to the first have a null, then some up to the last
_AT_ONCE = 2**18  # distances that k-means holds: of all draws of a null they took 160 MB

Stack = NDArray[np.float64]


class Structure(NamedTuple):
    """The groups (n,) that are the least probable in one cloud, and the logarithm of a bound of that probability."""

    labels: Assignment
    log_p: float

    @property
    def is_seen(self) -> bool:
        """Whether one cloud hardly looks like this: enough to ask devices."""
        return self.log_p < LOG_SEEN and bool(self.labels.any())


def sketch(vector: Vector) -> NDArray[np.float32]:
    """A vector (d,) as at most `WIDTH` numbers, which keep inner products nearly: sums with random signs.

    Charikar, Chen, Farach-Colton: Finding Frequent Items in Data Streams, 2002; unbiased, of two unit vectors with a
    deviation of 1/√`WIDTH`.
    """
    if len(vector) <= WIDTH:
        return np.asarray(vector, dtype=np.float32)
    signed = np.zeros(-(-len(vector) // WIDTH) * WIDTH, dtype=np.float32)
    np.multiply(vector, _signs(len(vector)), out=signed[: len(vector)])
    folded: NDArray[np.float32] = signed.reshape(-1, WIDTH).sum(axis=0)
    return folded


def deviations(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows (n × p) less a center that no row moves far, none longer than `LONGEST` times their median, which is 1.

    The center is where the deviations, cut to that length, have the mean 0 (centered clipping: Karimireddy, He, Jaggi,
    Learning from History for Byzantine Robust Optimization, ICML 2021). They are not brought to one length: of a cloud
    with few directions that would make two ends, which look like groups.
    """
    for _ in range(3):
        rows = rows - _shortened(rows)[0].mean(axis=0)
    short, median = _shortened(rows)
    return short / np.float32(median)


def levelled(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows (n × p) less their center, hardly longer or shorter than chance makes them; the median length becomes 1.

    How long a direction is says how many samples a device has, and not of what kind: few steps make it short, and few
    samples uncertain. Beside rows of one length the short ones look like a group, and the uncertain ones each like one
    of their own. In a Gaussian cloud lengths vary by √(m/2) of their mean, with the mean m of the squared cosines of
    two rows. Groups make m larger, and few clients do not show the shape of a cloud: so of n clients lengths are
    brought within (n / `MANY`)² times that, but to at most `LONGEST` times what they were. In the center a row that is
    longer than the median weighs as much less, because in a mean the longest ones would move the short ones.
    """
    for _ in range(_STEPS):
        lengths = _lengths(rows)
        weights = 1 / np.maximum(lengths, np.median(lengths))
        rows = rows - (weights * rows).sum(axis=0) / weights.sum()
    lengths, n = _lengths(rows), len(rows)
    cosines = (rows / lengths) @ (rows / lengths).T
    width = (n / MANY) ** 2 * math.sqrt(float(np.square(cosines[~np.eye(n, dtype=bool)]).mean()) / 2)
    before = lengths / np.median(lengths)
    after = np.minimum(before.clip(1 - width, 1 + width), LONGEST * before).astype(np.float32)
    levels: NDArray[np.float32] = rows / lengths * after
    return levels


def find_groups(layers: Sequence[NDArray[np.float32]], seed: int) -> Structure:
    """The groups of clients from their directions in each layer (n × p), which need not be centred.

    A layer at a time, because what one kind of difference moves is hidden where another layer's noise is added: turned
    images show in the first layer, other labels in the last. The bound is multiplied by the number of layers.
    A client that comes out alone has no say in how the others are grouped: they are looked at again without it.
    """
    n = len(layers[0])
    if n < 2:
        return Structure(np.zeros(n, dtype=np.int64), 0.0)
    best, clearest = Structure(np.zeros(n, dtype=np.int64), 0.0), np.zeros((n, n))
    generator = np.random.default_rng(seed)
    for rows in layers:
        wide = levelled(deviations(rows)).astype(np.float64)  # in float32 the products' rounding would add to the rank
        gram = _centred(wide @ wide.T)
        values, vectors = np.linalg.eigh(gram)
        rank = int(np.sum(values > 1e-9 * values[-1]))  # beyond it, vectors are whatever they are
        for k in range(2, min(MOST, n - 2, rank + 1) + 1):
            inertia, labels = _k_means(vectors[None, :, :-k:-1], k, _RESTARTS, generator)
            sizes = np.bincount(labels[0])
            if np.sum(sizes == 1) > np.sum(sizes > 1):
                continue  # of a few clients the larger group is the looser one, and comes out as clients alone
            left = float(inertia[0]) / (k - 1)
            log_p = log_probability(n, k, left) + math.log(len(layers))
            if _log(left) > _null(n, k).mean + LOG_EFFECT:
                log_p = max(log_p, LOG_SEEN)
            if log_p < best.log_p:
                best, clearest = Structure(canonical_labels(labels[0]), log_p), gram
    labels = _joined(clearest, best.labels, generator)
    alone = np.bincount(labels)[labels] == 1
    if best.is_seen and alone.any():
        others = find_groups([rows[~alone] for rows in layers], seed)
        labels[~alone] = others.labels if others.is_seen else 0
        labels[alone] = n + np.arange(alone.sum())
        if others.is_seen:  # that someone is far off is no evidence of groups among the others
            best = best._replace(log_p=max(best.log_p, others.log_p))
    return Structure(canonical_labels(labels), best.log_p)


def log_probability(n: int, k: int, left: float) -> float:
    """log P(W_K ≤ ``left``) for one cloud of n clients; where the drawn frames say nothing, a bound.

    As w → 0, P(W ≤ w) falls like w^(c/2), where c = (K−1)(n−K) is the number of equations that frames constant on
    groups fulfil; nearer to the middle it is the slope of a normal law of log W, where that is flatter.
    """
    null, value = _null(n, k), _log(left)
    if value >= null.percentile:
        return math.log(max(float(np.mean(null.logs <= value)), 0.01))
    slope = min((k - 1) * (null.n - k) / 2, (null.mean - null.percentile) / null.deviation**2)
    return math.log(0.01) - slope * (null.percentile - value)


def _joined(gram: Stack, labels: Assignment, generator: np.random.Generator) -> Assignment:
    """Groups of which two would pass for one cloud are joined, the likeliest first, each at most once."""
    found = []
    for a, b in combinations(range(int(labels.max()) + 1), 2):
        both = np.flatnonzero((labels == a) | (labels == b))
        if len(both) < FEW:
            continue
        first = np.linalg.eigh(_centred(gram[np.ix_(both, both)]))[1][:, -1:]
        log_p = log_probability(len(both), 2, float(_k_means(first[None], 2, _RESTARTS, generator)[0][0]))
        if log_p > LOG_ONE:
            found.append((log_p, a, b))
    joined, done = labels.copy(), set[int]()
    for _, a, b in sorted(found, reverse=True):
        if not done & {a, b}:
            joined[labels == b] = a
            done |= {a, b}
    return canonical_labels(joined)


class _Null(NamedTuple):
    """log W_K of random frames of n rows, with mean, deviation and first percentile."""

    n: int
    logs: Stack
    mean: float
    deviation: float
    percentile: float


@lru_cache(maxsize=1024)
def _null(n: int, k: int) -> _Null:
    """Of the next smaller number on a grid, so that one more client costs nothing: it leaves less, and varies more.

    Beyond the largest one the mean still rises a little, by 1 to 5 %, and the deviation falls like 1/√n.
    """
    if n > _EXACT:
        n = int(_EXACT * _GRID ** math.floor(math.log(n / _EXACT) / math.log(_GRID)))
    logs = _drawn(min(n, _LARGEST), k)
    logs = logs.mean() + (logs - logs.mean()) * math.sqrt(min(1.0, _LARGEST / n))
    return _Null(n, logs, float(logs.mean()), float(logs.std()), float(np.quantile(logs, 0.01)))


@lru_cache(maxsize=1024)
def _drawn(n: int, k: int) -> Stack:
    normal = np.random.default_rng(0).standard_normal((_DRAWS, n, k - 1))
    frames = np.linalg.qr(normal - normal.mean(axis=1, keepdims=True))[0]
    logs: Stack = np.log(np.maximum(_k_means(frames, k, _RESTARTS, np.random.default_rng(1))[0] / (k - 1), 1e-300))
    return logs


def _lengths(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of each row (n, 1), and hardly anything in the place of 0."""
    lengths: NDArray[np.float32] = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-6))
    return lengths


def _shortened(rows: NDArray[np.float32]) -> tuple[NDArray[np.float32], float]:
    """Rows of at most `LONGEST` times their median norm, and that norm; 1 where it is 0."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    median = float(np.median(norms)) or 1.0
    return rows / np.maximum(norms / np.float32(LONGEST * median), np.float32(1)), median


@lru_cache(maxsize=4)
def _signs(size: int) -> NDArray[np.int8]:
    return np.random.default_rng(0).choice(np.array([-1, 1], dtype=np.int8), size)


def _centred(gram: Stack) -> Stack:
    """Inner products of rows less their mean."""
    centred = gram - gram.mean(axis=0)
    centred -= centred.mean(axis=1, keepdims=True)
    return (centred + centred.T) / 2


def _log(left: float) -> float:
    return math.log(max(left, 1e-300))


def _k_means(points: Stack, k: int, restarts: int, generator: np.random.Generator) -> tuple[Stack, NDArray[np.int64]]:
    """Of each of the b sets of points (b × n × r) the least inertia (b,) of ``restarts`` starts, and its labels."""
    b, n, _ = points.shape
    first = generator.integers(n, size=b * restarts)
    others = [generator.random((b * restarts, 1)) for _ in range(1, k)]
    at_once = max(1, _AT_ONCE // (restarts * n * k))
    found = []
    for part in (slice(at, min(at + at_once, b)) for at in range(0, b, at_once)):
        starts = slice(part.start * restarts, part.stop * restarts)
        found.append(_k_means_from(points[part], first[starts], [chance[starts] for chance in others]))
    return np.concatenate([inertia for inertia, _ in found]), np.concatenate([labels for _, labels in found])


def _k_means_from(points: Stack, first: NDArray[np.int64], others: Sequence[Stack]) -> tuple[Stack, NDArray[np.int64]]:
    """The same, of the starts whose ``first`` centers are these points, and whose others are drawn by these chances."""
    b, n, _ = points.shape
    k, restarts = len(others) + 1, len(first) // b
    x = np.repeat(points, restarts, axis=0)
    every = np.arange(len(x))
    centers = np.empty((len(x), k, x.shape[2]))
    centers[:, 0] = x[every, first]
    nearest = np.square(x - centers[:, :1]).sum(axis=2)
    for j, chance in enumerate(others, 1):
        sums = nearest.cumsum(axis=1)
        drawn = (sums < chance * sums[:, -1:]).sum(axis=1).clip(0, n - 1)
        centers[:, j] = x[every, drawn]
        nearest = np.minimum(nearest, np.square(x - centers[:, j : j + 1]).sum(axis=2))
    squares = np.square(x).sum(axis=2)
    labels, counts, sums = np.full((len(x), n), -1), np.empty((len(x), k)), np.empty_like(centers)
    moving = every  # those whose labels still change
    for _ in range(50):
        own, there = x[moving], centers[moving]
        found = (np.square(there).sum(axis=2)[:, None] - 2 * own @ there.swapaxes(1, 2)).argmin(axis=2)
        members = (found[:, :, None] == np.arange(k)).astype(np.float64)
        counts[moving], sums[moving] = members.sum(axis=1), members.swapaxes(1, 2) @ own
        changed = (found != labels[moving]).any(axis=1)
        labels[moving] = found
        moving = moving[changed]
        if not len(moving):
            break
        means = sums[moving] / np.maximum(counts[moving], 1)[:, :, None]
        centers[moving] = np.where(counts[moving][:, :, None] > 0, means, centers[moving])
    inertia = squares.sum(axis=1) - (np.square(sums).sum(axis=2) / np.maximum(counts, 1)).sum(axis=1)
    best = np.arange(b) * restarts + inertia.reshape(b, restarts).argmin(axis=1)
    return inertia[best], labels[best]
