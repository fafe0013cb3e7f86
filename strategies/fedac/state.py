"""What FedAC's server remembers: centers, clusters, and the reduced models with the map that they are under."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.strategies.base.replies import Matrix
from bouquet.strategies.fedac.reduction import LowRankMap, Reduced, Remembered, fit_map
from bouquet.strategies.fedac.tuning import Change, ratios
from bouquet.strategies.mathematics.aggregation import Assignment
from bouquet.strategies.mathematics.robust import Aggregation


@dataclass(frozen=True)
class FedACState:
    """All that survives a round."""

    centers: Matrix  # ω, (K, d); one row until the first clustering
    global_embedding: Vector  # φ_g, (d,), zero in the columns of the decision layers
    embedding: list[str]  # the layers of φ_g
    assignment: dict[str, int] = field(default_factory=dict)  # c; empty until the first clustering
    directions: Matrix | None = None  # P of the map, (p, d)
    offset: Reduced | None = None  # P m, (p,)
    map_mean: Vector | None = None  # m, (d,)
    map_round: int = 0  # the round that the map was made in
    seen: list[str] = field(default_factory=list)  # clients whose models some map was made of
    reduced: dict[str, list[float]] = field(default_factory=dict)  # client → p numbers of its last model
    gathered: dict[str, Vector] = field(default_factory=dict)  # models for the first map, for "l2" the first clusters
    round: int = 0  # the last one that changed anything; what follows is of it
    moved: int = 0  # clients that the E-step put into another cluster
    ratios: list[float | None] = field(default_factory=list)  # ρ of each cluster
    silhouettes: dict[str, float] = field(default_factory=dict)  # of each candidate for K
    changes: list[Change] = field(default_factory=list)

    @property
    def low_rank(self) -> LowRankMap | None:
        """The map, where there is one."""
        return None if self.directions is None or self.offset is None else LowRankMap(self.directions, self.offset)

    @property
    def known(self) -> list[str]:
        """Clients whose p numbers under the present map are known, in order."""
        return sorted(self.reduced)

    def rows(self, clients: list[str]) -> Reduced:
        """The reduced models (n, p) of clients that are known."""
        return np.array([self.reduced[client] for client in clients], dtype=np.float64)

    def labels(self, clients: list[str]) -> Assignment:
        """The clusters (n,) of clients that have one."""
        return np.array([self.assignment[client] for client in clients], dtype=np.int64)


class Uploads(NamedTuple):
    """The whole models of a round: their ``clients``, and W (n, d)."""

    clients: list[str]
    W: Matrix
    layout: ParameterLayout

    @property
    def parameters(self) -> Matrix:
        """What is compared of the models, (n, p)."""
        return self.layout.parameters_of(self.W)


def make_map(state: FedACState, uploads: Uploads, num_dims: int) -> FedACState:
    """The state with a new map, made of this round's models and of what the old map holds of the other clients'.

    So a map knows every client, however few take part in a round. Where all models are equal there is none, and they
    are gathered until there is a first one. It maps parameters: buffers and counters have no part in its directions.
    """
    absent = [client for client in state.known if client not in set(uploads.clients)]
    remembered = None
    if absent and state.directions is not None and state.map_mean is not None:
        remembered = Remembered(state.rows(absent), state.directions, state.map_mean)
    fresh = dict(zip(uploads.clients, uploads.W, strict=True))
    earlier = {c: model for c, model in state.gathered.items() if c not in fresh} if state.low_rank is None else {}
    W = np.stack([*uploads.W, *earlier.values()]) if earlier else uploads.W
    made = fit_map(W, num_dims, ~uploads.layout.parameter_columns, remembered) if len(W) else None
    if made is None:
        kept = {**state.gathered, **{client: model.copy() for client, model in fresh.items()}}
        return replace(state, gathered=kept) if state.low_rank is None else state
    low_rank, mean = made
    reduced = dict(zip(earlier, low_rank.reduce(W[len(fresh) :]).tolist(), strict=True))
    if remembered is not None:
        # P (m_old + R P_old - m) without the models themselves
        rows = remembered.reduced @ (low_rank.reduce(remembered.directions) + low_rank.offset)
        rows += low_rank.reduce(remembered.mean[None, :])
        reduced = dict(zip(absent, rows.tolist(), strict=True))
    return replace(
        state,
        directions=low_rank.directions,
        offset=low_rank.offset,
        map_mean=mean,
        map_round=state.round,
        seen=sorted({*state.seen, *fresh, *earlier}),
        reduced=reduced,
    )


def restore_models(state: FedACState, reduced: NDArray[np.floating[Any]]) -> Matrix:
    """Models (n, d) as the map holds them, from their p numbers (n, p); across its directions they are the mean."""
    assert state.directions is not None
    assert state.map_mean is not None
    return (
        Remembered(reduced.astype(np.float64), state.directions, state.map_mean).block(slice(None)).astype(np.float32)
    )


def remembered_centers(
    state: FedACState, clients: list[str], labels: Assignment, num_clusters: int, rule: Aggregation
) -> Matrix:
    """The centers (K, d) of clusters of such ``clients`` as the map holds their last models, by the same ``rule``."""
    numbers_rule = replace(rule, compared=None)  # p numbers are made of parameters alone
    return restore_models(state, numbers_rule.cluster_means(state.rows(clients), labels, num_clusters))


def with_ratios(state: FedACState) -> FedACState:
    """The state with ρ of each cluster noted, as far as reduced models of its members are known."""
    clients = [client for client in state.known if client in state.assignment]
    if state.low_rank is None or not clients:
        return replace(state, ratios=[])
    rho = ratios(state.rows(clients), state.labels(clients), state.low_rank.reduce(state.centers))
    return replace(state, ratios=[float(r) if np.isfinite(r) else None for r in rho])


def embedding_layers(layout: ParameterLayout) -> tuple[str, ...]:
    """All layers but the last one, which is the decision. Raises `BouquetError` where there is but one."""
    layers = layout.layers
    if len(layers) < 2:
        raise BouquetError(
            f"Only one layer of the model is trained ({', '.join(layers)}), and FedAC needs two, an embedding and a "
            "decision: freeze fewer (model.frozen), or take another method."
        )
    return layers[:-1]


def only(vector: Vector, layout: ParameterLayout, layers: Sequence[str]) -> Vector:
    """The vector (d,) with zeros in the columns of all other layers."""
    kept = np.zeros_like(vector)
    columns = layout.columns(layers)
    kept[columns] = vector[columns]
    return kept
