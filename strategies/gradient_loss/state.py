"""The state of the joint gradient and loss method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bouquet.strategies.base.replies import Matrix
from bouquet.strategies.gradient_loss.division import Apart
from bouquet.strategies.gradient_loss.wire import Relocation
from bouquet.strategies.mathematics.similarity import Distances


@dataclass(frozen=True)
class Device:
    """What is known of a device: the facts that it reported last."""

    held: int  # version of the centers that it compared last and keeps; −1 for none
    stable: int  # comparisons in a row that found the same cluster, the first that found it included
    loss: float | None  # training loss of its cluster's model
    rising: bool = False  # that loss has risen since the reply before


@dataclass(frozen=True)
class GradientLossState:
    """All that survives a round."""

    centers: Matrix  # (K, d): w_k^t
    previous: Matrix | None = None  # (K, d): where w_k^t came from, w_k^{t−1}; None before the first step, where λ = 0
    version: int = 0  # how often the centers have moved
    assignment: dict[str, int] = field(default_factory=dict)  # client → s_i, the cluster it chose or was put in last
    devices: dict[str, Device] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)  # what `record` tells of the last round
    # With ``empty_cluster="split"``: see `division.Apart`, and where empty clusters were put, in order.
    total: Distances | None = None
    meetings: Distances | None = None
    met: list[str] = field(default_factory=list)
    relocations: list[Relocation] = field(default_factory=list)

    @property
    def apart(self) -> Apart:
        """How far apart the steps of the devices were."""
        return Apart(self.total, self.meetings, self.met)
