"""Model discrepancy and the hierarchical group graph: whom to group with whom (DC-PFL, III-A and III-B, Eq. 3)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from strategies.mathematics.aggregation import Assignment, Matrix, Vector
from strategies.mathematics.clustering import groups_at
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


def next_split(linkage: NDArray[np.float64], gamma: float, step: float) -> tuple[float, Assignment] | None:
    """The next lower γ̃ at which the groups differ from those at ``gamma``, and these groups (n,).

    γ̃ is lowered by ``step`` (λ), not below 0, until they do; None where no split is left.
    """
    groups = groups_at(linkage, gamma)
    while gamma > 0:
        gamma = max(0.0, round(gamma - step, 9))  # 1 − 5 · 0.2 is to be 0
        proposed = groups_at(linkage, gamma)
        if not np.array_equal(proposed, groups):
            return gamma, proposed
    return None
