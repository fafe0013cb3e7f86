"""What the methods share that cluster their clients once: FL+HC, FedGroup, robust federated learning; CGPFL's start.

Clients train one common model, the *anchor*; what they made of it is gathered, and clustered; from then on every
cluster aggregates for itself. A client that comes later trains the anchor first, and joins the cluster whose clients'
updates of the anchor its own is most like.

The papers cluster all clients at once. Where only some are asked in a round, the anchor stays as it is while replies
are gathered over several rounds, a fixed number of them, so that nobody waits for a device that is gone.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import Instruction, Scalar
from bouquet.strategies.base.groups import Groups
from bouquet.strategies.base.method import one_model
from bouquet.strategies.base.replies import FirstModels, Matrix, Replies
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.mathematics.aggregation import Assignment, mean_of_centers
from bouquet.strategies.mathematics.similarity import cosine_to


@dataclass(frozen=True)
class OneShotState:
    """All that survives a round."""

    centers: Matrix  # (K, d); one row until the clients are clustered
    anchor: Vector  # (d,): the common model that the clients trained when they were clustered
    assignment: dict[str, int] = field(default_factory=dict)  # client → cluster
    directions: Matrix | None = None  # (K, d): where the clients of each cluster moved the anchor; None before
    gathered: dict[str, Vector] = field(default_factory=dict)  # client → what it made of the anchor
    examples: dict[str, int] = field(default_factory=dict)  # training samples of those clients
    gathering: int = 0  # rounds of gathering so far
    groups: Groups = field(default_factory=Groups)  # of a method that finds K
    last: dict[str, Any] = field(default_factory=dict)  # what `record` tells


@dataclass(eq=False, repr=False, kw_only=True)
class OneShotClustering(MethodStrategy[OneShotState]):
    """FedAvg for some rounds, one clustering, FedAvg inside each cluster. Subclasses say how to cluster."""

    state_class = OneShotState
    takes_late_replies = True
    clusters_chosen_on = "uploaded updates"

    # --- what a method says ----------------------------------------------------------------------------------

    @abstractmethod
    def find_clusters(self, updates: Matrix) -> tuple[Assignment, dict[str, Any]]:
        """The clusters (n,), from 0 on, of clients with these updates (n, d) of the anchor; and what to record of it.

        The updates are those of the parameters, 0 elsewhere. No cluster is empty.
        """

    @property
    def warmup_rounds(self) -> int:
        """Rounds of one common model before the anchor."""
        return 0

    @property
    def fewest(self) -> int:
        """Clients without whom there is no clustering: as many as clusters."""
        return self.expected_clusters

    @property
    def enough(self) -> float:
        """Clients with whom gathering ends early."""
        return math.inf

    def place(self, updates: Matrix, directions: Matrix) -> Assignment:
        """The cluster of each newcomer, from its update of the anchor (n, d) and the clusters' (K, d)."""
        return np.argmax(cosine_to(updates, directions), axis=1)

    def direction(self, updates: Matrix) -> Vector:
        """Where the clients of a cluster moved the anchor (d,), from their updates (m, d)."""
        return self.aggregation.center(updates)[0]

    def aggregate(self, W: Matrix, labels: Assignment, examples: ArrayLike, previous: Matrix) -> Matrix:
        """The models of the clusters (K, d) from those of their clients (n, d); who has none keeps ``previous``."""
        return self.aggregation.cluster_means(W, labels, len(previous), examples, previous)

    def training(self, state: OneShotState) -> Mapping[str, Scalar]:
        """Options of the local training of the anchor."""
        return {}

    # --- the contract ----------------------------------------------------------------------------------------

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> OneShotState:
        """The common initial model."""
        return OneShotState(initial[None, :].copy(), initial.copy())

    def plan(self, state: OneShotState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """Its cluster's model to each client; to one without a cluster the anchor."""
        anchor = one_model(state.anchor, config=self.training(state) if self._anchored(state, round_) else {})
        clusters = state.assignment
        return {c: one_model(state.centers[clusters[c]]) if c in clusters else anchor for c in clients}

    def plan_evaluate(self, state: OneShotState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """Its cluster's model to each client; to one without a cluster the mean of all."""
        mean = one_model(mean_of_centers(state.centers))
        clusters = state.assignment
        return {c: one_model(state.centers[clusters[c]]) if c in clusters else mean for c in clients}

    def update(self, state: OneShotState, round_: int, replies: Replies) -> OneShotState:
        """A common round, a round of gathering, or one in which each cluster aggregates for itself."""
        if state.directions is None:
            return self._gather(state, replies) if self._anchored(state, round_) else self._common(state, replies)
        new = [client not in state.assignment for client in replies.clients]
        newcomers, members = replies.only(new), replies.only([not is_new for is_new in new])
        if len(members):
            labels = np.array([state.assignment[client] for client in members.clients])
            state = replace(state, centers=self.aggregate(members.W, labels, members.num_examples, state.centers))
        if not len(newcomers):
            return state
        assert state.directions is not None
        placed = self.place(newcomers.updates, state.directions)
        return replace(
            state, assignment={**state.assignment, **dict(zip(newcomers.clients, placed.tolist(), strict=True))}
        )

    def wants_late(self, state: OneShotState) -> bool:
        """Not before the clustering, which compares what clients make of one anchor."""
        return state.directions is not None

    def record(self, state: OneShotState) -> dict[str, Any]:
        """How many clients' updates are gathered, and of how the clustering went."""
        return {"gathered": len(state.gathered), **state.last}

    # --- the clustering --------------------------------------------------------------------------------------

    def _anchored(self, state: OneShotState, round_: int) -> bool:
        """Whether the model that a client without a cluster trains in this round is the anchor."""
        return round_ > self.warmup_rounds or state.gathering > 0 or state.directions is not None

    def _common(self, state: OneShotState, replies: Replies) -> OneShotState:
        everybody = np.zeros(len(replies), dtype=np.int64)
        centers = self.aggregate(replies.W, everybody, replies.num_examples, state.centers)
        return replace(state, centers=centers, anchor=centers[0].copy())

    def _gather(self, state: OneShotState, replies: Replies) -> OneShotState:
        first = FirstModels(state.gathered, state.examples).add(
            replies.clients, replies.W, replies.num_examples.tolist()
        )
        state = replace(state, gathered=first.models, examples=first.examples, gathering=state.gathering + 1)
        if state.gathering < self._rounds() and len(first.clients) < self.enough:
            return state
        if len(first.clients) < self.fewest:
            return self._go_on(state, first)
        return self._cluster(state, first, replies.layout)

    def _go_on(self, state: OneShotState, first: FirstModels) -> OneShotState:
        """Too few clients for a clustering: their mean is the next anchor, from which gathering begins again."""
        everybody = np.zeros(len(first.clients), dtype=np.int64)
        centers = self.aggregate(first.W, everybody, [*first.examples.values()], state.centers)
        return replace(state, centers=centers, anchor=centers[0].copy(), gathered={}, examples={}, gathering=0)

    def _cluster(self, state: OneShotState, first: FirstModels, layout: ParameterLayout) -> OneShotState:
        W = first.W
        updates = np.where(layout.parameter_columns, W - state.anchor, np.float32(0))
        labels, facts = self.find_clusters(updates)
        number = int(labels.max()) + 1
        previous = np.tile(state.anchor, (number, 1))
        return OneShotState(
            centers=self.aggregate(W, labels, [*first.examples.values()], previous),
            anchor=state.anchor,
            assignment=dict(zip(first.clients, labels.tolist(), strict=True)),
            directions=np.stack([self.direction(updates[labels == k]) for k in range(number)]),
            gathering=state.gathering,
            last=facts,
        )

    def _rounds(self) -> int:
        return 1 if self.fraction_train >= 1 else math.ceil(2 / self.fraction_train)
