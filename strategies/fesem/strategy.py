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
from typing import Annotated, Any, Literal

import numpy as np

from bouquet.common import protocol
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import ARRAYS, Instruction, Proximal
from bouquet.common.protocol.offers import TERMS, TRAINING
from bouquet.strategies.base.first_models import FirstModels
from bouquet.strategies.base.method import Similarity, count_moved, one_model
from bouquet.strategies.base.options import Allowed, Count, Weight, Weighting, check_options, is_count
from bouquet.strategies.base.replies import Matrix, Replies
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.fesem.matching import match_rows
from bouquet.strategies.fesem.num_clusters import (
    SELECTION_ROUNDS,
    VALIDATION_FRACTION,
    Selection,
    Trial,
    choose_by_models,
    drawn_for_choice,
    possible,
)
from bouquet.strategies.fesem.state import FeSEMState
from bouquet.strategies.fesem.steps import expectation_step, matched_to, mean_distance
from bouquet.strategies.mathematics.aggregation import Assignment, mean_of_centers
from bouquet.strategies.mathematics.clustering import kmeans
from bouquet.strategies.mathematics.similarity import euclidean_distances

NumClusters = Annotated[
    int | Literal["auto"],
    Allowed("a whole number from 1, or 'auto'", lambda value: value == "auto" or is_count(value)),
]


@dataclass(eq=False, repr=False)
class FeSEM(MethodStrategy[FeSEMState]):
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

    state_class = FeSEMState
    takes_late_replies = True
    clusters_chosen_on = "uploaded models"

    num_clusters: NumClusters = 4
    proximal_weight: Weight = 0.001
    weighted_loss: bool = False
    weighting: Weighting = "uniform"
    matching: bool = False
    warmup_rounds: Count = 1
    selection: Selection = "silhouette"
    candidates: tuple[int, ...] = (2, 3, 4, 5, 6)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_clusters == "auto":
            usable = bool(self.candidates) and all(map(is_count, self.candidates))
            check_options(("candidates", self.candidates, "whole numbers from 1, at least one", usable))
            self.warmup_rounds = max(self.warmup_rounds, SELECTION_ROUNDS)

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
        held_out = self._chooses_by_accuracy(state)
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
            return self._start(state, round_, replies)
        aligned = self._aligned(replies, state.centers)  # (K, n, d), for matched averaging
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
        return after if after.trial is None else self._go_on_trying(after, after.trial, replies)

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

    def wants_late(self, state: FeSEMState) -> bool:
        """Not before the first clustering, nor while candidates are tried: those models come from one common start."""
        return bool(state.assignment) and state.trial is None

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

    # --- the first clusters ----------------------------------------------------------------------------------

    def _start(self, state: FeSEMState, round_: int, replies: Replies) -> FeSEMState:
        """A round of the common model, and after the last of them the first clustering.

        What is clustered are models that were trained from the same common model: where it was another one, they differ
        by that, too. So while they are too few, that model is sent again and they are gathered, until a round brings
        nobody new; then the common model goes on, if they are still fewer than K.
        """
        least, wanted = (1, max(self.candidates)) if state.num_clusters is None else [state.num_clusters] * 2
        before = state
        state = self._gather(state, replies)
        # Of fewer clients than clusters, those that are known already bring nobody new.
        earlier = before.gathered if len(state.seen) >= least else before.seen
        if round_ >= self.warmup_rounds and len(state.gathered) < wanted and set(replies.clients) - set(earlier):
            return state
        first = FirstModels(state.gathered, state.examples)
        origin = state.centers[0] if state.origin is None else state.origin
        state = replace(state, origin=None, gathered={}, examples={})
        if round_ < self.warmup_rounds or len(first.clients) < least:
            return state
        counts = first.examples if self.weighting == "examples" else {}
        state = replace(state, seen=[], examples=counts)
        return self._first_clusters(state, replies.layout, first.W, first.clients, origin)

    def _gather(self, state: FeSEMState, replies: Replies) -> FeSEMState:
        """Add a round's models to those that were trained from the same common model; their mean is the center."""
        origin = state.centers[0] if state.origin is None else state.origin
        rows = matched_to(replies.W, self._aligned(replies, origin[None, :]), np.zeros(len(replies), dtype=np.int64))
        first = FirstModels(state.gathered, state.examples).add(replies.clients, rows, replies.num_examples.tolist())
        weights = [*first.examples.values()] if self.weighting == "examples" else None
        centers = self.aggregation.cluster_means(first.W, [0] * len(first.clients), 1, weights, origin[None, :])
        seen = sorted({*state.seen, *replies.clients})
        return replace(state, centers=centers, origin=origin, gathered=first.models, examples=first.examples, seen=seen)

    def _first_clusters(
        self, state: FeSEMState, layout: ParameterLayout, rows: Matrix, clients: list[str], origin: Vector
    ) -> FeSEMState:
        """K-means over models (n × d) from one ``origin`` (d,), and before it the choice of K."""
        if state.num_clusters is not None:
            return self._cluster(state, layout, rows, clients, state.num_clusters)
        allowed, chosen = possible(self.candidates, len(rows)), drawn_for_choice(len(rows), self.seed)
        if self.selection == "accuracy":
            trial = Trial(candidates=allowed)
            self.warn(f"K is chosen after {SELECTION_ROUNDS * len(allowed)} more rounds, of trial clusters.")
            state = replace(state, trial=trial, start_models=rows[chosen], start_clients=[clients[i] for i in chosen])
            return self._cluster(state, layout, rows[chosen], state.start_clients, allowed[0])
        best, scores = choose_by_models(self.selection, rows[chosen], origin, layout, allowed, self.seed)
        state = replace(state, num_clusters=best, selection={str(k): float(score) for k, score in scores.items()})
        return self._cluster(state, layout, rows, clients, best)

    def _cluster(
        self, state: FeSEMState, layout: ParameterLayout, rows: Matrix, clients: list[str], num_clusters: int
    ) -> FeSEMState:
        """K-means over models (n × d), all of them alike; then the M-step (Eq. 9), with its weights."""
        labels, means, _ = kmeans(rows, num_clusters, self.seed, compared=layout.parameters_of(rows))
        weights = [state.examples[client] for client in clients] if self.weighting == "examples" else None
        centers = self.aggregation.cluster_means(rows, labels, num_clusters, weights, previous=means)
        return replace(
            state,
            centers=centers,
            assignment=dict(zip(clients, labels.tolist(), strict=True)),
            examples=state.examples if state.trial else {},
            moved=0,
            intra_distance=mean_distance(layout, rows, centers, labels),
        )

    def _go_on_trying(self, state: FeSEMState, trial: Trial, replies: Replies) -> FeSEMState:
        """Section 5.2: run each candidate K for three rounds, keep the best, and cluster again with it."""
        trial = trial.after_round(replies.metric(protocol.VALIDATION_ACCURACY))
        if trial.rounds:
            return replace(state, trial=trial)
        models, clients, best = state.start_models, state.start_clients, trial.best
        assert models is not None
        if best is None:
            state = replace(state, trial=trial)
            return self._cluster(state, replies.layout, models, clients, trial.candidates[trial.index])
        state = replace(
            state, num_clusters=best, selection=trial.scores, trial=None, start_models=None, start_clients=[]
        )
        return self._cluster(state, replies.layout, models, clients, best)

    # --- details ---------------------------------------------------------------------------------------------

    def _chooses_by_accuracy(self, state: FeSEMState) -> bool:
        return state.num_clusters is None and self.selection == "accuracy"

    def _proximal(self, state: FeSEMState, client: str) -> tuple[Proximal, ...]:
        """λ/m of Eq. 7, over the client's α_i where that is before its loss."""
        weight = 2 * self.proximal_weight
        if sizes := [*state.sizes.values()]:
            weight *= sum(sizes) / state.sizes.get(client, sum(sizes) / len(sizes))
        return (Proximal(ARRAYS, weight),) if weight else ()

    def _model_of(self, state: FeSEMState, client: str, newcomer: Vector) -> Vector:
        cluster = state.assignment.get(client)
        return newcomer if cluster is None else state.centers[cluster]

    def _aligned(self, replies: Replies, centers: Matrix) -> Matrix | None:
        """The clients' models matched to each center, (K, n, d), for matched averaging."""
        if not self.matching:
            return None
        return np.stack([match_rows(center, replies.W, replies.layout) for center in centers])
