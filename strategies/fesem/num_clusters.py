"""How FeSEM chooses K (section 5.2): by the models after three common rounds, or by rounds with each candidate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.strategies.base.replies import Matrix
from bouquet.strategies.mathematics.clustering import ClusterNumber, choose_num_clusters, elbow, kmeans

SELECTION_CLIENTS = 100  # at most so many sampled clients decide on K
SELECTION_ROUNDS = 3  # communication rounds a candidate K is tried for
VALIDATION_FRACTION = 0.2

Selection = Literal["silhouette", "elbow", "accuracy"]


@dataclass(frozen=True)
class Trial:
    """The choice of K by accuracy: the candidate that is being tried, its rounds so far, and the scores so far."""

    candidates: list[int]
    index: int = 0
    rounds: int = 0
    scores: dict[str, float] = field(default_factory=dict)

    def after_round(self, accuracy: NDArray[np.float64]) -> Trial:
        """One round on; after a candidate's last, its mean ``accuracy`` (n,) is noted, and the next one is up.

        The accuracy is that of the centers a candidate sent in its last round, on samples no device trained on.
        """
        if self.rounds + 1 < SELECTION_ROUNDS:
            return replace(self, rounds=self.rounds + 1)
        score = float(np.nanmean(accuracy)) if np.isfinite(accuracy).any() else 0.0
        scores = {**self.scores, str(self.candidates[self.index]): score}
        return replace(self, index=self.index + 1, rounds=0, scores=scores)

    @property
    def best(self) -> int | None:
        """K, once all candidates were tried; of equals, the fewest clusters."""
        if self.index < len(self.candidates):
            return None
        return int(max(self.scores, key=lambda k: (self.scores[k], -int(k))))


def drawn_for_choice(num_clients: int, seed: int) -> NDArray[np.int64]:
    """The clients that decide on K, as rows in order."""
    return np.sort(np.random.default_rng(seed).permutation(num_clients)[:SELECTION_CLIENTS])


def possible(candidates: Iterable[int], num_clients: int) -> list[int]:
    """The candidates, in order, for which there are enough clients; one cluster where there is none."""
    return sorted({k for k in candidates if k <= num_clients}) or [1]


def choose_by_models(
    rule: Selection,
    models: Matrix,
    origin: Vector,
    layout: ParameterLayout,
    candidates: list[int],
    seed: int,
) -> ClusterNumber:
    """K by the ``"elbow"`` or the ``"silhouette"`` of models (n × d) that were trained from one ``origin`` (d,)."""
    compared = layout.parameters_of(models)
    if rule == "elbow":
        scores = {k: kmeans(compared, k, seed).inertia for k in candidates}
        return ClusterNumber(elbow(scores), scores)
    # Directions of the updates: on the models themselves the silhouette is far less clear.
    return choose_num_clusters(compared - layout.parameters_of(origin), candidates, seed, unit_length=True)
