"""The state of FeSEM: all that survives a round."""

from __future__ import annotations

from dataclasses import dataclass, field

from bouquet.common.parameters.layout import Vector
from bouquet.strategies.base.replies import Matrix
from bouquet.strategies.fesem.num_clusters import Trial


@dataclass(frozen=True)
class FeSEMState:
    """All that survives a round."""

    centers: Matrix  # C, (K, d); one row until the first clustering
    assignment: dict[str, int]  # r: client → cluster; empty until the first clustering
    num_clusters: int | None = None  # None while K is being chosen
    selection: dict[str, float] = field(default_factory=dict)  # score of each candidate K
    moved: int = 0  # clients that the last E-step put into another cluster
    intra_distance: float | None = None  # mean distance of a client's model to its center, Eq. 6
    trial: Trial | None = None
    start_models: Matrix | None = None  # (n, d), while candidates are tried: the models each of them clusters
    start_clients: list[str] = field(default_factory=list)
    # Before the first clustering, over the rounds that it is awaited: the common model that these were trained from.
    origin: Vector | None = None
    gathered: dict[str, Vector] = field(default_factory=dict)  # client → its model
    examples: dict[str, int] = field(default_factory=dict)  # of these, and while candidates are tried, of start_models
    seen: list[str] = field(default_factory=list)  # clients that ever replied
    sizes: dict[str, int] = field(
        default_factory=dict
    )  # n_i of each client that ever replied, where the loss is weighted
