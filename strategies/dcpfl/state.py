"""The state of DC-PFL, and what follows from it: who is in which group and holds which model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common.parameters.layout import Vector
from bouquet.strategies.base.replies import Matrix
from bouquet.strategies.mathematics.aggregation import weighted_mean
from bouquet.strategies.mathematics.similarity import Distances


@dataclass(frozen=True)
class Group:
    """A group's layers at its last full round, in which its members uploaded the whole model."""

    full_round: int = 0
    slow: list[str] = field(default_factory=list)  # Eq. 6: they stay on the devices between full rounds
    discrepancies: dict[str, float] = field(default_factory=dict)  # D_{g,l}, Eq. 5
    apart: dict[str, int] = field(default_factory=dict)  # rounds that each layer's copies had been apart by then

    def rounds_apart(self, round_: int, layers: Sequence[str]) -> dict[str, int]:
        """For each layer, the rounds of training since it was last averaged, at the end of a full round."""
        return {layer: max(1, round_ - self.full_round) if layer in self.slow else 1 for layer in layers}


@dataclass(frozen=True)
class Proposal:
    """A structure that is to be tried: its γ̃, the group of each client, and the round whose models it was made of."""

    gamma: float
    assignment: dict[str, int]
    round: int = 0


@dataclass(frozen=True)
class Verdict:
    """What a trial found: mean training losses with the old and the new structure; None where it is undecided.

    A client counts with both its losses or not at all. Losses of models that diverged are not in the means. What one
    client gains or loses counts for no more than five times what the client in the middle does, however much it
    says it is: where that bounds one, or a model diverged, ``gain`` is the sum of what counts, and decides.
    """

    round: int
    gamma: float
    loss_old: float | None
    loss_new: float | None
    asked: list[str]  # the clients that were sent both models
    clients: list[str]  # of these, who trained both and holds them
    diverged_old: int = 0  # of these, whose model of the old structure diverged
    diverged_new: int = 0
    decided: bool = True
    gain: float | None = None

    @property
    def accepted(self) -> bool:
        """Whether the new structure is better."""
        if not self.decided or self.gain is not None:
            return self.decided and self.gain is not None and self.gain > 0
        return self.loss_old is not None and self.loss_new is not None and self.loss_new < self.loss_old

    def summary(self) -> dict[str, Any]:
        """For the record of the round."""
        counted = {"diverged_old": self.diverged_old, "diverged_new": self.diverged_new}
        return {
            "gamma": self.gamma,
            "loss_old": self.loss_old,
            "loss_new": self.loss_new,
            "accepted": self.accepted,
            "asked": len(self.asked),
            "answered": len(self.clients),
            **{name: count for name, count in counted.items() if count},
        }


@dataclass(frozen=True)
class DCPFLState:
    """All that survives a round."""

    layers: list[str]
    centers: Matrix  # (K, d): the groups' models; of a group of one, the model that it was alone with first
    groups: list[Group]
    assignment: dict[str, int] = field(default_factory=dict)
    whole: dict[str, int] = field(default_factory=dict)  # client → round in which it last got, or gave, a whole model
    gamma: float = 1.0  # γ̃
    communication_rounds: int = 0  # in which a model was uploaded
    clients: list[str] = field(default_factory=list)  # rows of the two matrices
    samples: dict[str, int] = field(default_factory=dict)  # training samples that each client last told of
    total: Distances | None = None  # (n, n): sum of D^t_ij over the rounds in which i and j met
    meetings: Distances | None = None  # (n, n): the number of these rounds
    graph_round: int | None = None  # when the group graph was made, or last completed
    history: list[tuple[int, float]] = field(default_factory=list)  # round and l(t)
    period_start: int = 0  # index in the history
    period_end: int | None = None  # round in which the period ended for which a trial is due
    trial_round: int | None = None  # the trial is due from this round on; None while no period has ended
    proposal: Proposal | None = None
    proposed: Matrix | None = None  # (K', d): the models of the proposed groups
    verdict: Verdict | None = None  # of the last trial
    undecided: int = 0  # trials in a row that too few clients answered

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Members of each group, (K,)."""
        return np.bincount(list(self.assignment.values()), minlength=len(self.groups))

    def is_alone(self, client: str) -> bool:
        """Whether a client is a group of one; while there is one group for all, nobody is."""
        return self.gamma < 1 and client in self.assignment and self.sizes[self.assignment[client]] == 1

    def is_current(self, client: str) -> bool:
        """Whether a client's own layers descend from its group's last full round.

        It was sent the whole model since then; alone, it uploaded it in that round, the first that it was alone in.
        """
        if client not in self.assignment:
            return False
        full_round = self.groups[self.assignment[client]].full_round
        return self.whole.get(client, -1) >= full_round + (0 if self.is_alone(client) else 1)

    def is_sent_whole(self, client: str) -> bool:
        """Whether a member is sent the whole model: unless its own slow layers are the right ones."""
        return not self.is_current(client) or not self.groups[self.assignment[client]].slow

    def travelling(self, group: int) -> tuple[str, ...]:
        """The fast layers of a group."""
        return tuple(layer for layer in self.layers if layer not in self.groups[group].slow)

    def common_model(self) -> Vector:
        """What a client without a group is sent: the mean of the groups' models over their members.

        Groups of one are left out while there are others: their models here are as old as their solitude.
        """
        weights = self.sizes if self.sizes.any() else np.ones(len(self.groups))
        if weights.max() > 1:
            weights = np.where(weights > 1, weights, 0)
        return weighted_mean(self.centers, weights)

    def put_off(self, until: int) -> DCPFLState:
        """The next trial is due from round ``until`` on, and is to be proposed anew."""
        return replace(self, trial_round=until, proposal=None, proposed=None, undecided=0)


def rows_of(W: Matrix, rows: list[int]) -> Matrix:
    """Some rows of W; W itself where they are all of it, so that a thousand models are not copied for nothing."""
    return W if rows == list(range(len(W))) else W[rows]


def verdict_of(state: DCPFLState, round_: int) -> Verdict | None:
    """The verdict of a round's trial; None where there was none in that round."""
    return state.verdict if state.verdict is not None and state.verdict.round == round_ else None
