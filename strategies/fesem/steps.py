"""The E-step of FeSEM on rows of models, matched to the centers or as they are, and the distance that it lessens."""

from __future__ import annotations

import numpy as np

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.strategies.base.replies import Matrix
from bouquet.strategies.mathematics.aggregation import Assignment
from bouquet.strategies.mathematics.clustering import assign_to_nearest


def expectation_step(layout: ParameterLayout, W: Matrix, matched: Matrix | None, centers: Matrix) -> Assignment:
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
