"""HypCluster: q hypotheses go to the devices; each takes the one with the least loss on its data and trains it.

Mansour, Mohri, Ro, Suresh: Three Approaches for Personalization with Applications to Federated Learning. 2020.
https://arxiv.org/abs/2002.10619

Section 3, the stochastic EM form of its algorithm: in a round, each sampled device takes argmin_k L_i(h_k) over all of
its training data and runs local SGD from that h_k; h_k becomes the mean of its devices' models, weighted by their
numbers of samples. IFCA, which came at the same time (`bouquet.strategies.gradient_loss`), judges by all training data,
too; its means are plain.

Where this differs from the paper: the hypotheses begin as q random initialisations; from one common model they would
stay equal for ever.

The device's part is `bouquet.strategies.hypocluster.device`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import Instruction, Payload
from bouquet.common.protocol.capabilities import LOSS
from bouquet.common.protocol.names import CENTER, CHOSEN, LOSS_GAP
from bouquet.strategies.base.method import Outcome, count_moved
from bouquet.strategies.base.options import Count
from bouquet.strategies.base.replies import Matrix, Replies
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.hypocluster import PROCEDURE
from bouquet.strategies.mathematics.initialisation import random_models


@dataclass(frozen=True)
class HypoClusterState:
    """All that survives a round."""

    centers: Matrix  # (K, d): the hypotheses
    assignment: dict[str, int] = field(default_factory=dict)  # client → what it took last
    last: dict[str, Any] = field(default_factory=dict)  # what `record` tells of the last round


@dataclass(eq=False, repr=False)
class HypoCluster(MethodStrategy[HypoClusterState]):
    """All K models go to the devices; each takes the one with the least loss on its training data, and trains it.

    Parameters
    ----------
    num_clusters : int, default 4
        q, the number of hypotheses.
    """

    state_class = HypoClusterState
    takes_late_replies = True
    clusters_chosen_on = "the device's training data"

    num_clusters: Count = 4

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> HypoClusterState:
        """K different initial models; the first is the given one."""
        return HypoClusterState(random_models(initial, layout, self.num_clusters, self.seed, self.draw_model))

    def plan(self, state: HypoClusterState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """All models to every device."""
        models = {f"{CENTER}{k}": Payload(center) for k, center in enumerate(state.centers)}
        return dict.fromkeys(clients, Instruction(models, procedure=PROCEDURE))

    def update(self, state: HypoClusterState, round_: int, replies: Replies) -> Outcome[HypoClusterState]:
        """The mean of the models of those that took it, weighted by their samples; one that nobody took stays."""
        answers = replies.metric(CHOSEN)
        fits = np.isin(answers, np.arange(self.num_clusters))
        wrong = {
            client: f"Metric {CHOSEN!r} is {value}; it must be a whole number from 0 to {self.num_clusters - 1}."
            for client, value, fit in zip(replies.clients, answers.tolist(), fits, strict=True)
            if not fit
        }
        usable = replies.only(fits)
        if not len(usable):
            return Outcome(state, wrong)
        chosen = answers[fits].astype(np.int64)
        taken = dict(zip(usable.clients, chosen.tolist(), strict=True))
        gaps = usable.metric(LOSS_GAP)
        after = HypoClusterState(
            centers=self.aggregation.cluster_means(
                usable.W, chosen, self.num_clusters, usable.num_examples, state.centers
            ),
            assignment={**state.assignment, **taken},
            last={
                "members": np.bincount(chosen, minlength=self.num_clusters).tolist(),
                "moved": count_moved(state.assignment, taken),
                "loss_gap": float(np.nanmean(gaps)) if np.isfinite(gaps).any() else None,
            },
        )
        return Outcome(after, wrong)

    def device_needs(self) -> Mapping[str, str]:
        """For the choice."""
        return {LOSS: "the device takes the model with the least training loss."}

    def needs_scores(self) -> str:
        """For the choice."""
        return "the device says which model it chose, by the losses of its own data."

    def record(self, state: HypoClusterState) -> dict[str, Any]:
        """Of the last round: devices by cluster, how many moved, and how far apart the models were to a device."""
        return {"num_clusters": self.num_clusters, **state.last}
