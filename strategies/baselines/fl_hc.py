"""FL+HC: FedAvg, then one hierarchical clustering of the clients' updates, then FedAvg inside each cluster.

Briggs, Fan, Andras: Federated Learning with Hierarchical Clustering of Local Updates to Improve Training on Non-IID
Data. IJCNN 2020. https://arxiv.org/abs/2004.11791

Algorithm 1: after n rounds of FedAvg all clients train the global model w, Δw_k = w_k − w is clustered by agglomerative
clustering with a distance (L1, L2, cosine), a linkage, and a distance threshold; FedAvg goes on in each cluster.

Where this differs from the paper: a threshold belongs to a model and its data, so that here the number of clusters is
given unless a threshold is; and the paper has no newcomers, who here train w first and join the cluster whose mean
update is nearest, by the same distance. How updates are gathered where only some clients are asked:
`bouquet.strategies.baselines.one_shot`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from scipy.spatial.distance import cdist

from bouquet.strategies.base.options import Count, Weight, WholeNumber, check_options
from bouquet.strategies.base.replies import Matrix
from bouquet.strategies.baselines.one_shot import OneShotClustering
from bouquet.strategies.mathematics.aggregation import Assignment
from bouquet.strategies.mathematics.clustering import hierarchical_clusters
from bouquet.strategies.mathematics.similarity import (
    Distances,
    cosine_similarity,
    cosine_to,
    distances_to,
    euclidean_distances,
)

Distance = Literal["l2", "l1", "cosine"]
Linkage = Literal["ward", "complete", "average", "single"]


@dataclass(eq=False, repr=False)
class FLHC(OneShotClustering):
    """Agglomerative clustering of updates after some rounds of FedAvg, then FedAvg inside each cluster.

    Parameters
    ----------
    num_clusters : int, default 4
        Number of clusters, where there is no ``threshold``.
    threshold : float | None, default None
        Clusters are joined while they are at most so far apart, in the unit of the distance; none for ``num_clusters``.
    distance : {"l2", "l1", "cosine"}, default "l2"
        Between updates: ``"l2"``, ``"l1"`` or ``"cosine"`` (1 − cos).
    linkage : {"ward", "complete", "average", "single"}, default "ward"
        Between clusters: ``"ward"`` (with ``"l2"`` only), ``"complete"``, ``"average"`` or ``"single"``.
    warmup_rounds : int, default 5
        n, rounds of FedAvg before the clustering.
    **sampling
        See `bouquet.strategies.base.sampling.Sampling`.
    """

    num_clusters: Count = 4
    threshold: Weight | None = None
    distance: Distance = "l2"
    linkage: Linkage = "ward"
    warmup_rounds: WholeNumber = field(default=5, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.linkage != "ward" or self.distance == "l2"
        check_options(("linkage", self.linkage, "'ward' needs distance = 'l2'", fits))

    @property
    def fewest(self) -> int:
        """As many clients as clusters; with a threshold, one."""
        return self.num_clusters if self.threshold is None else 1

    def find_clusters(self, updates: Matrix) -> tuple[Assignment, dict[str, Any]]:
        """Agglomerative clustering of the updates Δw_k."""
        number = self.num_clusters if self.threshold is None else None
        labels = hierarchical_clusters(
            self._distances(updates), linkage=self.linkage, num_clusters=number, threshold=self.threshold
        )
        return labels, {}

    def place(self, updates: Matrix, directions: Matrix) -> Assignment:
        """The cluster whose mean update is nearest, by the distance of the clustering."""
        if self.distance == "cosine":
            distances = 1 - cosine_to(updates, directions)
        elif self.distance == "l1":
            distances = cdist(updates, directions, "cityblock")
        else:
            distances = distances_to(updates, directions)
        return np.argmin(distances, axis=1)

    def _distances(self, updates: Matrix) -> Distances:
        if self.distance == "cosine":
            similarity = cosine_similarity(updates)
            return 1 - (similarity + similarity.T) / 2
        if self.distance == "l1":
            return cdist(updates, updates, "cityblock")
        return euclidean_distances(updates)
