"""When to split, what is tried, and what follows: rapid decrease, trial, restructuring (DC-PFL, section III-C, Eq. 4).

A rapid decrease period lasts while the loss falls fast, and ends at the elbow of its curve, where the radius of
curvature is least. Then a split is tried on the devices. Those whose group it would leave as it is take no part,
because their two losses are equal. Whether a split is kept is `bouquet.strategies.dcpfl.state.Verdict.accepted`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from bouquet.common.protocol import ARRAYS, Instruction, Payload, Scalar
from bouquet.strategies.base.replies import Matrix, Replies
from bouquet.strategies.base.sampling import fewest_replies
from bouquet.strategies.dcpfl import LOSS_NEW, LOSS_OLD, NEW, PROCEDURE
from bouquet.strategies.dcpfl.grouping import by_client, divided, graph_of, groups_of, next_split, parents
from bouquet.strategies.dcpfl.state import DCPFLState, Group, Proposal, Verdict, rows_of
from bouquet.strategies.mathematics.robust import Aggregation

UNDECIDED_TRIALS = 3  # in a row, after which the next one is put off
_ROUNDING = 1e-12  # of the loss: a bend below it is that of a straight line


def smoothed(losses: Sequence[float], window: int) -> list[float]:
    """l_w(t): the mean of the last ``window`` (s) values up to each t, of fewer at the start."""
    return [math.fsum(losses[max(0, t + 1 - window) : t + 1]) / min(t + 1, window) for t in range(len(losses))]


def radii_of_curvature(losses: Sequence[float], window: int) -> list[float]:
    """r(t) = (1 + l'(t)²)^{3/2} / l''(t) of the smoothed curve at each t, Eq. 4.

    l'(t) = l_w(t) − l_w(t−1) and l''(t) = l'(t) − l'(t−1). It is +∞ where the curve is not convex (l'' ≤ 0), and before
    there are s values, or the three that l'' needs.
    """
    curve = smoothed(losses, window)
    radii = [math.inf] * len(curve)
    for t in range(max(window, 3) - 1, len(curve)):
        slope = curve[t] - curve[t - 1]
        bend = slope - (curve[t - 1] - curve[t - 2])
        if bend > _ROUNDING * max(abs(value) for value in curve[t - 2 : t + 1]):
            radii[t] = (1 + slope**2) ** 1.5 / bend
    return radii


def period_end(losses: Sequence[float], window: int, observe: int, start: int = 0) -> int | None:
    """The index t ≥ ``start`` at which the first rapid decrease period since ``start`` ends; None if none has ended.

    It ends at t when r(t) < r(t') for t' = t + 1 … t + ``observe`` (t_obv), so it is noticed that much later. Beyond
    the paper, the smoothed loss must be falling at t: a period in which nothing decreases is none, and the foot of a
    rising curve is as bent as an elbow.
    """
    radii, curve = radii_of_curvature(losses, window), smoothed(losses, window)
    for t in range(max(start, 1), len(radii) - observe):
        if curve[t] < curve[t - 1] and all(radii[t] < later for later in radii[t + 1 : t + 1 + observe]):
            return t
    return None


def next_structure(state: DCPFLState, step: float, least: int) -> Proposal | None:
    """The next finer groups, of ``least`` samples each, and their γ̃.

    None before the group graph is made, and where nobody is left to part.
    """
    groups_at = groups_of(state, least)
    split = None if groups_at is None else next_split(groups_at, state.gamma, step)
    return None if split is None else Proposal(split[0], by_client(state, split[1]))


def fixed_structure(state: DCPFLState, round_: int, gamma: float, least: int) -> DCPFLState:
    """The groups at a γ̃ that is kept, in the round in which the group graph is made; there is no trial."""
    groups_at = groups_of(state, least) if state.gamma == 1 and state.graph_round == round_ else None
    if groups_at is None:
        return state
    return restructured(state, round_, Proposal(gamma, by_client(state, groups_at(gamma))))


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


def restructured(state: DCPFLState, round_: int, proposal: Proposal) -> DCPFLState:
    """The proposed structure; groups that it leaves whole go on as they are, the others begin with a full round.

    What these begin with are the proposed models, or where none were made that of the group they come from, and its
    slow layers. A client that is not in the graph stays in its group, and has none once that is divided.
    """
    parts = proposal.assignment
    members = Counter(parts.values())
    parted = divided(state, parts)
    origins = parents(state, parts)
    proposed = state.centers[origins] if state.proposed is None else state.proposed
    origins += sorted(set(range(len(state.groups))) - set(origins))  # groups of clients that are not in the graph
    part_of = {origin: part for part, origin in enumerate(origins) if origin not in parted}
    others = {client: part_of[g] for client, g in state.assignment.items() if client not in parts and g in part_of}
    return replace(
        state,
        gamma=proposal.gamma,
        assignment={**parts, **others},
        centers=np.stack([proposed[k] if g in parted else state.centers[g] for k, g in enumerate(origins)]),
        groups=[
            state.groups[g] if g not in parted else Group(round_, state.groups[g].slow if members[k] > 1 else [])
            for k, g in enumerate(origins)
        ],
        trial_round=None,
        period_end=None,
        proposal=None,
        proposed=None,
        undecided=0,
    )


def summary(state: DCPFLState) -> dict[str, Any]:
    """The last round for its record, as JSON; the group graph only in the round in which it was made."""
    last, loss = state.history[-1] if state.history else (0, None)
    # A round with too few replies has a trial, but no loss.
    verdict = state.verdict if state.verdict is not None and state.verdict.round >= last else None
    graph = graph_of(state) if state.graph_round == last else None
    return {
        "gamma": state.gamma,
        "loss": loss,
        "period_end": state.period_end,
        "trial": None if verdict is None else verdict.summary(),
        "communication_rounds": state.communication_rounds,
        "exchanging": sum(not state.is_alone(client) for client in state.assignment),
        "groups": [
            {"size": size, **asdict(group)} for size, group in zip(state.sizes.tolist(), state.groups, strict=True)
        ],
        "graph": None if graph is None else {"clients": state.clients, "linkage": graph[1].tolist()},
    }
