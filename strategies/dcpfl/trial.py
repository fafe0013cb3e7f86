"""A trial of a finer structure, as the server has it (DC-PFL, section III-C); the device's side is in `device.py`.

Whole models of one round make the `Proposal`. The first message brings each device whose group it divides the models of
both structures (`both_models`); their losses after local training make the `Verdict` (`judged`). The second message,
which asks for the models of the better structure, is `bouquet.strategies.dcpfl.strategy.DCPFL.plan`'s. Devices whose
group the proposal leaves as it is take no part, because their two losses are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bouquet.common.protocol import ARRAYS, Instruction, Payload, Scalar
from bouquet.strategies.base.replies import Matrix, Replies
from bouquet.strategies.base.sampling import fewest_replies
from bouquet.strategies.dcpfl import DIVERGED, LOSS_NEW, LOSS_OLD, NEW, PROCEDURE
from bouquet.strategies.dcpfl.state import DCPFLState, Verdict, rows_of
from bouquet.strategies.mathematics.robust import Aggregation

MOST_VOTE = 5  # times what the client in the middle gains or loses
UNDECIDED_TRIALS = 3  # in a row, after which the next one is put off


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
        client: {ARRAYS: Payload(state.centers[state.assignment[client]]), NEW: Payload(state.proposed[parts[client]])}
        for client in clients
        if client in parts and state.assignment[client] in parted
    }
    return {client: Instruction(pair, upload=(), procedure=PROCEDURE, config=config) for client, pair in pairs.items()}


def judged(state: DCPFLState, round_: int, clients: Sequence[str], replies: Replies, min_replies: float) -> DCPFLState:
    """The state with the verdict of the replies to `both_models`; too few of those ``clients`` leave it undecided.

    A client counts with both its losses or not at all. Losses of models that diverged are not in the means.
    """
    assert state.proposal is not None
    losses = zip(replies.clients, replies.metric(LOSS_OLD).tolist(), replies.metric(LOSS_NEW).tolist(), strict=True)
    pairs = {client: (old, new) for client, old, new in losses if np.isfinite([old, new]).all()}
    # No more than were asked can answer, however many replies a whole round must have.
    decided = len(pairs) >= max(1, min(fewest_replies(min_replies, len(clients)), len(clients)))
    values = np.array([*pairs.values()]).reshape(-1, 2)
    diverged = values >= DIVERGED
    sound = values[~diverged.any(axis=1)]
    old, new = np.ascontiguousarray(sound.T).mean(axis=1).tolist() if decided and len(sound) else (None, None)
    lost_old, lost_new = diverged.sum(axis=0).tolist()
    gain = _bounded_gain(values, diverged) if decided else None
    verdict = Verdict(
        round_, state.proposal.gamma, old, new, list(clients), [*pairs], lost_old, lost_new, decided, gain
    )
    return replace(state, verdict=verdict, undecided=0 if decided else state.undecided + 1)


def _bounded_gain(values: NDArray[np.float64], diverged: NDArray[np.bool_]) -> float | None:
    """What clients gain by the new structure, of their losses (n, 2), each bounded; None where no bound is reached."""
    gains = values[:, 0] - values[:, 1]
    gains[diverged.any(axis=1)] = 0.0
    usual = np.abs(gains[gains != 0])
    most = MOST_VOTE * float(np.median(usual)) if len(usual) else 1.0
    gains[diverged[:, 1] & ~diverged[:, 0]], gains[diverged[:, 0] & ~diverged[:, 1]] = -np.inf, np.inf
    return None if np.abs(gains).max(initial=0.0) <= most else float(np.clip(gains, -most, most).sum())


def divided(state: DCPFLState, parts: Mapping[str, int]) -> set[int]:
    """The groups that a finer structure takes apart."""
    pairs = {(state.assignment[client], part) for client, part in parts.items()}
    return {group for group, count in Counter(group for group, _ in pairs).items() if count > 1}


def parents(state: DCPFLState, parts: Mapping[str, int]) -> list[int]:
    """The group that each part of a finer structure comes from, in the order of the parts."""
    origins = {part: state.assignment[client] for client, part in parts.items()}
    return [origins[part] for part in sorted(origins)]
