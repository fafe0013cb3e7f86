"""The state of FeSEM, and its E-step on rows of models: matched to the centers, or as they are."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from common.parameters.layout import ParameterLayout, Vector
from strategies.base.replies import Matrix
from strategies.mathematics.aggregation import Assignment
from strategies.mathematics.clustering import assign_to_nearest


@dataclass(frozen=True)
class Trial:
    """The choice of K by accuracy: the candidate that is being tried, and the scores so far."""

    candidates: list[int]
    index: int = 0
    rounds: int = 0
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FeSEMState:
    """All that survives a round."""

    centers: Matrix  # (K, d); one row until the first clustering
    assignment: dict[str, int]  # client → cluster; empty until the first clustering
    num_clusters: int | None = None  # None while K is being chosen
    selection: dict[str, float] = field(default_factory=dict)  # score of each candidate K
    moved: int = 0  # clients that the last E-step put into another cluster
    intra_distance: float | None = None  # mean distance of a client's model to its center, Eq. 6
    trial: Trial | None = None
    start_models: Matrix | None = None  # (n, d), while candidates are tried: the models each of them clusters
    start_clients: list[str] = field(default_factory=list)
    # Before the first clustering, over the rounds that it is awaited: the common model that these were trained from.
    origin: Vector | None = None
    gathered: dict[str, Vector] = field(default_factory=dict)  # client → its model
    examples: dict[str, int] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)  # clients that ever replied


def nearest_centers(layout: ParameterLayout, W: Matrix, matched: Matrix | None, centers: Matrix) -> Assignment:
    """r_i of Eq. 8, (n,): for each model of W (n × d) the nearest of the ``centers`` (K × d), by their parameters.

    ``matched`` (K × n × d) are the models with their units in the order of each center's, where that is asked for.
    """
    centers = layout.parameters_of(centers)
    if matched is None:
        return assign_to_nearest(layout.parameters_of(W), centers)
    pairs = zip(layout.parameters_of(matched), centers, strict=True)
    return np.stack([np.linalg.norm(rows - center, axis=1) for rows, center in pairs], axis=1).argmin(axis=1)


def matched_to(W: Matrix, matched: Matrix | None, nearest: Assignment) -> Matrix:
    """The models (n × d) that are averaged: each as it is matched to its ``nearest`` center (n,), or as it is."""
    return W if matched is None else matched[nearest, np.arange(len(W))]


def mean_distance(layout: ParameterLayout, W: Matrix, centers: Matrix, labels: Assignment) -> float:
    """The mean distance of a model to its center (Eq. 6), by their parameters."""
    # A row at a time: the differences of all would be as large as the models.
    pairs = zip(W, labels, strict=True)
    return float(np.mean([np.linalg.norm(layout.parameters_of(row - centers[label])) for row, label in pairs]))
