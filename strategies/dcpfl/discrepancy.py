"""Model discrepancy and the hierarchical group graph: whom to group with whom (DC-PFL, III-A and III-B, Eq. 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import ClusterNode, to_tree

from strategies.mathematics.aggregation import Assignment, Matrix, Vector
from strategies.mathematics.clustering import canonical_labels, groups_at
from strategies.mathematics.similarity import Distances, cosine_similarity, l1_discrepancy

Discrepancy = Literal["l1", "l1-own", "cosine"]
Columns = NDArray[np.int64]


def model_discrepancy(W: Matrix, origin: Vector, kind: Discrepancy, columns: Columns | None = None) -> Distances:
    """D^t_ij of all pairs of models trained from one model: rows of W (n × d) and ``origin`` (d,) → n × n.

    ``"l1"`` is Eq. 3 with one minimum and maximum for all models, ``"l1-own"`` with each model's own, as printed;
    ``"cosine"`` is 1 − cos(w_i − w, w_j − w), from 0 to 2. With ``columns`` the sums go over those coordinates only;
    see `sampled_columns` for the error.
    """
    if kind == "cosine":
        part = slice(None) if columns is None else columns
        return 1.0 - cosine_similarity(W[:, part], origin[part])
    return l1_discrepancy(W, "shared" if kind == "l1" else "own", columns)


def sampled_columns(dim: int, sample: int | None, seed: int) -> Columns | None:
    """A random ``sample`` of ``dim`` coordinates to measure on, None for all of them.

    It is drawn without replacement from the seed alone, so that it is the same in every round.

    Error of m sampled coordinates out of d. L1: the estimate is unbiased, and with c the coefficient of variation
    (deviation over mean) of |S(w_i) − S(w_j)| over the coordinates its relative standard error is
    c / √m · √(1 − m/d). All n(n − 1)/2 pairs are within b · √(ln(n²/δ) / 2m) of their true value with
    probability 1 − δ, where b ≤ 1 is the largest scaled difference (Hoeffding 1963, section 6, and a union bound).
    Cosine: with κ the larger kurtosis d · Σu⁴ / (Σu²)² of the two updates u, the standard error is, to first order, at
    most (1 + |cos|) · √(κ/m); it is far less where the large coordinates of the two are not the same ones.
    """
    if sample is None or sample >= dim:
        return None
    return np.sort(np.random.default_rng(seed).choice(dim, size=sample, replace=False))


def groups_of_at_least(
    linkage: NDArray[np.float64], fraction: float, distances: Distances, samples: NDArray[np.int64], least: int
) -> Assignment:
    """`groups_at` a normalised threshold, but that none has fewer than ``least`` training samples; (n,).

    ``distances`` (n × n) and ``samples`` (n,) are the clients'. Not in the paper. From the top of the graph on, a
    branch parts where both halves have as many samples. Where one has fewer it does not hold the other one back: it
    goes along, at each further parting with the half that is nearer in the mean. So groups at a lower threshold are
    parts of those at a higher one here, too. With ``least`` = 0 it is `groups_at`.
    """
    if least <= 0 or len(samples) == 1:
        return groups_at(linkage, fraction)
    labels = np.zeros(len(samples), dtype=np.int64)
    for label, members in enumerate(_parts(to_tree(linkage), [], fraction * linkage[-1, 2], distances, samples, least)):
        labels[members] = label
    return canonical_labels(labels)


def _parts(
    branch: ClusterNode,
    along: list[list[int]],
    height: float,
    distances: Distances,
    samples: NDArray[np.int64],
    least: int,
) -> Iterator[list[int]]:
    """The groups of a branch, with those who go ``along`` with it."""
    halves = [] if branch.is_leaf() or branch.dist <= height else [branch.get_left(), branch.get_right()]
    members = [half.pre_order() for half in halves]
    enough = [half for half, own in zip(halves, members, strict=True) if samples[own].sum() >= least]
    if not enough:
        yield sorted([*branch.pre_order(), *(client for few in along for client in few)])
    elif len(enough) == 1:
        few = next(own for half, own in zip(halves, members, strict=True) if half is not enough[0])
        yield from _parts(enough[0], [*along, few], height, distances, samples, least)
    else:
        nearer = [int(np.argmin([distances[np.ix_(few, own)].mean() for own in members])) for few in along]
        for side, half in enumerate(halves):
            own_along = [few for few, chosen in zip(along, nearer, strict=True) if chosen == side]
            yield from _parts(half, own_along, height, distances, samples, least)


def next_split(at: Callable[[float], Assignment], gamma: float, step: float) -> tuple[float, Assignment] | None:
    """The next lower γ̃ at which the groups (n,) that ``at`` gives differ from those at ``gamma``, and these groups.

    γ̃ is lowered by ``step`` (λ), not below 0, until they do; None where no split is left.
    """
    groups = at(gamma)
    while gamma > 0:
        gamma = max(0.0, round(gamma - step, 9))  # 1 − 5 · 0.2 is to be 0
        proposed = at(gamma)
        if not np.array_equal(proposed, groups):
            return gamma, proposed
    return None
