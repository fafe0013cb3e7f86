"""CFL: clustered federated learning, which divides a cluster in two where its clients pull a settled model apart.

Sattler, Müller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy
Constraints. IEEE Transactions on Neural Networks and Learning Systems 32, 2021. https://arxiv.org/abs/1910.01991

A cluster c of clients with updates Δθ_i from its model θ_c is divided when

- it is settled: ‖Σ_i D_i Δθ_i / Σ_i D_i‖ < ε₁, so that nothing is left to learn for all of them together;
- its clients are not: max_i ‖Δθ_i‖ > ε₂;
- and the best division keeps a gap: √((1 − α_cross) / 2) > γ_max.

The best division has the least α_cross, the greatest cosine of two updates of different sides (Algorithm 1); both sides
go on from θ_c, and may be divided again (Algorithm 3). What the divisions leave behind is the parameter tree, down
which a newcomer is led: it trains θ_c of the root, goes to the side whose updates its own resembles, and so on
(Algorithm 4).

Where this differs from the paper:

- ε₁ and ε₂ belong to model, data and learning rate, and are chosen by eye. Here they are a quarter and three quarters
  of the greatest norm of a mean update that the cluster, or what it came from, has had: what the updates then still
  have in common hardly changes their cosines, and a client pulls nearly as hard as all together ever did
  (docs/decisions.md).
- The paper asks every client in every round. Where only some are asked, an update counts for ``memory`` rounds, and a
  cluster that a client has just joined is not divided in that round. A client without an update that counts when its
  cluster is divided is led down the tree from there.
- A side keeps one vector in the tree, the sum of its updates' directions, and not every update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import Instruction
from bouquet.strategies.base.method import one_model
from bouquet.strategies.base.replies import Matrix, Replies
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.mathematics.aggregation import Assignment, mean_of_centers
from bouquet.strategies.mathematics.clustering import hierarchical_clusters
from bouquet.strategies.mathematics.similarity import Distances, cosine_similarity, cosine_to


@dataclass(frozen=True)
class Split:
    """A division of the parameter tree: what each of its two sides has become, a cluster or divided again."""

    clusters: list[int]  # of the two sides, as long as they are not divided themselves
    splits: list[int | None]  # the division of each side, where there is one


@dataclass(frozen=True)
class CFLState:
    """All that survives a round."""

    centers: Matrix  # (K, d): θ_c
    # client → cluster; without those that are being led down the tree
    assignment: dict[str, int] = field(default_factory=dict)
    updates: dict[str, Vector] = field(default_factory=dict)  # last update of clients that were not asked since
    ages: dict[str, int] = field(default_factory=dict)  # rounds since then
    examples: dict[str, int] = field(default_factory=dict)  # training samples of each client
    largest: list[float] = field(default_factory=lambda: [0.0])  # of each cluster, the greatest ‖mean update‖ so far
    splits: list[Split] = field(default_factory=list)  # the parameter tree
    models: Matrix | None = None  # (S, d): θ_c of each division
    directions: Matrix | None = None  # (2 S, d): of its two sides, one after the other
    descending: dict[str, int] = field(default_factory=dict)  # client that looks for its cluster → division
    last: list[dict[str, Any]] = field(default_factory=list)  # what `record` tells of each cluster


class Bipartition(NamedTuple):
    """``sides`` (n,) of 0 and 1, and the greatest similarity of two clients of different sides."""

    sides: Assignment
    cross_similarity: float


@dataclass(eq=False, repr=False)
class CFL(MethodStrategy[CFLState]):
    """FedAvg in each cluster, of which one that has settled while its clients still pull at it is divided in two."""

    state_class = CFLState
    clusters_chosen_on = "uploaded updates"

    # ε₁ and ε₂, as parts of the greatest norm of a mean update that the cluster has had so far.
    settled: ClassVar[float] = 0.25
    in_conflict: ClassVar[float] = 0.75
    # γ_max lets a cluster of k equally large groups be divided for every k, since their updates then have a cosine of
    # −1 / (k − 1), and hardly one whose updates have nothing in common (0).
    min_separation: ClassVar[float] = 0.7
    memory: ClassVar[int] = 5  # rounds for which an update counts, where not all clients are asked

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> CFLState:
        """All clients in one cluster."""
        return CFLState(initial[None, :].copy())

    def plan(self, state: CFLState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """Its cluster's model to each client; to one that looks for its cluster, the model of the next division."""
        return {client: one_model(self._model_of(state, client)) for client in clients}

    def plan_evaluate(self, state: CFLState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """Its cluster's model to each client, and the mean of all to one that has none yet."""
        mean = mean_of_centers(state.centers)
        known = state.assignment
        return {client: one_model(state.centers[known[client]] if client in known else mean) for client in clients}

    def update(self, state: CFLState, round_: int, replies: Replies) -> CFLState:
        """Algorithm 3: divide the clusters that have settled, then FedAvg in each cluster."""
        replies, state = self._lead_down(state, replies)
        if not len(replies):
            return state
        newcomers = {client for client in replies.clients if client not in state.assignment}
        state = replace(
            state,
            assignment={**dict.fromkeys(newcomers, 0), **state.assignment},
            examples={**state.examples, **dict(zip(replies.clients, replies.num_examples.tolist(), strict=True))},
        )
        updates = self._recent(state, replies)
        for cluster in range(len(state.centers)):
            members = sorted(client for client in updates if state.assignment[client] == cluster)
            joined = any(state.assignment[client] == cluster for client in newcomers)
            state = self._divide(state, cluster, members, updates, may=not joined)
        labels = [state.assignment[client] for client in replies.clients]
        centers = self.aggregation.cluster_means(
            replies.W, labels, len(state.centers), replies.num_examples, state.centers
        )
        return self._remember(replace(state, centers=centers), replies, updates)

    def record(self, state: CFLState) -> dict[str, Any]:
        """Of each cluster: ‖mean update‖ beside ε₁, greatest ‖update‖ beside ε₂, and the gap of the best division."""
        return {"num_clusters": len(state.centers), "descending": len(state.descending), "settling": state.last}

    # --- the division of a cluster ---------------------------------------------------------------------------

    def _divide(
        self, state: CFLState, cluster: int, members: list[str], updates: Mapping[str, Vector], may: bool
    ) -> CFLState:
        """The state after one cluster was looked at; its sides take the cluster's number and the next free one."""
        if not members:
            return replace(state, last=[*state.last[:cluster], {}])
        rows = np.stack([updates[client] for client in members])
        weights = [state.examples[client] for client in members]
        mean = float(np.linalg.norm(self.aggregation.center(rows, weights)))
        greatest = float(np.linalg.norm(rows, axis=1).max())
        largest = [*state.largest]
        largest[cluster] = max(largest[cluster], mean)
        below, above = self.settled * largest[cluster], self.in_conflict * largest[cluster]
        seen: dict[str, Any] = {"mean_norm": mean, "below": below, "greatest_norm": greatest, "above": above}
        state = replace(state, largest=largest, last=[*state.last[:cluster], seen])
        if not (may and len(members) > 1 and mean < below and greatest > above):
            return state
        sides, cross_similarity = optimal_bipartition(cosine_similarity(rows))
        seen["separation"] = separation(cross_similarity)
        if seen["separation"] <= self.min_separation:
            return state
        return _split(state, cluster, members, rows, sides)

    def _recent(self, state: CFLState, replies: Replies) -> dict[str, Vector]:
        """The update that counts of each client: of this round, else of the last ``memory`` rounds."""
        now = dict(zip(replies.clients, replies.updates, strict=True))
        kept = {c: update for c, update in state.updates.items() if state.ages[c] < self.memory - 1}
        return {**{c: update for c, update in kept.items() if c in state.assignment}, **now}

    def _remember(self, state: CFLState, replies: Replies, updates: Mapping[str, Vector]) -> CFLState:
        """Keep what may be needed in the next rounds: nothing where every client of a cluster has replied."""
        replied = set(replies.clients)
        partial = {cluster for client, cluster in state.assignment.items() if client not in replied}
        kept = {c: u for c, u in updates.items() if state.assignment.get(c) in partial and self.memory > 1}
        ages = {c: 0 if c in replied else state.ages[c] + 1 for c in kept}
        return replace(state, updates=kept, ages=ages)

    # --- the parameter tree ----------------------------------------------------------------------------------

    def _model_of(self, state: CFLState, client: str) -> Vector:
        if client in state.assignment or state.models is None:
            return state.centers[state.assignment.get(client, 0)]
        model: Vector = state.models[state.descending.get(client, 0)]
        return model

    def _lead_down(self, state: CFLState, replies: Replies) -> tuple[Replies, CFLState]:
        """Algorithm 4, one division a round: those that look for their cluster go to the side that they resemble.

        Also the replies of all others; what a client made of an old model is no part of a mean.
        """
        if state.models is None or state.directions is None:
            return replies, state
        looking = [client not in state.assignment for client in replies.clients]
        newcomers = replies.only(looking)
        descending, assignment = dict(state.descending), dict(state.assignment)
        for client, update in zip(newcomers.clients, newcomers.updates, strict=True):
            node = descending.pop(client, 0)
            side = int(np.argmax(cosine_to(update[None, :], state.directions[2 * node : 2 * node + 2])))
            following = state.splits[node].splits[side]
            if following is None:
                assignment[client] = state.splits[node].clusters[side]
            else:
                descending[client] = following
        rest = replies.only([not look for look in looking])
        return rest, replace(state, descending=descending, assignment=assignment)


def optimal_bipartition(similarity: Distances) -> Bipartition:
    """The two sides of n clients whose greatest cross similarity max α_ij is the least, Algorithm 1.

    ``similarity`` is n × n. To join the most similar clients until two clusters are left is single linkage: any other
    division would part two that were joined, and they were joined by a similarity at least as great.
    """
    sides = hierarchical_clusters(1 - (similarity + similarity.T) / 2, linkage="single", num_clusters=2)
    return Bipartition(sides, float(similarity[np.ix_(sides == 0, sides == 1)].max()))


def separation(cross_similarity: float) -> float:
    """√((1 − α_cross) / 2), from 0 to 1: the division is right while clients' γ stay below it (Theorem 1)."""
    return float(np.sqrt((1 - cross_similarity) / 2))


def _split(state: CFLState, cluster: int, members: list[str], rows: Matrix, sides: NDArray[np.int64]) -> CFLState:
    """Divide a cluster: side 0 keeps its number. Members without an update that counts look for their side."""
    number, node = len(state.centers), len(state.splits)
    clusters = [cluster, number]
    sided = {client: clusters[side] for client, side in zip(members, sides.tolist(), strict=True)}
    lost = [c for c, own in state.assignment.items() if own == cluster and c not in sided]
    known = {client: own for client, own in state.assignment.items() if client not in lost}
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    directions = np.stack([unit[sides == side].sum(axis=0) for side in (0, 1)])
    # Whatever led to this cluster leads to its division now.
    splits = [
        Split(
            s.clusters, [node if n is None and c == cluster else n for c, n in zip(s.clusters, s.splits, strict=True)]
        )
        for s in state.splits
    ]
    center = state.centers[cluster][None, :]
    return replace(
        state,
        centers=np.concatenate([state.centers, center]),
        assignment={**known, **sided},
        largest=[*state.largest, state.largest[cluster]],
        splits=[*splits, Split(clusters, [None, None])],
        models=center if state.models is None else np.concatenate([state.models, center]),
        directions=directions if state.directions is None else np.concatenate([state.directions, directions]),
        descending={**state.descending, **dict.fromkeys(lost, node)},
    )
