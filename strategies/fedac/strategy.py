"""FedAC: personal models on the devices, held by a cluster's center and a global embedding, and a K that tunes itself.

Zhang, Chen, Lin, Chen, Zhao: FedAC: An Adaptive Clustered Federated Learning Framework for Heterogeneous Data, 2024.
https://arxiv.org/abs/2403.16460

Equations, sections and algorithms are the paper's. Where it is silent: λ = μ = 0.1, and the first clusters come from
k-means over the directions of the reduced models after the first round. Where this differs: K is tuned by the
silhouette, because the paper's ratio (``tuning="ratio"``) cannot tell too few from too many (`tuning.py`); and a
client's p numbers are computed by the server, because the map from models to numbers is as large as p models.

What leaves a device: its personal model, whole, in every round that it takes part in; and its metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import ARRAYS, ClientReply, Instruction, Payload, Proximal
from bouquet.common.protocol.capabilities import LAYERS, TERMS
from bouquet.strategies.base.method import count_moved
from bouquet.strategies.base.options import Count, Weight
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.fedac.similarity import SIMILARITIES, Measure, ModelSimilarity
from bouquet.strategies.fedac.state import (
    FedACState,
    Uploads,
    embedding_layers,
    make_map,
    only,
    remembered_centers,
    with_ratios,
)
from bouquet.strategies.fedac.tuning import RULES
from bouquet.strategies.mathematics.aggregation import mean_of_centers

GLOBAL_EMBEDDING = "global-embedding"  # record that holds φ_g
MOST_CLUSTERS = 15  # that a tuning makes
MAP_ROUNDS = 100  # until the map to p numbers is made anew; a client that it never saw brings that forward

TuningRule = Literal["silhouette", "ratio", "off"]
Tested = Literal["personal", "center"]


@dataclass(eq=False, repr=False)
class FedAC(MethodStrategy[FedACState]):
    """Each device keeps a model of its own, near its cluster's center and, in the embedding, near that of all (Eq. 3).

    Parameters
    ----------
    num_clusters : int, default 5
        K at the start.
    proximal_weight : float, default 0.1
        λ, the pull of a personal model towards the center of its cluster.
    embedding_weight : float, default 0.1
        μ, the pull of its embedding, all layers but the last one, towards the global one; 0 is without, and nothing of
        it is sent.
    similarity : {"low-rank", "l2"}, default "low-rank"
        By which a client finds its cluster: the cosine of reduced models (Eq. 4), or the models' L2 distance.
    pca_dim : int, default 10
        p, the numbers of a reduced model. With very few, clients that are all alike look clustered.
    tuning : {"silhouette", "ratio", "off"}, default "silhouette"
        Of K: by the ``"silhouette"``, by the paper's ``"ratio"`` (section 4.5, Algorithm 3), or ``"off"``.
    tested : {"personal", "center"}, default "personal"
        What a device tests after the last round, its ``"personal"`` model or the ``"center"`` of its cluster.
    """

    state_class = FedACState
    takes_late_replies = True
    clusters_chosen_on = "uploaded models, reduced to a few numbers"

    num_clusters: Count = 5
    proximal_weight: Weight = 0.1
    embedding_weight: Weight = 0.1
    similarity: Measure = "low-rank"
    pca_dim: Count = 10
    tuning: TuningRule = "silhouette"
    tested: Tested = "personal"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._rule = RULES.get(self.tuning)
        if self._rule and self.num_clusters > MOST_CLUSTERS:
            raise BouquetError(f"num_clusters = {self.num_clusters}: at most {MOST_CLUSTERS}, where it is tuned.")
        self.tested_model = "personal" if self.tested == "personal" else "received"

    @property
    def expected_clusters(self) -> int:
        """1 where K tunes itself."""
        return 1 if self._rule else super().expected_clusters

    # --- what the base asks for ----------------------------------------------------------------------------------

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> FedACState:
        """One center, the common initial model, and its embedding."""
        embedding = embedding_layers(layout)
        return FedACState(initial[None, :].copy(), only(initial, layout, embedding), list(embedding))

    def plan(self, state: FedACState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """ω_{c(i)} and φ_g to client i, which goes on from its own w_i, or from that center if it has none."""
        embedding = Payload(state.global_embedding, tuple(state.embedding))
        models = {GLOBAL_EMBEDDING: embedding} if self.embedding_weight else {}
        weights = {ARRAYS: self.proximal_weight, GLOBAL_EMBEDDING: self.embedding_weight}
        proximal = tuple(Proximal(name, weight) for name, weight in weights.items() if weight)
        sent = {client: _to_personal_model(state, client) for client in clients}
        return {c: replace(one, models={**one.models, **models}, proximal=proximal) for c, one in sent.items()}

    def plan_evaluate(self, state: FedACState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """Each client tests its own model; the center is for one that has none, or for all (``tested``)."""
        start = "received" if self.tested == "center" else "personal"
        return {client: replace(_to_personal_model(state, client, upload=()), start=start) for client in clients}

    def update(self, state: FedACState, round_: int, replies: Replies) -> FedACState:
        """Algorithm 1 after the uploads: the means, the E-step, and the tuning of K."""
        uploads = Uploads(list(replies.clients), replies.W, replies.layout)
        state = replace(state, round=round_, moved=0, silhouettes={}, changes=[])
        if uploads.clients:
            state = self._average_embedding(state, uploads)  # φ_g
            state = self._maximization_step(state, uploads)  # ω_k, Eq. 5
        state = self._reduce(state, uploads)  # Algorithm 2
        state = self._expectation_step(state, uploads) if state.assignment else self._start(state, uploads)  # Eq. 4
        if self._rule:
            state = self._tune(state, uploads)  # Algorithm 3
        return with_ratios(state)

    def wants_late(self, state: FedACState) -> bool:
        """Not before the first clustering, of models that come from one common start."""
        return bool(state.assignment)

    def trained_record(self, reply: ClientReply) -> str:
        """None: a device trains its own model, which counts as it is, however old its task."""
        return ""

    def device_needs(self) -> Mapping[str, str]:
        """For the personal models, and what holds them."""
        needs = {LAYERS: "each device goes on from its own model."}
        if self.proximal_weight or self.embedding_weight:
            needs[TERMS] = (
                "proximal_weight and embedding_weight hold it near its center and the global embedding (Eq. 3)."
            )
        return needs

    def record(self, state: FedACState) -> dict[str, Any]:
        """K, ρ of each cluster, the silhouette of each candidate for K, each split and merge with its figure."""
        return {
            "round": state.round,
            "num_clusters": len(state.centers),
            "ratios": state.ratios,
            "silhouettes": state.silhouettes,
            "changes": [vars(change) for change in state.changes],
            "moved": state.moved,
            "map_round": state.map_round,
            "map_dims": 0 if state.directions is None else len(state.directions),
        }

    # --- the steps of Algorithm 1 --------------------------------------------------------------------------------

    def _average_embedding(self, state: FedACState, uploads: Uploads) -> FedACState:
        """φ_g becomes the mean embedding over all clusters.

        By the server's rule, as the centers, so that a bad client does not move it far where that is no mean.
        """
        mean = self.aggregation.center(uploads.W)[0]
        return replace(state, global_embedding=only(mean, uploads.layout, state.embedding))

    def _maximization_step(self, state: FedACState, uploads: Uploads) -> FedACState:
        """Eq. 5: ω_k becomes the mean of cluster k's w_i.

        A cluster without a model in this round keeps its center. A newcomer is in no cluster before the E-step.
        """
        clusters = [state.assignment.get(client, -1 if state.assignment else 0) for client in uploads.clients]
        members = np.flatnonzero(np.array(clusters) >= 0)
        centers = self.aggregation.cluster_means(
            uploads.W[members], [clusters[i] for i in members], len(state.centers), previous=state.centers
        )
        return replace(state, centers=centers)

    def _reduce(self, state: FedACState, uploads: Uploads) -> FedACState:
        """Algorithm 2: note this round's p numbers, by a new map where it is old or never saw a client."""
        old = state.low_rank is None or state.round - state.map_round >= MAP_ROUNDS
        if self._uses_map and (old or not set(uploads.clients) <= set(state.seen)):
            state = make_map(state, uploads, self.pca_dim)
        if state.low_rank is None:
            return state
        reduced = dict(zip(uploads.clients, state.low_rank.reduce(uploads.W).tolist(), strict=True))
        return replace(state, reduced={**state.reduced, **reduced})

    def _start(self, state: FedACState, uploads: Uploads) -> FedACState:
        """The first clusters, by k-means over the directions of the reduced models, or for ``l2`` over the models.

        Of all clients that ever sent one: they are gathered while fewer than K take part in a round. With fewer than
        K + 1 of them, a K that is tuned starts lower, so that two of them share a cluster; one that is not waits, and
        so does everything until there are two different models.
        """
        state, clients = self._compared.first_clients(state, uploads)
        num_clusters = min(self.num_clusters, max(1, len(clients) - 1)) if self._rule else self.num_clusters
        if len(clients) < num_clusters or (self._uses_map and state.low_rank is None):
            return state
        assignment, centers = self._compared.first_clusters(state, uploads, num_clusters, self.seed, self.aggregation)
        return replace(state, centers=centers, assignment=assignment, gathered={})

    def _expectation_step(self, state: FedACState, uploads: Uploads) -> FedACState:
        """Eq. 4: each client that can be compared goes to its most similar center."""
        before, now = state.assignment, self._compared.assign(state, uploads)
        return replace(state, assignment={**before, **now}, moved=state.moved + count_moved(before, now))

    def _tune(self, state: FedACState, uploads: Uploads) -> FedACState:
        """Section 4.5: split and merge clusters, and take their centers from this round's models.

        A cluster without a model in this round gets the mean of its clients' as the map holds them. The paper's rule
        cuts clusters in two where they are, so after it comes one E-step; the silhouette groups all clients itself.
        """
        clients = [client for client in state.known if client in state.assignment]
        if state.low_rank is None or not clients:
            return state
        rows, reduced = state.rows(clients), state.low_rank.reduce(state.centers)
        tuned = RULES[self.tuning](rows, state.labels(clients), reduced, MOST_CLUSTERS, self.seed)
        state = replace(state, changes=tuned.changes, silhouettes={str(k): s for k, s in tuned.scores.items()})
        assignment = dict(zip(clients, tuned.labels.tolist(), strict=True))
        if assignment == state.assignment and tuned.num_clusters == len(state.centers):
            return state
        remembered = remembered_centers(state, clients, tuned.labels, tuned.num_clusters, self.aggregation)
        members = [assignment[client] for client in uploads.clients]
        centers = self.aggregation.cluster_means(uploads.W, members, tuned.num_clusters, previous=remembered)
        state = replace(state, assignment=assignment, centers=centers)
        return self._expectation_step(state, uploads) if self.tuning == "ratio" else state

    # --- details -------------------------------------------------------------------------------------------------

    @property
    def _compared(self) -> ModelSimilarity:
        return SIMILARITIES[self.similarity]

    @property
    def _uses_map(self) -> bool:
        return self._compared.needs_map or self._rule is not None


def _to_personal_model(state: FedACState, client: str, upload: tuple[str, ...] | None = None) -> Instruction:
    """Use your own model; here is your cluster's center, or the mean of them all, in case that there is none."""
    cluster = state.assignment.get(client)
    center = mean_of_centers(state.centers) if cluster is None else state.centers[cluster]
    return Instruction({ARRAYS: Payload(center)}, start="personal", newcomer=cluster is None, upload=upload)
