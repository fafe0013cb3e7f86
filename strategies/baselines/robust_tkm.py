"""Robust federated learning in a heterogeneous environment: trimmed k-means of local models, then robust means.

Ghosh, Hong, Yin, Ramchandran: Robust Federated Learning in a Heterogeneous Environment. 2019.
https://arxiv.org/abs/1906.06629

Three stages. Every device minimises its own empirical risk, and sends the model once. The server groups these models
by Lloyd's algorithm with a robust step, trimmed k-means, because some devices may be corrupt. Inside each cluster a
Byzantine-robust optimisation goes on, by the coordinate-wise trimmed mean of Yin et al. (ICML 2018).

Where this differs from the paper: the local risk minimisers of a network are many, so that all devices begin from one
common model and train it for ``erm_epochs``; trimmed k-means is that of Cuesta-Albertos et al. (1997), which in each
step leaves out the models farthest from their centers; and in the third stage devices send models trained for
``train.local_epochs`` in place of gradients, which the paper's analysis asks for. How models are gathered where only
some devices are asked: `bouquet.strategies.baselines.one_shot`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import Scalar
from bouquet.common.protocol.capabilities import TRAINING
from bouquet.strategies.base.options import Count
from bouquet.strategies.base.replies import Matrix
from bouquet.strategies.baselines.one_shot import OneShotClustering, OneShotState
from bouquet.strategies.mathematics.aggregation import Assignment
from bouquet.strategies.mathematics.similarity import distances_to
from bouquet.strategies.mathematics.trimming import trimmed_kmeans, trimmed_mean


@dataclass(eq=False, repr=False)
class RobustTKM(OneShotClustering):
    """Trimmed k-means of the devices' own models, then the trimmed mean inside each cluster.

    Parameters
    ----------
    num_clusters : int, default 4
        K.
    """

    num_clusters: Count = 4
    # α: the part of the models that trimmed k-means leaves out, and of the values of each coordinate that the mean of a
    # cluster leaves out at either end
    trimmed_share: ClassVar[float] = 0.1
    erm_epochs: ClassVar[int] = 10  # passes over a device's data in the first stage

    @property
    def fewest(self) -> int:
        """So many devices that K are left when the share is trimmed."""
        fewest = self.num_clusters
        while fewest - np.ceil(self.trimmed_share * fewest) < self.num_clusters:
            fewest += 1
        return fewest

    def device_needs(self) -> Mapping[str, str]:
        """For the first stage."""
        return {TRAINING: f"devices first train for {self.erm_epochs} epochs."}

    def training(self, state: OneShotState) -> Mapping[str, Scalar]:
        """The first stage trains for ``erm_epochs``."""
        return {"local-epochs": self.erm_epochs}

    def find_clusters(self, updates: Matrix) -> tuple[Assignment, dict[str, Any]]:
        """Trimmed k-means; that of the updates is that of the models, moved by the common start."""
        clustering = trimmed_kmeans(updates, self.num_clusters, self.trimmed_share, self.seed)
        return clustering.assignment, {"trimmed": int(clustering.trimmed.sum()), "inertia": clustering.inertia}

    def place(self, updates: Matrix, directions: Matrix) -> Assignment:
        """The cluster whose center is nearest."""
        return np.argmin(distances_to(updates, directions), axis=1)

    def direction(self, updates: Matrix) -> Vector:
        """The trimmed mean of a cluster's updates."""
        return trimmed_mean(updates, self.trimmed_share)

    def aggregate(self, W: Matrix, labels: Assignment, examples: ArrayLike, previous: Matrix) -> Matrix:
        """The trimmed mean of each cluster's models, all devices alike: a weight would be a lever for a corrupt one."""
        centers = previous.copy()
        for k in np.unique(labels):
            centers[k] = trimmed_mean(W[labels == k], self.trimmed_share)
        return centers
