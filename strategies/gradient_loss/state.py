"""The state of the joint gradient and loss method, and what a reply adds to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from common import protocol
from common.protocol import ClientReply
from strategies.base.replies import Matrix
from strategies.gradient_loss import wire as choice
from strategies.gradient_loss.division import Apart
from strategies.gradient_loss.wire import Relocation
from strategies.mathematics.similarity import Distances


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


def learned(state: GradientLossState, reply: ClientReply, loss_rise: float) -> Device:
    """What is known of a device after its reply; its loss is rising where it rose by more than ``loss_rise`` of it."""
    before = state.devices.get(reply.client)
    held = int(reply.metrics.get(choice.HELD, choice.NOTHING))
    same = before is not None and state.assignment.get(reply.client) == reply.metrics[choice.CHOSEN]
    stable = (before.stable if before and same else 0) + (held == state.version)
    loss = reply.metrics.get(protocol.LOSS)
    known = before is not None and before.loss is not None and loss is not None
    rising = known and loss > (1 + loss_rise) * before.loss  # type: ignore[operator, union-attr]
    return Device(held, stable, loss, bool(rising))
