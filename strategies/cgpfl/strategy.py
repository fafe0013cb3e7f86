"""CGPFL: personal models, each near one of K contexts, of which every one is the mean of its own clients.

Tang, Guo, Guo: Personalized Federated Learning with Contextualized Generalization. IJCAI 2022.
https://arxiv.org/abs/2106.13044

Algorithm 1. With contexts ω_k on the server and k(i) the one of client i, the method minimises the mean over clients
of the Moreau envelopes min_θ f_i(θ) + (λ/2)·‖θ − ω_k(i)‖². A device begins a local copy ω at its context; for each
mini-batch it takes some gradient steps of θ_i, then ω ← ω − η λ (ω − θ_i), and sends ω. The server puts each client to
the nearest context by its ω, and moves the contexts: ω_k ← (1 − β) ω_k + β · mean of its clients' ω. Devices are tested
with θ_i.
With one context this is pFedMe (Dinh et al. 2020).

Where this differs from the paper:

- Given K, the contexts begin at k-means of the clients' ω from one common start; then every round is one step of
  k-means, from the contexts as they are. How the first ω are gathered where only some clients are asked:
  `bouquet.strategies.baselines.one_shot`.
- θ_i goes on from mini-batch to mini-batch and from round to round: the minimiser changes little, and is found sooner.
- The values common for pFedMe, λ = 15 and η λ about 0.1, take far more rounds than other methods:
  after three rounds on rotated digits personal models were at .27 with λ = 1 and η λ = 0.1, at .80 with .1 and 0.3.
- K is found as other methods find it (`bouquet.strategies.base.groups`), from one context on, or given; the paper's
  CGPFL-Heur, which chooses it, is left out.

The device's part is `bouquet.strategies.cgpfl.device`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from bouquet.common.protocol import ARRAYS, Instruction, Proximal
from bouquet.common.protocol.capabilities import TRAINING
from bouquet.strategies.base.groups import NumClusters
from bouquet.strategies.base.method import count_moved, one_model
from bouquet.strategies.base.replies import Matrix, Replies
from bouquet.strategies.baselines.one_shot import OneShotClustering, OneShotState
from bouquet.strategies.cgpfl import CONTEXT_STEP, PERSONAL_STEPS, PROCEDURE
from bouquet.strategies.mathematics.aggregation import Assignment, mean_of_centers
from bouquet.strategies.mathematics.clustering import assign_to_nearest, kmeans


@dataclass(eq=False, repr=False)
class CGPFL(OneShotClustering):
    """Personal models held near K contexts, which follow the personal models of their clients.

    What leaves a device in a round: its copy of the context, moved towards its personal model, which stays. What it is
    sent: its context.

    Parameters
    ----------
    num_clusters : int | "auto", default "auto"
        K, the number of contexts; ``"auto"`` finds it.
    """

    places_by_loss = True
    tested_model = "personal"
    trainings = "5"
    clusters_chosen_on = "uploaded contexts"

    num_clusters: NumClusters = "auto"
    proximal_weight: ClassVar[float] = 0.1  # λ
    personal_steps: ClassVar[int] = 5  # gradient steps of the personal model for each mini-batch
    context_step: ClassVar[float] = 0.3  # η λ, the part of the way to the personal model that the context then moves
    server_step: ClassVar[float] = 1.0  # β

    def wants_late(self, state: OneShotState) -> bool:
        """Where K is given, not before the clustering."""
        return self.num_clusters == "auto" or super().wants_late(state)

    def device_needs(self) -> Mapping[str, str]:
        """For the context."""
        return {TRAINING: "after each mini-batch the context follows the personal model."}

    def plan(self, state: OneShotState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """Its context to each client, and how to descend; the mean of all contexts to a newcomer."""
        mean = mean_of_centers(state.centers)
        proximal = (Proximal(ARRAYS, self.proximal_weight),)
        config = {PERSONAL_STEPS: self.personal_steps, CONTEXT_STEP: self.context_step}
        known, seen = state.assignment, {*state.assignment, *state.gathered}
        return {
            client: one_model(
                state.centers[known[client]] if client in known else mean,
                start="personal",
                proximal=proximal,
                procedure=PROCEDURE,
                newcomer=client not in seen,
                config=config,
            )
            for client in clients
        }

    def plan_evaluate(self, state: OneShotState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """What a client would be sent to train; it is tested with its personal model."""
        return self.plan(state, round_ + 1, clients)

    def update(self, state: OneShotState, round_: int, replies: Replies) -> OneShotState:
        """The first clustering; then each client goes to its nearest context, and the contexts to their clients."""
        auto = self.num_clusters == "auto"
        if state.directions is None and not auto:
            return super().update(state, round_, replies)
        compared = replies.layout.parameters_of
        nearest = assign_to_nearest(compared(replies.W), compared(state.centers))
        seed = self.seed + round_ if auto else None
        step = state.groups.e_step(replies, state.assignment, nearest, state.centers, seed, self.aggregation)
        labels, previous = step.labels(replies.clients), state.centers[step.origins]
        return replace(
            state,
            centers=self.aggregate(replies.W, labels, replies.num_examples, previous),
            assignment=step.assignment,
            groups=step.groups,
            last={"moved": count_moved(state.assignment, step.assignment), "log_p": step.groups.log_p},
        )

    def find_clusters(self, updates: Matrix) -> tuple[Assignment, dict[str, Any]]:
        """K-means of the clients' ω, here as what they changed in their common start."""
        labels, _, inertia = kmeans(updates, self.expected_clusters, self.seed)
        return labels, {"inertia": inertia}

    def aggregate(self, W: Matrix, labels: Assignment, examples: ArrayLike, previous: Matrix) -> Matrix:
        """ω_k ← (1 − β) ω_k + β · mean: all clients alike; a context without clients stays."""
        means = self.aggregation.cluster_means(W, labels, len(previous), previous=previous)
        return (previous + np.float32(self.server_step) * (means - previous)).astype(np.float32)
