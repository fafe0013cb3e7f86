"""The state of FeSEM: all that survives a round."""

from __future__ import annotations

from dataclasses import dataclass, field

from bouquet.common.parameters.layout import Vector
from bouquet.strategies.base.groups import Groups
from bouquet.strategies.base.replies import Matrix


@dataclass(frozen=True)
class FeSEMState:
    """All that survives a round."""

    centers: Matrix  # C, (K, d); one row until the first clustering
    assignment: dict[str, int]  # r: client → cluster; empty until the first clustering
    moved: int = 0  # clients that the last E-step put into another cluster
    intra_distance: float | None = None  # mean distance of a client's model to its center, Eq. 6
    sizes: dict[str, int] = field(default_factory=dict)  # n_i of each client that replied, where the loss is weighted
    groups: Groups = field(default_factory=Groups)  # where K is found
    # Where K is given, over the rounds that the first clustering is awaited: the common model, and what came of it.
    origin: Vector | None = None
    gathered: dict[str, Vector] = field(default_factory=dict)  # client → its model
    examples: dict[str, int] = field(default_factory=dict)  # of these
    seen: list[str] = field(default_factory=list)  # clients that ever replied
