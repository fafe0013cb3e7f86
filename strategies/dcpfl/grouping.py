"""Whom to group with whom: model discrepancy and the hierarchical group graph (DC-PFL, III-A and III-B, Eq. 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import ClusterNode, to_tree

from bouquet.strategies.base.replies import Replies
from bouquet.strategies.dcpfl.state import DCPFLState, Group
from bouquet.strategies.mathematics.aggregation import Assignment, Matrix, Vector
from bouquet.strategies.mathematics.clustering import canonical_labels, groups_at, linkage_matrix
from bouquet.strategies.mathematics.meetings import add_meeting, mean_distances
from bouquet.strategies.mathematics.similarity import Distances, cosine_similarity, cosine_to, l1_discrepancy

Discrepancy = Literal["l1", "l1-own", "cosine"]


def model_discrepancy(W: Matrix, origin: Vector, kind: Discrepancy) -> Distances:
    """D^t_ij of all pairs of models trained from one model: rows of W (n × d) and ``origin`` (d,) → n × n.

    ``"l1"`` is Eq. 3 with one minimum and maximum for all models, ``"l1-own"`` with each model's own, as printed;
    ``"cosine"`` is 1 − cos(w_i − w, w_j − w), from 0 to 2.
    """
    if kind == "cosine":
        return 1.0 - cosine_similarity(W, origin)
    return l1_discrepancy(W, "shared" if kind == "l1" else "own")


def groups_of_at_least(
    linkage: NDArray[np.float64], fraction: float, distances: Distances, samples: NDArray[np.int64], least: int
) -> Assignment:
    """`groups_at` a normalised threshold, but that none has fewer than ``least`` training samples; (n,).

    ``distances`` (n × n) and ``samples`` (n,) are the clients'. Not in the paper. From the top of the graph on, a
    branch parts where both halves have as many samples. Where one has fewer it does not hold the other one back: it
    goes along, at each further parting with the half that is nearer in the mean. So groups at a lower threshold are
    parts of those at a higher one here, too. With ``least`` = 0 it is `groups_at`.
    """
    if least <= 0 or len(samples) == 1:
        return groups_at(linkage, fraction)
    labels = np.zeros(len(samples), dtype=np.int64)
    for label, members in enumerate(_parts(to_tree(linkage), [], fraction * linkage[-1, 2], distances, samples, least)):
        labels[members] = label
    return canonical_labels(labels)


def _parts(
    branch: ClusterNode,
    along: list[list[int]],
    height: float,
    distances: Distances,
    samples: NDArray[np.int64],
    least: int,
) -> Iterator[list[int]]:
    """The groups of a branch, with those who go ``along`` with it."""
    halves = [] if branch.is_leaf() or branch.dist <= height else [branch.get_left(), branch.get_right()]
    members = [half.pre_order() for half in halves]
    enough = [half for half, own in zip(halves, members, strict=True) if samples[own].sum() >= least]
    if not enough:
        yield sorted([*branch.pre_order(), *(client for few in along for client in few)])
    elif len(enough) == 1:
        few = next(own for half, own in zip(halves, members, strict=True) if half is not enough[0])
        yield from _parts(enough[0], [*along, few], height, distances, samples, least)
    else:
        nearer = [int(np.argmin([distances[np.ix_(few, own)].mean() for own in members])) for few in along]
        for side, half in enumerate(halves):
            own_along = [few for few, chosen in zip(along, nearer, strict=True) if chosen == side]
            yield from _parts(half, own_along, height, distances, samples, least)


def next_split(at: Callable[[float], Assignment], gamma: float, step: float) -> tuple[float, Assignment] | None:
    """The next lower γ̃ at which the groups (n,) that ``at`` gives differ from those at ``gamma``, and these groups.

    γ̃ is lowered by ``step`` (λ), not below 0, until they do; None where no split is left.
    """
    groups = at(gamma)
    while gamma > 0:
        gamma = max(0.0, round(gamma - step, 9))  # 1 − 5 · 0.2 is to be 0
        proposed = at(gamma)
        if not np.array_equal(proposed, groups):
            return gamma, proposed
    return None


def lacks_meetings(state: DCPFLState, clients: Sequence[str]) -> bool:
    """Whether a pair among ``clients`` never met."""
    row = {client: index for index, client in enumerate(state.clients)}
    if state.meetings is None or any(client not in row for client in clients):
        return True
    rows = [row[client] for client in clients]
    return not state.meetings[np.ix_(rows, rows)].all()


def after_meeting(state: DCPFLState, clients: Sequence[str], distances: Distances, only_new: bool) -> DCPFLState:
    """With this round's ``distances`` of ``clients``, and with ``only_new`` just of pairs that never met before.

    The graph changes, so a proposal made from it must be made again.
    """
    total, meetings, members = add_meeting(
        state.total, state.meetings, state.clients, clients, distances, fill_in=only_new
    )
    return replace(state, total=total, meetings=meetings, clients=members, proposal=None, proposed=None)


def distances_of(state: DCPFLState) -> Distances | None:
    """D (n × n), with estimates for pairs that never met; None before the first round."""
    if state.total is None or state.meetings is None:
        return None
    return mean_distances(state.total, state.meetings)


def graph_of(state: DCPFLState) -> tuple[Distances, NDArray[np.float64]] | None:
    """D and the hierarchical group graph of ``clients`` as SciPy's linkage matrix; None before it was made."""
    distances = distances_of(state)
    return None if distances is None or state.graph_round is None else (distances, linkage_matrix(distances))


def groups_of(state: DCPFLState, least: int) -> Callable[[float], Assignment] | None:
    """The group (n,) of each client of the graph by γ̃, of ``least`` samples or more; None before the graph."""
    if (graph := graph_of(state)) is None:
        return None
    distances, linkage = graph
    samples = np.array([state.samples[client] for client in state.clients])
    return partial(groups_of_at_least, linkage, distances=distances, samples=samples, least=least)


def with_newcomers(before: DCPFLState, state: DCPFLState, round_: int, replies: Replies) -> DCPFLState:
    """Clients that trained the common model for want of a group join the one whose model lies in their direction.

    That is the group of two or more with the largest cosine of its center with the client's model, both seen from the
    common model. A newcomer never disturbs a group of one; where there are only such, it becomes another.
    """
    if before.gamma == 1:
        return state
    origin = before.common_model()
    for reply in replies.received:
        if reply.client in state.assignment or reply.client in before.assignment:
            continue
        shared = np.flatnonzero(state.sizes > 1)
        if len(shared):
            models = reply.vector[None, :], state.centers[shared], origin
            nearest = cosine_to(*(replies.layout.parameters_of(model) for model in models)).argmax()
            state = replace(state, assignment={**state.assignment, reply.client: int(shared[nearest])})
        else:
            state = replace(
                state,
                assignment={**state.assignment, reply.client: len(state.groups)},
                centers=np.concatenate([state.centers, reply.vector[None, :]]),
                groups=[*state.groups, Group(round_)],
                whole={**state.whole, reply.client: round_},
            )
    return state
