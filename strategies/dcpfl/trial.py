"""A trial of a finer structure, as the server has it (DC-PFL, section III-C); the device's side is in `device.py`.

Whole models of one round make the `Proposal`. The first message brings each device whose group it divides the models of
both structures (`both_models`); their losses after local training make the `Verdict` (`judged`). The second message,
which asks for the models of the better structure, is `bouquet.strategies.dcpfl.strategy.DCPFL.plan`'s. Devices whose
group the proposal leaves as it is take no part, because their two losses are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bouquet.common.protocol import ARRAYS, Instruction, Payload, Scalar
from bouquet.strategies.base.replies import Matrix, Replies
from bouquet.strategies.base.sampling import fewest_replies
from bouquet.strategies.dcpfl import DIVERGED, LOSS_NEW, LOSS_OLD, NEW, PROCEDURE
from bouquet.strategies.mathematics.robust import Aggregation

if TYPE_CHECKING:
    from bouquet.strategies.dcpfl.state import DCPFLState

UNDECIDED_TRIALS = 3  # in a row, after which the next one is put off


@dataclass(frozen=True)
class Proposal:
    """A structure that is to be tried: its γ̃, the group of each client, and the round whose models it was made of."""

    gamma: float
    assignment: dict[str, int]
    round: int = 0


@dataclass(frozen=True)
class Verdict:
    """What a trial found: mean training losses with the old and the new structure; None where it is undecided.

    A client counts with both its losses or not at all. Losses of models that diverged are not in the means: the
    structure under which fewer clients' models diverge is better, whatever the others' losses are.
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

    @classmethod
    def of(
        cls, round_: int, gamma: float, asked: Sequence[str], losses: Mapping[str, tuple[float, float]], needed: int
    ) -> Verdict:
        """From each client's two losses; with fewer than ``needed`` clients that have both, it is undecided."""
        pairs = {client: pair for client, pair in losses.items() if np.isfinite(pair).all()}
        values = np.array(list(pairs.values())).reshape(-1, 2)
        diverged = values >= DIVERGED
        sound = values[~diverged.any(axis=1)]
        decided = len(pairs) >= needed
        old, new = np.ascontiguousarray(sound.T).mean(axis=1).tolist() if decided and len(sound) else (None, None)
        worse_old, worse_new = (int(count) for count in diverged.sum(axis=0))
        return cls(round_, gamma, old, new, list(asked), list(pairs), worse_old, worse_new, decided)

    @property
    def accepted(self) -> bool:
        """Whether the new structure is better."""
        if not self.decided or self.diverged_new != self.diverged_old:
            return self.decided and self.diverged_new < self.diverged_old
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


def proposed_models(
    state: DCPFLState, parts: Mapping[str, int], usable: Replies, aggregation: Aggregation
) -> Matrix | None:
    """The models (K', d) of a structure's groups, by the group of each client: means of whole models of this round.

    None where a client of a group that is divided did not send its whole model, or where none of them replied.
    """
    parted = divided(state, parts)
    rows = [row for row, client in enumerate(usable.clients) if client in parts and state.assignment[client] in parted]
    if not rows or any(usable.received[row].layers != usable.layout.layers for row in rows):
        return None
    labels = [parts[usable.clients[row]] for row in rows]
    origins = state.centers[parents(state, parts)]
    return aggregation.cluster_means(
        rows_of(usable.W, rows), labels, len(origins), usable.num_examples[rows], previous=origins
    )


def both_models(
    state: DCPFLState, round_: int, clients: Sequence[str], config: Mapping[str, Scalar]
) -> dict[str, Instruction]:
    """The first message, with this config, to each client that takes part; empty in a round without a trial.

    A proposal is of the round before; models that are older are not tried, but made anew.
    """
    if state.proposal is None or state.proposed is None or state.proposal.round != round_ - 1:
        return {}
    parts = state.proposal.assignment
    parted = divided(state, parts)
    pairs = {
        client: {
            ARRAYS: Payload(state.centers[state.assignment[client]]),
            NEW: Payload(state.proposed[parts[client]]),
        }
        for client in clients
        if client in parts and state.assignment[client] in parted
    }
    return {client: Instruction(pair, upload=(), procedure=PROCEDURE, config=config) for client, pair in pairs.items()}


def judged(state: DCPFLState, round_: int, asked: Sequence[str], replies: Replies, min_replies: float) -> DCPFLState:
    """The state with the verdict of the replies to `both_models`; too few of those ``asked`` leave it undecided."""
    assert state.proposal is not None
    losses = zip(replies.metric(LOSS_OLD).tolist(), replies.metric(LOSS_NEW).tolist(), strict=True)
    # No more than were asked can answer, however many replies a whole round must have.
    needed = max(1, min(fewest_replies(min_replies, len(asked)), len(asked)))
    its_losses = dict(zip(replies.clients, losses, strict=True))
    verdict = Verdict.of(round_, state.proposal.gamma, list(asked), its_losses, needed)
    return replace(state, verdict=verdict, undecided=0 if verdict.decided else state.undecided + 1)


def divided(state: DCPFLState, parts: Mapping[str, int]) -> set[int]:
    """The groups that a finer structure takes apart."""
    pairs = {(state.assignment[client], part) for client, part in parts.items()}
    return {group for group, count in Counter(group for group, _ in pairs).items() if count > 1}


def parents(state: DCPFLState, parts: Mapping[str, int]) -> list[int]:
    """The group that each part of a finer structure comes from, in the order of the parts."""
    origins = {part: state.assignment[client] for client, part in parts.items()}
    return [origins[part] for part in sorted(origins)]


def rows_of(W: Matrix, rows: list[int]) -> Matrix:
    """Some rows of W; W itself where they are all of it, so that a thousand models are not copied for nothing."""
    return W if rows == list(range(len(W))) else W[rows]


def verdict_of(state: DCPFLState, round_: int) -> Verdict | None:
    """The verdict of a round's trial; None where there was none in that round."""
    return state.verdict if state.verdict is not None and state.verdict.round == round_ else None
