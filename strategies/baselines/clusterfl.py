"""ClusterFL: a model for each device, tied to those of its cluster; models and cluster indicators found in turn.

Ouyang, Xie, Zhou, Huang, Xing: ClusterFL: A Similarity-Aware Federated Learning System for Human Activity Recognition.
MobiSys 2021. https://doi.org/10.1145/3458864.3467681

With the devices' models w_i as rows of W and a cluster indicator matrix F (n × K, F_ik = 1/√n_k where i is in cluster
k, else 0), the method minimises

    Σ_i L_i(w_i) + α tr(W Wᵀ) − β tr(Fᵀ W Wᵀ F),    α ≥ β,

which is Σ_i L_i(w_i) + (α − β)·‖W‖² + β Σ_i ‖w_i − w̄_k(i)‖², w̄_k being the mean of cluster k. Given W, the best F is
that of k-means of the rows (server); given F, each device minimises its own summand (device), beginning from its own
model. Devices are tested with w_i.

Where this differs from the paper:

- Given F, the paper solves for all w_i together by ADMM, several exchanges of auxiliary matrices; here each device
  takes the mean of its cluster as it was sent, which is one step of block coordinate descent a round.
- The authors' code (xmouyang/ClusterFL, ``server/server_cfmtl.py``) takes for F a dense matrix of how alike the models'
  outputs are; here it is the indicator matrix of the problem.
- The code has α = 0.001 and β = 0.0005. Our default of β is larger, and α = β: what shrinks the models is
  ``train.weight_decay``.
- Devices are not dropped for being slow (the server's deadlines do that) or for being alone in their cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import ARRAYS, Instruction, Proximal
from bouquet.common.protocol.capabilities import LAYERS, TERMS
from bouquet.strategies.base.method import count_moved, one_model
from bouquet.strategies.base.options import Count
from bouquet.strategies.base.replies import Matrix, Replies
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.mathematics.aggregation import mean_of_centers
from bouquet.strategies.mathematics.clustering import kmeans


@dataclass(frozen=True)
class ClusterFLState:
    """All that survives a round."""

    centers: Matrix  # (K, d): w̄_k; one row until K clients are known
    models: dict[str, Vector] = field(default_factory=dict)  # w_i as each client sent it last
    assignment: dict[str, int] = field(default_factory=dict)  # client → the cluster that F puts it in
    moved: int = 0  # clients that the last F put into another cluster


@dataclass(eq=False, repr=False)
class ClusterFL(MethodStrategy[ClusterFLState]):
    """Personal models, each held near the mean of its cluster; the clusters are those of k-means of the models.

    What leaves a device in a round: its personal model. What it is sent: the mean of its cluster.

    Parameters
    ----------
    num_clusters : int, default 4
        K.
    """

    state_class = ClusterFLState
    takes_late_replies = True
    tested_model = "personal"
    clusters_chosen_on = "uploaded models"

    num_clusters: Count = 4
    cluster_weight: ClassVar[float] = 0.05  # β

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> ClusterFLState:
        """One common model, from which all begin."""
        return ClusterFLState(initial[None, :].copy())

    def plan(self, state: ClusterFLState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """The mean of its cluster to each device; a newcomer begins from, and is held near, the mean of all.

        β·‖·‖² is (2 β) / 2·‖·‖² on the wire. In the first rounds, before there are clusters, nothing holds a device:
        F is 0, as in the authors' code.
        """
        proximal = (Proximal(ARRAYS, 2 * self.cluster_weight),) if state.assignment else ()
        mean = mean_of_centers(state.centers)
        clusters = state.assignment
        return {
            client: one_model(
                state.centers[clusters[client]] if client in clusters else mean,
                start="personal",
                proximal=proximal,
                newcomer=client not in state.models,
            )
            for client in clients
        }

    def update(self, state: ClusterFLState, round_: int, replies: Replies) -> ClusterFLState:
        """F from the models as they are now: of this round, and of the last one of each client that was not asked."""
        models = {**state.models, **dict(zip(replies.clients, replies.W, strict=True))}
        clients = sorted(models)
        W = np.stack([models[client] for client in clients])
        if len(clients) < self.num_clusters:
            return ClusterFLState(self.aggregation.center(W), models)
        parameters = replies.layout.parameters_of(W)
        labels, means, _ = kmeans(W, self.num_clusters, self.seed, compared=parameters)
        assignment = dict(zip(clients, labels.tolist(), strict=True))
        return ClusterFLState(
            centers=self.aggregation.cluster_means(W, labels, self.num_clusters, previous=means),
            models=models,
            assignment=assignment,
            moved=count_moved(state.assignment, assignment),
        )

    def device_needs(self) -> Mapping[str, str]:
        """For the personal models, and what ties them."""
        why = "each device goes on from its own model, held near the mean of its cluster."
        return {LAYERS: why, TERMS: why}

    def record(self, state: ClusterFLState) -> dict[str, Any]:
        """K, and how many clients the last F moved."""
        return {"num_clusters": len(state.centers), "moved": state.moved}
