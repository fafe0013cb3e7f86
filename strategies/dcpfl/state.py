"""The state of DC-PFL, and what follows from it: who is in which group and holds which model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.parameters.layout import Vector
from strategies.base.replies import Matrix, Replies
from strategies.dcpfl.discrepancy import groups_of_at_least
from strategies.dcpfl.wire import DIVERGED
from strategies.mathematics.aggregation import Assignment, weighted_mean
from strategies.mathematics.clustering import linkage_matrix
from strategies.mathematics.meetings import add_meeting, mean_distances
from strategies.mathematics.similarity import Distances, cosine_to


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

    # --- the group graph ---------------------------------------------------------------------------------------

    def lacks_meetings(self, clients: Sequence[str]) -> bool:
        """Whether a pair among ``clients`` never met."""
        row = {client: index for index, client in enumerate(self.clients)}
        if self.meetings is None or any(client not in row for client in clients):
            return True
        rows = [row[client] for client in clients]
        return not self.meetings[np.ix_(rows, rows)].all()

    def after_meeting(self, clients: Sequence[str], distances: Distances, only_new: bool) -> DCPFLState:
        """With this round's ``distances`` of ``clients``, and with ``only_new`` just of pairs that never met before.

        The graph changes, so a proposal made from it must be made again.
        """
        total, meetings, known = add_meeting(
            self.total, self.meetings, self.clients, clients, distances, fill_in=only_new
        )
        return replace(self, total=total, meetings=meetings, clients=known, proposal=None, proposed=None)

    def distances(self) -> Distances | None:
        """D (n × n), with estimates for pairs that never met; None before the first round."""
        if self.total is None or self.meetings is None:
            return None
        return mean_distances(self.total, self.meetings)

    def graph(self) -> tuple[Distances, NDArray[np.float64]] | None:
        """D and the hierarchical group graph of ``clients`` as SciPy's linkage matrix; None before it was made."""
        distances = self.distances()
        return None if distances is None or self.graph_round is None else (distances, linkage_matrix(distances))

    def groups_of(self, least: int) -> Callable[[float], Assignment] | None:
        """The group (n,) of each client of the graph by γ̃, of ``least`` samples or more; None before the graph."""
        if (graph := self.graph()) is None:
            return None
        distances, linkage = graph
        # A checkpoint of an older release knows of no samples.
        samples = np.array([self.samples.get(client, 0) for client in self.clients])
        return partial(groups_of_at_least, linkage, distances=distances, samples=samples, least=least)

    def by_client(self, labels: Assignment) -> dict[str, int]:
        """The group of each client of the graph, from its labels (n,)."""
        return dict(zip(self.clients, labels.tolist(), strict=True))

    def divided(self, parts: Mapping[str, int]) -> set[int]:
        """The groups that a finer structure takes apart."""
        pairs = {(self.assignment[client], part) for client, part in parts.items()}
        return {group for group, count in Counter(group for group, _ in pairs).items() if count > 1}

    def parents(self, parts: Mapping[str, int]) -> list[int]:
        """The group that each part of a finer structure comes from, in the order of the parts."""
        found = {part: self.assignment[client] for client, part in parts.items()}
        return [found[part] for part in sorted(found)]

    def put_off(self, until: int) -> DCPFLState:
        """The next trial is due from round ``until`` on, and is to be proposed anew."""
        return replace(self, trial_round=until, proposal=None, proposed=None, undecided=0)

    # --- the record --------------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """The last round for its record, as JSON; the group graph only in the round in which it was made."""
        last, loss = self.history[-1] if self.history else (0, None)
        # A round with too few replies has a trial, but no loss.
        verdict = self.verdict if self.verdict is not None and self.verdict.round >= last else None
        graph = self.graph() if self.graph_round == last else None
        return {
            "gamma": self.gamma,
            "loss": loss,
            "period_end": self.period_end,
            "trial": None if verdict is None else verdict.summary(),
            "communication_rounds": self.communication_rounds,
            "exchanging": sum(not self.is_alone(client) for client in self.assignment),
            "groups": [
                {"size": size, **asdict(group)} for size, group in zip(self.sizes.tolist(), self.groups, strict=True)
            ],
            "graph": None if graph is None else {"clients": self.clients, "linkage": graph[1].tolist()},
        }


def rows_of(W: Matrix, rows: list[int]) -> Matrix:
    """Some rows of W; W itself where they are all of it, so that a thousand models are not copied for nothing."""
    return W if rows == list(range(len(W))) else W[rows]


def verdict_of(state: DCPFLState, round_: int) -> Verdict | None:
    """The verdict of a round's trial; None where there was none in that round."""
    return state.verdict if state.verdict is not None and state.verdict.round == round_ else None


def with_whole_models(state: DCPFLState, round_: int, replied: Sequence[str], lost: set[str]) -> DCPFLState:
    """Account for who got the whole model in which round, and ``lost`` it; in one group for all, everybody is in it."""
    if state.gamma == 1:
        state = replace(state, assignment={**dict.fromkeys(replied, 0), **state.assignment})
    verdict = verdict_of(state, round_)
    tried = set(verdict.clients) if verdict else set()
    whole = {client: at for client, at in state.whole.items() if client not in lost}
    for client in replied:
        if client in state.assignment and (client in tried or state.is_sent_whole(client)):
            whole[client] = round_
    return replace(state, whole=whole)


def restructured(state: DCPFLState, round_: int, proposal: Proposal) -> DCPFLState:
    """The proposed structure; groups that it leaves whole go on as they are, the others begin with a full round.

    What these begin with are the proposed models, or where none were made that of the group they come from, and its
    slow layers. A client that is not in the graph stays in its group, and has none once that is divided.
    """
    parts = proposal.assignment
    members = Counter(parts.values())
    divided = state.divided(parts)
    origins = state.parents(parts)
    proposed = state.centers[origins] if state.proposed is None else state.proposed
    origins += sorted(set(range(len(state.groups))) - set(origins))  # groups of clients that are not in the graph
    part_of = {origin: part for part, origin in enumerate(origins) if origin not in divided}
    others = {client: part_of[g] for client, g in state.assignment.items() if client not in parts and g in part_of}
    return replace(
        state,
        gamma=proposal.gamma,
        assignment={**parts, **others},
        centers=np.stack([proposed[k] if g in divided else state.centers[g] for k, g in enumerate(origins)]),
        groups=[
            state.groups[g] if g not in divided else Group(round_, state.groups[g].slow if members[k] > 1 else [])
            for k, g in enumerate(origins)
        ],
        trial_round=None,
        period_end=None,
        proposal=None,
        proposed=None,
        undecided=0,
    )


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
