"""A split tried on the devices (DC-PFL, section III-C): the models of its groups, both models of a device, a verdict.

Devices whose group the split would leave as it is take no part, because their two losses are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from common.protocol import ARRAYS, Instruction, Payload, Scalar
from strategies.base.replies import Matrix, Replies
from strategies.base.sampling import fewest_replies
from strategies.dcpfl.discrepancy import next_split
from strategies.dcpfl.state import DCPFLState, Proposal, Verdict, restructured, rows_of
from strategies.dcpfl.wire import LOSS_NEW, LOSS_OLD, NEW, PROCEDURE
from strategies.mathematics.robust import Aggregation

UNDECIDED_TRIALS = 3  # in a row, after which the next one is put off


def next_structure(state: DCPFLState, step: float, least: int) -> Proposal | None:
    """The next finer groups, of ``least`` samples each, and their γ̃.

    None before the group graph is made, and where nobody is left to part.
    """
    groups_at = state.groups_of(least)
    found = None if groups_at is None else next_split(groups_at, state.gamma, step)
    return None if found is None else Proposal(found[0], state.by_client(found[1]))


def fixed_structure(state: DCPFLState, round_: int, gamma: float, least: int) -> DCPFLState:
    """The groups at a γ̃ that is kept, in the round in which the group graph is made; there is no trial."""
    groups_at = state.groups_of(least) if state.gamma == 1 and state.graph_round == round_ else None
    if groups_at is None:
        return state
    return restructured(state, round_, Proposal(gamma, state.by_client(groups_at(gamma))))


def proposed_models(
    state: DCPFLState, parts: Mapping[str, int], usable: Replies, aggregation: Aggregation
) -> Matrix | None:
    """The models (K', d) of a structure's groups, by the group of each client: means of whole models of this round.

    None where a client of a group that is divided did not send its whole model, or where none of them replied.
    """
    divided = state.divided(parts)
    rows = [row for row, client in enumerate(usable.clients) if client in parts and state.assignment[client] in divided]
    if not rows or any(usable.received[row].layers != usable.layout.layers for row in rows):
        return None
    labels = [parts[usable.clients[row]] for row in rows]
    parents = state.centers[state.parents(parts)]
    return aggregation.cluster_means(
        rows_of(usable.W, rows), labels, len(parents), usable.num_examples[rows], previous=parents
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
    divided = state.divided(parts)
    pairs = {
        client: {
            ARRAYS: Payload(state.centers[state.assignment[client]]),
            NEW: Payload(state.proposed[parts[client]]),
        }
        for client in clients
        if client in parts and state.assignment[client] in divided
    }
    return {client: Instruction(pair, upload=(), procedure=PROCEDURE, config=config) for client, pair in pairs.items()}


def judged(state: DCPFLState, round_: int, asked: Sequence[str], replies: Replies, min_replies: float) -> DCPFLState:
    """The state with the verdict of the replies to `both_models`; too few of those ``asked`` leave it undecided."""
    assert state.proposal is not None
    losses = zip(replies.metric(LOSS_OLD).tolist(), replies.metric(LOSS_NEW).tolist(), strict=True)
    # No more than were asked can answer, however many replies a whole round must have.
    needed = max(1, min(fewest_replies(min_replies, len(asked)), len(asked)))
    by_client = dict(zip(replies.clients, losses, strict=True))
    verdict = Verdict.of(round_, state.proposal.gamma, list(asked), by_client, needed)
    return replace(state, verdict=verdict, undecided=0 if verdict.decided else state.undecided + 1)
