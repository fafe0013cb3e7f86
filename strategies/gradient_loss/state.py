"""The state of the joint gradient and loss method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bouquet.strategies.base.groups import Groups
from bouquet.strategies.base.replies import Matrix


@dataclass(frozen=True)
class GradientLossState:
    """All that survives a round."""

    centers: Matrix  # (K, d): w_k^t
    previous: Matrix | None = None  # (K, d): w_k^{t−1}; None before the first step, and where λ = 0
    version: int = 0  # how often the centers have moved
    assignment: dict[str, int] = field(default_factory=dict)  # client → s_i, the cluster it chose last
    groups: Groups = field(default_factory=Groups)  # where K is found
    held: dict[str, int] = field(default_factory=dict)  # client → version of the centers that it keeps
    last: dict[str, Any] = field(default_factory=dict)  # what `record` tells of the last round
