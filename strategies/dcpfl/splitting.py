"""When to split, and what follows: rapid decrease, the next structure, restructuring (DC-PFL, section III-C, Eq. 4).

A rapid decrease period lasts while the loss falls fast, and ends at the elbow of its curve, where the radius of
curvature is least. Then a split is tried on the devices (`trial.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from bouquet.strategies.dcpfl.grouping import graph_of, groups_of, next_split
from bouquet.strategies.dcpfl.state import DCPFLState, Group, Proposal
from bouquet.strategies.dcpfl.trial import divided, parents
from bouquet.strategies.mathematics.aggregation import Assignment

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


def by_client(state: DCPFLState, labels: Assignment) -> dict[str, int]:
    """The group of each client of the graph, from its labels (n,)."""
    return dict(zip(state.clients, labels.tolist(), strict=True))


def fixed_structure(state: DCPFLState, round_: int, gamma: float, least: int) -> DCPFLState:
    """The groups at a γ̃ that is kept, in the round in which the group graph is made; there is no trial."""
    groups_at = groups_of(state, least) if state.gamma == 1 and state.graph_round == round_ else None
    if groups_at is None:
        return state
    return restructured(state, round_, Proposal(gamma, by_client(state, groups_at(gamma))))


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
