"""FL+HC: FedAvg, then one hierarchical clustering of the clients' updates, then FedAvg inside each cluster.

Briggs, Fan, Andras: Federated Learning with Hierarchical Clustering of Local Updates to Improve Training on Non-IID
Data. IJCNN 2020. https://arxiv.org/abs/2004.11791

Algorithm 1: after n rounds of FedAvg all clients train the global model w, Δw_k = w_k − w is clustered by agglomerative
clustering, here by L2 distances and Ward's linkage; FedAvg goes on in each cluster.

Where this differs from the paper: its distance threshold belongs to a model and its data, so that here the number of
clusters is given; and the paper has no newcomers, who here train w first and join the cluster whose mean update is
nearest. How updates are gathered where only some clients are asked: `bouquet.strategies.baselines.one_shot`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bouquet.strategies.base.options import Count, WholeNumber
from bouquet.strategies.base.replies import Matrix
from bouquet.strategies.baselines.one_shot import OneShotClustering
from bouquet.strategies.mathematics.aggregation import Assignment
from bouquet.strategies.mathematics.clustering import hierarchical_clusters
from bouquet.strategies.mathematics.similarity import distances_to, euclidean_distances


@dataclass(eq=False, repr=False)
class FLHC(OneShotClustering):
    """Agglomerative clustering of updates after some rounds of FedAvg, then FedAvg inside each cluster.

    Parameters
    ----------
    num_clusters : int, default 4
        Number of clusters.
    warmup_rounds : int, default 5
        n, rounds of FedAvg before the clustering.
    """

    num_clusters: Count = 4
    warmup_rounds: WholeNumber = field(default=5, kw_only=True)

    def find_clusters(self, updates: Matrix) -> tuple[Assignment, dict[str, Any]]:
        """Agglomerative clustering of the updates Δw_k."""
        return hierarchical_clusters(euclidean_distances(updates), linkage="ward", num_clusters=self.num_clusters), {}

    def place(self, updates: Matrix, directions: Matrix) -> Assignment:
        """The cluster whose mean update is nearest."""
        return np.argmin(distances_to(updates, directions), axis=1)
