from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from bouquet.strategies import Matrix, MethodStrategy, Outcome, Vector, one_model
from bouquet.strategies.base.options import Count
from bouquet.strategies.mathematics.clustering import hierarchical_clusters
from bouquet.strategies.mathematics.similarity import cosine_similarity, cosine_to
from onegradient.wire import FIRST_GRADIENT


@dataclass(frozen=True)
class OneGradientState:
    initial: Vector  # (d,)
    centers: Matrix  # (K, d)
    directions: Matrix  # (K, d): of the gradients in each cluster
    assignment: dict[str, int]


@dataclass(eq=False, repr=False)
class OneGradient(MethodStrategy[OneGradientState]):
    """Clients are grouped by the direction of their first gradients, and average their models inside each group."""

    state_class = OneGradientState

    num_clusters: Count = 2
    linkage: Literal["average", "single", "complete"] = "average"

    def initial_state(self, layout, initial):
        none = np.zeros((0, layout.dim), dtype=np.float32)
        return OneGradientState(initial, initial[None, :], none, {})

    def plan(self, state, round_, clients):
        probe = one_model(state.initial, procedure=FIRST_GRADIENT)
        models = [one_model(center) for center in state.centers]
        return {c: models[state.assignment[c]] if c in state.assignment else probe for c in clients}

    def plan_evaluate(self, state, round_, clients):
        return {c: one_model(state.centers[state.assignment.get(c, 0)]) for c in clients}

    def update(self, state, round_, replies):
        known = [client in state.assignment for client in replies.clients]
        trained, probed = replies.only(known), replies.only(not k for k in known)
        usable = np.linalg.norm(probed.W, axis=1) > 0
        refused = {c: "its gradient is 0" for c, fits in zip(probed.clients, usable) if not fits}
        if len(trained):
            labels = [state.assignment[client] for client in trained.clients]
            means = self.aggregation.cluster_means(
                trained.W, labels, len(state.centers), trained.num_examples, state.centers
            )
            state = replace(state, centers=means)
        if usable.any():
            state = self._grouped(state, probed.only(usable))
        return Outcome(state, refused)

    def _grouped(self, state, probed):
        if not state.assignment:
            k = min(self.num_clusters, len(probed))
            distances = 1 - cosine_similarity(probed.W)
            labels = hierarchical_clusters(distances, linkage=self.linkage, num_clusters=k)
            unit = probed.W / np.linalg.norm(probed.W, axis=1, keepdims=True)
            centers = np.tile(state.initial, (k, 1))
            state = replace(state, centers=centers, directions=self.aggregation.cluster_means(unit, labels, k))
        else:  # a newcomer joins the group that its gradient points to
            labels = cosine_to(probed.W, state.directions).argmax(axis=1)
        return replace(state, assignment=state.assignment | dict(zip(probed.clients, labels.tolist())))

    def record(self, state):
        members = np.bincount(list(state.assignment.values()), minlength=len(state.centers))
        return {"members": members.tolist()}
