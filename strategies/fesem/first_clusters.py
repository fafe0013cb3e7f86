"""How FeSEM comes to its first clusters: rounds of one common model, the choice of K, and k-means (section 5.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from bouquet.common import protocol
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.strategies.base.first_models import FirstModels
from bouquet.strategies.base.options import Allowed, Count, Weighting, check_options, is_count
from bouquet.strategies.base.replies import Matrix, Replies
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.fesem.matching import match_rows
from bouquet.strategies.fesem.num_clusters import (
    SELECTION_ROUNDS,
    Selection,
    Trial,
    choose_by_models,
    drawn_for_choice,
    possible,
)
from bouquet.strategies.fesem.state import FeSEMState
from bouquet.strategies.fesem.steps import matched_to, mean_distance
from bouquet.strategies.mathematics.clustering import kmeans

NumClusters = Annotated[
    int | Literal["auto"],
    Allowed("a whole number from 1, or 'auto'", lambda value: value == "auto" or is_count(value)),
]


@dataclass(eq=False, repr=False)
class FirstClusters(MethodStrategy[FeSEMState]):
    """What `bouquet.strategies.fesem.strategy.FeSEM` does before its first step; its docstring has the options."""

    state_class = FeSEMState

    num_clusters: NumClusters = 4
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

    def wants_late(self, state: FeSEMState) -> bool:
        """Not before the first clustering, nor while candidates are tried: those models come from one common start."""
        return bool(state.assignment) and state.trial is None

    def first_round(self, state: FeSEMState, round_: int, replies: Replies) -> FeSEMState:
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
        rows = matched_to(replies.W, self.aligned(replies, origin[None, :]), np.zeros(len(replies), dtype=np.int64))
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

    def go_on_trying(self, state: FeSEMState, trial: Trial, replies: Replies) -> FeSEMState:
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

    def aligned(self, replies: Replies, centers: Matrix) -> Matrix | None:
        """The clients' models matched to each center, (K, n, d), for matched averaging."""
        if not self.matching:
            return None
        return np.stack([match_rows(center, replies.W, replies.layout) for center in centers])

    def chooses_by_accuracy(self, state: FeSEMState) -> bool:
        """Whether devices hold samples out, because candidates are judged by them."""
        return state.num_clusters is None and self.selection == "accuracy"
