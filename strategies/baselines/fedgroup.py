"""FedGroup: groups fixed by the directions in which clients move the initial model, and a cold start for newcomers.

Duan, Liu, Ji, Liu, Liang, Chen, Tan: FedGroup: Efficient Clustered Federated Learning via Decomposed Data-Driven
Measure. IEEE ISPA 2021. https://arxiv.org/abs/2010.06870

Up to α·m clients train the initial model w₀ (pre-training). Their updates ΔW (n × d) are decomposed: with V the m
leading right singular vectors of ΔW, client i becomes the m numbers cos(Δw_i, v_j), whose Euclidean distance is the
measure EDC; k-means groups them. A group's model is w₀ with the mean update of its clients. A newcomer trains w₀ and
joins the group with the least (1 − cos(Δw, Δw_group)) / 2, where Δw_group is that mean update. In every round groups
run FedAvg.

Where this differs from the paper: nothing is centred or reweighed, but pre-training takes ``train.local_epochs``, as
every round does; there is no aggregation between groups (η_g = 0); and where
only some clients are asked in a round, pre-training goes on for several (`bouquet.strategies.baselines.one_shot`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bouquet.strategies.base.options import Count
from bouquet.strategies.base.replies import Matrix
from bouquet.strategies.baselines.one_shot import OneShotClustering
from bouquet.strategies.mathematics.aggregation import Assignment
from bouquet.strategies.mathematics.clustering import kmeans
from bouquet.strategies.mathematics.similarity import gram_matrix


@dataclass(eq=False, repr=False)
class FedGroup(OneShotClustering):
    """K-means of decomposed cosine similarities after one pre-training, then FedAvg inside each group.

    Parameters
    ----------
    num_clusters : int, default 4
        m, groups, and directions that the updates are decomposed into.
    """

    num_clusters: Count = 4
    pretraining_scale: ClassVar[int] = 20  # α; gathering ends early once α·m clients have trained the initial model

    @property
    def enough(self) -> float:
        """α·m, the size of the paper's pre-training."""
        return self.pretraining_scale * self.num_clusters

    def find_clusters(self, updates: Matrix) -> tuple[Assignment, dict[str, Any]]:
        """K-means of the decomposed updates."""
        labels, _, inertia = kmeans(decomposed_cosine(updates, self.num_clusters), self.num_clusters, self.seed)
        return labels, {"inertia": inertia}


def decomposed_cosine(updates: Matrix, num_directions: int) -> NDArray[np.float64]:
    """cos(Δw_i, v_j) of updates (n × d) with their leading right singular vectors, as n × m numbers.

    The Euclidean distance of two rows, divided by √m, is the measure EDC. With ΔW ΔWᵀ = U Σ² Uᵀ (n × n) these numbers
    are u_ij σ_j / ‖Δw_i‖, so that no d × n matrix is decomposed. Beyond the rank of ΔW there is no direction, and the
    cosine is 0. A direction's sign is that of its largest number, so that the result does not depend on the solver.
    """
    gram = gram_matrix(updates)
    values, vectors = np.linalg.eigh(gram)
    leading = np.argsort(values)[::-1][:num_directions]
    values, vectors = np.maximum(values[leading], 0.0), vectors[:, leading]
    values[values <= np.finfo(np.float64).eps * len(gram) * values[0]] = 0.0
    embedded = np.zeros((len(updates), num_directions))
    norms = np.sqrt(np.diag(gram))[:, None]
    products = vectors * np.sqrt(values)
    embedded[:, : len(leading)] = np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)
    largest = np.abs(embedded).argmax(axis=0)
    return embedded * np.where(embedded[largest, np.arange(num_directions)] < 0, -1.0, 1.0)
