"""FeSEM: multi-center federated learning by stochastic expectation maximisation.

Long, Xie, Shen, Zhou, Wang, Jiang: Multi-Center Federated Learning: Clients Clustering for Better
Personalization. World Wide Web 26, 2023. https://arxiv.org/abs/2108.08647

Equations and sections are the paper's. Where it is silent: ``proximal_weight`` (its λ/m) is 0.001; the first
centers come from k-means over the clients' models after ``warmup_rounds`` rounds from one common model; matched
averaging (FeSEM-MA, section 5.1) keeps the width of every layer, so that a center is a model of the same
architecture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bouquet.common import protocol
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import ARRAYS, Instruction, Proximal
from bouquet.common.protocol.offers import TERMS, TRAINING
from bouquet.strategies.base.method import Similarity, count_moved, one_model
from bouquet.strategies.base.options import Weight
from bouquet.strategies.base.replies import Matrix, Replies
from bouquet.strategies.fesem.first_clusters import FirstClusters
from bouquet.strategies.fesem.num_clusters import VALIDATION_FRACTION
from bouquet.strategies.fesem.state import FeSEMState
from bouquet.strategies.fesem.steps import expectation_step, matched_to, mean_distance
from bouquet.strategies.mathematics.aggregation import Assignment, mean_of_centers
from bouquet.strategies.mathematics.similarity import euclidean_distances


@dataclass(eq=False, repr=False)
class FeSEM(FirstClusters):
    """Multi-center aggregation: every client belongs to the nearest of K centers, which are means of their clients.

    Parameters
    ----------
    num_clusters : int | "auto", default 4
        K. ``"auto"`` chooses it, by ``selection``, among ``candidates`` (section 5.2).
    proximal_weight : float, default 0.001
        λ/m of Eq. 7 without the α_i before the loss; the device minimises its loss + λ/m · ‖W − C‖². Of devices with
        equally many samples (α_i = 1/m) it is then the paper's λ.
    weighted_loss : bool, default False
        Eq. 7 as printed, with α_i = n_i / Σ n before the loss. It has the minimum of the loss + (λ/m) / α_i · ‖W − C‖²,
        which is what the device is given, so that its step does not shrink with the number of clients. From the second
        round on; a client that is not known yet counts as the mean one. Without it λ/m is the same for all.
    weighting : {"uniform", "examples"}, default "uniform"
        ``"uniform"`` is Eq. 9; ``"examples"`` weighs clients by their number of samples.
    matching : bool, default False
        Align hidden units before averaging (FeSEM-MA, section 5.1).
    warmup_rounds : int, default 1
        Rounds of one common model before the first clustering.
    selection : {"silhouette", "elbow", "accuracy"}, default "silhouette"
        How ``"auto"`` chooses K: the ``"silhouette"`` or the ``"elbow"`` of the intra-cluster distance over the
        clients' models after three common rounds, or the ``"accuracy"`` on training samples held out on the devices,
        after three rounds with each candidate.
    candidates : tuple of int, default (2, 3, 4, 5, 6)
        The K that ``"auto"`` chooses among.
    **sampling
        See `bouquet.strategies.base.sampling.Sampling`.
    """

    takes_late_replies = True
    clusters_chosen_on = "uploaded models"

    proximal_weight: Weight = 0.001
    weighted_loss: bool = False

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> FeSEMState:
        """One center: the common initial model."""
        return FeSEMState(
            centers=initial[None, :].copy(),
            assignment={},
            num_clusters=None if self.num_clusters == "auto" else self.num_clusters,
        )

    def plan(self, state: FeSEMState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """Send C_{r_i} to client i (Algorithm 1); one without a cluster yet gets the mean of the centers.

        Eq. 7 has no ½ before its proximal term, the wire's term has one: hence the factor 2.
        """
        common = state.centers if state.origin is None else state.origin[None, :]
        newcomer = mean_of_centers(common)
        held_out = self.chooses_by_accuracy(state)
        config = protocol.holding_out(VALIDATION_FRACTION) if held_out else {}
        models = {client: self._model_of(state, client, newcomer) for client in clients}
        return {c: one_model(m, proximal=self._proximal(state, c), config=config) for c, m in models.items()}

    def plan_evaluate(self, state: FeSEMState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """What a client would train from; before the first clustering, the mean of what is gathered for it."""
        return self.plan(replace(state, origin=None), round_ + 1, clients)

    def update(self, state: FeSEMState, round_: int, replies: Replies) -> FeSEMState:
        """E-step (Eq. 8) and M-step (Eq. 9); before the first of them the first clusters, between them a K's trial."""
        if self.weighted_loss:
            sizes = dict(zip(replies.clients, replies.num_examples.tolist(), strict=True))
            state = replace(state, sizes={**state.sizes, **sizes})
        if not state.assignment:
            return self.first_round(state, round_, replies)
        aligned = self.aligned(replies, state.centers)  # (K, n, d), for matched averaging
        nearest = expectation_step(replies.layout, replies.W, aligned, state.centers)  # Eq. 8
        rows = matched_to(replies.W, aligned, nearest)
        centers = self._maximization_step(rows, nearest, replies, state.centers)  # Eq. 9
        assignment = dict(zip(replies.clients, nearest.tolist(), strict=True))
        after = replace(
            state,
            centers=centers,
            assignment={**state.assignment, **assignment},
            moved=count_moved(state.assignment, assignment),
            intra_distance=mean_distance(replies.layout, rows, centers, nearest),
        )
        return after if after.trial is None else self.go_on_trying(after, after.trial, replies)

    def needs_scores(self) -> str:
        """For K by accuracy."""
        if self.num_clusters != "auto" or self.selection != "accuracy":
            return ""
        return "selection = 'accuracy' chooses K by accuracies that the devices report; take 'silhouette'."

    def needs_classes(self) -> str:
        """For K by accuracy."""
        return self.needs_scores()

    def device_needs(self) -> Mapping[str, str]:
        """For the proximal term, and for K by accuracy."""
        needs = {}
        if self.proximal_weight:
            needs[TERMS] = f"proximal_weight = {self.proximal_weight:g} (Eq. 7); with 0 it has none."
        if self.num_clusters == "auto" and self.selection == "accuracy":
            needs[TRAINING] = "selection = 'accuracy' has devices hold samples out; take 'silhouette'."
        return needs

    def record(self, state: FeSEMState) -> dict[str, Any]:
        """How many clients the E-step moved, the distance of Eq. 6, and the scores of the candidates for K."""
        return {
            "moved": state.moved,
            "intra_distance": state.intra_distance,
            "num_clusters": state.num_clusters,
            "selection": state.trial.scores if state.trial else state.selection,
        }

    def client_similarity(self, state: FeSEMState, replies: Replies | None) -> Similarity | None:
        """Euclidean distance between the clients' models of the last round."""
        if not replies:
            return None
        distances = euclidean_distances(replies.layout.parameters_of(replies.W))
        return Similarity("Euclidean distance between client models", replies.clients, distances)

    def _maximization_step(self, W: Matrix, nearest: Assignment, replies: Replies, centers: Matrix) -> Matrix:
        """Eq. 9: each center (K, d) becomes the mean of its clients' models W (n × d); one without clients stays."""
        weights = replies.num_examples if self.weighting == "examples" else None
        return self.aggregation.cluster_means(W, nearest, len(centers), weights, centers)

    # --- details ---------------------------------------------------------------------------------------------

    def _proximal(self, state: FeSEMState, client: str) -> tuple[Proximal, ...]:
        """λ/m of Eq. 7, over the client's α_i where that is before its loss."""
        weight = 2 * self.proximal_weight
        if sizes := [*state.sizes.values()]:
            weight *= sum(sizes) / state.sizes.get(client, sum(sizes) / len(sizes))
        return (Proximal(ARRAYS, weight),) if weight else ()

    def _model_of(self, state: FeSEMState, client: str, newcomer: Vector) -> Vector:
        cluster = state.assignment.get(client)
        return newcomer if cluster is None else state.centers[cluster]
