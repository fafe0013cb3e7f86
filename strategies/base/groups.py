"""The number of clusters, found while a run goes on: which clusters are several, from the updates of their clients.

Everything begins as one cluster, and every cluster is looked at in every round. What is known of a client is where its
data pull its cluster's model: a mean of its updates, less those of the cluster. A cluster is split where its clients
clearly are several groups (`bouquet.strategies.mathematics.groups`) in two rounds running that agree, and where that
pays. Groups can be of no use: where each device has its own mix of classes, those with similar mixes are a group, and
do better with what all have learned. So a cluster is divided, or two are joined, only where clearly more devices err
less with the model that they would then have than err more (`Trial`). While there is no trial, it costs the devices and
the wire nothing.

What one device can do: its update counts at most twice the median one, so that it can come into a cluster of its own,
but hardly move who is with whom among the others.

A method with clusters calls `Groups.after_round` between its E-step and its M-step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from bouquet.common.metrics import adjusted_rand_index
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import JUDGED
from bouquet.strategies.base.options import Count
from bouquet.strategies.base.replies import Matrix, Replies
from bouquet.strategies.mathematics.aggregation import Assignment
from bouquet.strategies.mathematics.groups import LOG_LEVEL, WIDTH, deviations, find_groups, sketch
from bouquet.strategies.mathematics.robust import Aggregation
from bouquet.strategies.mathematics.similarity import euclidean_distances

MEMORY = 5  # rounds that a client's direction is the mean of, about
SAME = 0.4  # adjusted Rand index of the groups of two rounds, from which on they are the same
FEWEST = 4  # clients that can be several groups
PULL = 4.0  # robust deviations from which on a client's data pull it to another cluster
DIVIDED, JOINED = 1.0, 2.0  # deviations of chance by which more devices must gain than lose
LONGEST = 10  # rounds between trials, at most; of one pair; and before new clusters are asked whether to join

NumClusters = Count | Literal["auto"]
Means = Callable[[NDArray[np.int64]], Vector]  # of the models in these rows of the replies: their mean (d,)


class Found(NamedTuple):
    """The clusters after a round: of every client, and of each cluster the old one that it is or was part of (K,)."""

    groups: Groups
    assignment: dict[str, int]
    origins: list[int]

    def labels(self, clients: Sequence[str]) -> Assignment:
        """The clusters (n,) that these clients' models count in."""
        return np.array([self.assignment[client] for client in clients], dtype=np.int64)


@dataclass(frozen=True)
class Trial:
    """What clients are to judge in the next round, and what was said of it so far.

    A model on trial is the mean of the last models of those who would share it (`with_models`). It is sent beside the
    model in use (`bouquet.strategies.base.filters.trial`). A device answers with one integer
    (`bouquet.client.rounds.rival`), and has one vote, whatever it sends.
    """

    rows: dict[str, int] = field(default_factory=dict)  # client → its model's row
    models: Matrix | None = None  # (m, d)
    counts: list[int] = field(default_factory=list)  # of how many replies each of them is the mean, (m,)
    pair: list[int] = field(default_factory=list)  # the clusters that would be one; none where they would be divided
    votes: dict[str, int] = field(default_factory=dict)  # client → 1 where it errs less with that model, −1, or 0
    silent: list[str] = field(default_factory=list)  # clients with no app of Bouquet's, or in a run that counts nothing
    refused: int = 0  # divisions in a row that did not pay; after the n-th none is asked for in n rounds
    wait: int = 0
    quiet: int = 0
    tried: int = 0  # pairs since the clusters last changed

    def heard(self, replies: Replies) -> Trial:
        """With what the devices of a round say."""
        asked = [one for one in replies.received if one.client in self.rows and one.client not in replies.late]
        said = ((one.client, one.config.get(JUDGED)) for one in asked)
        votes = {client: (vote > 0) - (vote < 0) for client, vote in said if isinstance(vote, int)}
        silent = {*self.silent, *(one.client for one in asked)} - votes.keys()
        return replace(self, votes={**self.votes, **votes}, silent=sorted(silent))

    def pays(self, clients: Collection[str], log_p: float) -> bool | None:
        """Whether clearly more of these gain than lose; None before half of them said so, and where it is not clear.

        Groups (``log_p``) and what devices say of them are two witnesses: what both are by chance has to be improbable.
        Where at least half cannot vote, and more than do, the test decides: a division pays, and nothing is joined.
        """
        said = [self.votes[client] for client in clients if client in self.votes]
        if (silent := sum(client in self.silent for client in clients)) > len(said) and 2 * silent >= len(clients):
            return not self.pair and log_p < LOG_LEVEL
        if 2 * len(said) < len(clients):
            return None
        gain, lose = said.count(1), said.count(-1)
        is_clear = gain - lose >= (JOINED if self.pair else DIVIDED) * math.sqrt(max(1, gain + lose))
        is_clear = is_clear and log_p + float(binom.logsf(gain - 1, gain + lose, 0.5)) < LOG_LEVEL
        return is_clear if is_clear or gain <= lose else None

    def next(
        self, divided: dict[str, int], judged: set[str], refused: bool, assignment: Mapping[str, int], centers: Matrix
    ) -> Trial:
        """What is asked after a round that left the clusters as they were, or of `Trial()` after one that did not.

        Clients that are ``divided`` are asked whether that pays. Without such, two clusters are asked whether to join;
        the ``centers`` (K × p) have parameters alone. Votes of the ``judged`` stay.
        """
        refusals = self.refused + refused
        wait = min(refusals, LONGEST) if refused else max(0, self.wait - 1)
        pair, tried, quiet = self.pair if judged else [], self.tried, self.quiet + 1
        if not pair and (wait or not divided) and quiet > min(tried or LONGEST, LONGEST) and len(centers) > 1:
            distances = euclidean_distances(centers)
            pairs = sorted(combinations(range(len(centers)), 2), key=lambda two: float(distances[two]))
            pair, tried, quiet = [*pairs[tried % len(pairs)]], tried + 1, 0
        rows = {c: 0 for c, k in assignment.items() if k in pair} if pair else {} if wait else divided
        votes = {client: vote for client, vote in self.votes.items() if client in judged and pair == self.pair}
        return Trial(rows, None, [], pair, votes, self.silent, refusals, wait, quiet, tried)

    def with_models(
        self, replies: Replies, earlier: Trial, assignment: Mapping[str, int], centers: Matrix, means: Means
    ) -> Trial:
        """With the models of those who replied; who would share one that nobody ever sent is not asked.

        Where few of a group replied, their mean says little. So what the group was ``earlier`` beside the model that
        its devices had been sent, of ``centers`` (K, d), counts for those who did not reply.
        """
        there = np.array([i for i, c in enumerate(replies.clients) if c in self.rows and c not in replies.late], int)
        cluster = {c: 0 if self.pair else assignment[c] for c in self.rows}
        # A checkpoint of an earlier release has no counts.
        before = earlier.rows if earlier.counts and not (self.pair or earlier.pair) else {}
        here = {k: there[[cluster[replies.clients[i]] == k for i in there]] for k in {*cluster.values()}}
        base = cache(lambda k: means(here[k]))
        found, models, counts = dict[str, int](), list[Vector](), list[int]()
        for k, row in sorted({(cluster[c], row) for c, row in self.rows.items()}):
            came = here[k][[self.rows[replies.clients[i]] == row for i in here[k]]]
            members = [c for c in self.rows if self.rows[c] == row]
            known = Counter(before[c] for c in members if c in before)
            if not len(came) and not (len(here[k]) and known):
                continue
            model, count = means(came) if len(came) else base(k), len(came)
            if known and earlier.models is not None and count < len(members):
                then = known.most_common(1)[0][0]
                kept = min(earlier.counts[then], len(members) - count)
                beside = count * (model - base(k)) + kept * (earlier.models[then] - centers[k])
                model, count = base(k) + beside / np.float32(count + kept), count + kept
            found |= dict.fromkeys(members, len(models))
            models.append(model)
            counts.append(count)
        return replace(self, rows=found, models=np.stack(models) if models else None, counts=counts)


@dataclass(frozen=True)
class Groups:
    """What is known of each client since it came to its cluster, and the groups that were clear in the last round."""

    directions: dict[str, NDArray[np.float16]] = field(default_factory=dict)  # client → sketch of where its data pull
    rounds: dict[str, int] = field(default_factory=dict)  # client → of how many rounds that is the mean
    proposed: dict[str, int] = field(default_factory=dict)
    log_p: float | None = None  # of the clearest groups in a cluster, in the last round
    trial: Trial = field(default_factory=Trial)
    pulled: list[str] = field(default_factory=list)  # clients whose data pull them to another cluster: they may choose

    def e_step(
        self,
        replies: Replies,
        assignment: Mapping[str, int],
        nearest: Assignment,
        centers: Matrix,
        seed: int | None,
        aggregation: Aggregation,
        by_examples: bool = False,
    ) -> Found:
        """The clusters where the server chooses them, from the ``nearest`` center (n,) of each model that came.

        Where their number is given there is no ``seed``, and that is all. Else it is for newcomers: who has a cluster
        stays there, because where a model ended says little of where its data pull.
        """
        by_model = dict(zip(replies.clients, nearest.tolist(), strict=True))
        if seed is None:
            return Found(self, {**assignment, **by_model}, [*range(len(centers))])
        clusters = {**by_model, **assignment}
        return self.after_round(replies, assignment, clusters, centers, seed, aggregation, by_examples=by_examples)

    def after_round(
        self,
        replies: Replies,
        before: Mapping[str, int],
        assignment: Mapping[str, int],
        centers: Matrix,
        seed: int,
        aggregation: Aggregation,
        records: Mapping[str, str] | None = None,
        by_examples: bool = False,
    ) -> Found:
        """What a round's replies say of the clusters.

        ``before`` is the cluster whose model every known client is sent, ``assignment`` that of each after the E-step,
        ``centers`` (K × d) are the models that were sent, ``aggregation`` makes the models that are on trial,
        where clients weigh by their numbers of samples with ``by_examples``.
        ``records`` names for each client the record of the model that it trained, where devices are sent all models
        and choose.
        """
        layers = _layers(replies.layout)
        known = self._add(replies, before, assignment, records or {})
        directions = known.directions
        clusters, origins = dict(assignment), [*range(len(centers))]
        proposed, lowest, trial = dict[str, int](), 0.0, self.trial.heard(replies)
        judged, several, is_refused, divided = set[str](), set[str](), False, dict[str, int]()
        for k in range(len(centers)):
            members = [client for client in sorted(directions) if assignment[client] == k]
            if len(members) < FEWEST:
                continue
            rows = np.stack([directions[client] for client in members]).astype(np.float32)
            structure = find_groups([rows[:, layer] for layer in layers], seed)
            lowest = min(lowest, structure.log_p)
            if not structure.is_seen:
                continue
            groups = dict(zip(members, structure.labels.tolist(), strict=True))
            is_due = not trial.pair and self._agrees(groups)
            pays = trial.pays(groups, structure.log_p) if is_due else None
            if pays:
                clusters |= {client: len(origins) + group - 1 for client, group in groups.items() if group}
                origins += [k] * max(groups.values())
                continue
            judged |= {*groups} if is_due and pays is None else set()
            is_refused |= pays is False
            divided |= {client: k * len(directions) + group for client, group in groups.items()}
            proposed |= groups
            several |= {*groups} if structure.log_p < LOG_LEVEL else set()
        if trial.pair:
            members = [client for client in directions if assignment[client] in trial.pair]
            joins = trial.pays(members, -math.inf)
            if joins:
                clusters |= {client: trial.pair[0] for client in assignment if assignment[client] in trial.pair}
                directions = {client: one for client, one in directions.items() if client not in members}
            judged |= {*members} if joins is None and trial.quiet < LONGEST else set()  # else never asked of others
        pulled = set[str]() if records else _pulled(replies, directions, assignment, centers) - several
        # A cluster that nobody is in ends.
        number = {k: place for place, k in enumerate(sorted({*clusters.values()} or {0}))}
        origins = [origins[k] for k in number]
        if origins == [*range(len(centers))]:
            trial = trial.next(divided, judged, is_refused, assignment, replies.layout.parameters_of(centers))
        else:
            trial, pulled = Trial(silent=trial.silent), set()

        def means(of: NDArray[np.int64]) -> Vector:
            weights = replies.num_examples[of] if by_examples else None
            return aggregation.center(replies.W[of], weights)[0]

        trial = trial.with_models(replies, self.trial, assignment, centers, means)
        assignment = {client: number[k] for client, k in clusters.items()}
        return Found(Groups(directions, known.rounds, proposed, lowest, trial, sorted(pulled)), assignment, origins)

    def model_for(self, client: str) -> Vector | None:
        """What the client is to judge (d,); None where that is nothing."""
        trial = self.trial
        return trial.models[trial.rows[client]] if trial.models is not None and client in trial.rows else None

    def without(self, clients: Collection[str]) -> Groups:
        """Without what is known of these, who chose their clusters by themselves."""
        directions = {client: one for client, one in self.directions.items() if client not in clients}
        return replace(self, directions=directions, pulled=[client for client in self.pulled if client not in clients])

    def _add(
        self, replies: Replies, before: Mapping[str, int], assignment: Mapping[str, int], records: Mapping[str, str]
    ) -> Groups:
        """With a round's updates; of a client that came to another cluster nothing is known yet."""
        if len({*before.values(), *assignment.values()}) == 1:  # a newcomer is sent the only model, too
            before = assignment
        directions = {c: known for c, known in self.directions.items() if before.get(c) == assignment.get(c)}
        rounds = {client: self.rounds[client] for client in directions}
        # One matrix: each vector by itself would hold the memory page of an update that is freed.
        sketches = np.empty((len(replies), _layers(replies.layout)[-1].stop), dtype=np.float32)
        updates = {}
        for (client, update), row in zip(replies.each_update(records), sketches, strict=False):
            if client in before:
                row[:] = _sketched(replies.layout, update)
                updates[client] = row
        # Who is late began at an older model, which moves all who did alike: it is compared with who is as late.
        start = {client: (before[client], replies.late.get(client, 0)) for client in updates}
        for k, age in sorted({*start.values()}):
            here = [client for client in updates if start[client] == (k, age)]
            if len(here) < 2:
                continue
            rows = np.stack([updates[client] for client in here])
            for layer in _layers(replies.layout):
                rows[:, layer] = deviations(rows[:, layer])
            # Where few replied, their mean is not their cluster's, but by what is known of them so far off.
            known = [directions[client] for client in here if client in directions]
            rows += np.sum(known, axis=0, dtype=np.float32) / len(here)
            for client, row in zip(here, rows, strict=True):
                if assignment[client] == k:
                    rounds[client] = min(rounds.get(client, 0) + 1, MEMORY)
                    before_it = directions.get(client, row)
                    directions[client] = (before_it + (row - before_it) / rounds[client]).astype(np.float16)
        return replace(self, directions=directions, rounds=rounds)

    def _agrees(self, groups: Mapping[str, int]) -> bool:
        """Whether the last round had the same groups, of at least half of these clients."""
        both = [client for client in groups if client in self.proposed]
        if len(both) < max(2, len(groups) / 2):
            return False
        now, then = ([known[client] for client in both] for known in (groups, self.proposed))
        agreement = adjusted_rand_index(now, then)
        return agreement is not None and agreement >= SAME


def _pulled(
    replies: Replies, directions: Mapping[str, NDArray[np.float16]], assignment: Mapping[str, int], centers: Matrix
) -> set[str]:
    """Clients whose data pull them from their own center to another one far more than others are."""
    clients = list(directions)
    if len(centers) < 2 or len(clients) < FEWEST:
        return set()
    known = np.stack([directions[client] for client in clients]).astype(np.float32)
    own = np.array([assignment[client] for client in clients])
    models = np.stack([_sketched(replies.layout, center) for center in centers])
    layers, count = _layers(replies.layout), len(centers)
    cosines = np.zeros((len(clients), count, count))  # of a client's direction and the way from one center to another
    for layer in layers:
        dots = known[:, layer] @ models[:, layer].T
        lengths = np.linalg.norm(known[:, layer], axis=1)[:, None, None] * euclidean_distances(models[:, layer])
        ways = dots[:, None, :] - dots[:, :, None]
        cosines += np.divide(ways, lengths, out=np.zeros_like(cosines), where=lengths > 0) / len(layers)
    # What is usual on each way in each of the clusters, (K, K, K); nobody follows a device that is alone.
    usual = np.zeros((count, count, count))
    large = [k for k in range(count) if np.sum(own == k) > 1]
    for k in large:
        usual[k] = np.median(cosines[own == k], axis=0)
    beyond = {
        (i, k): cosines[i, own[i], k] - usual[own[i], own[i], k]
        for i in range(len(clients))
        for k in large
        if own[i] != k and own[i] in large
    }
    spread = 1.4826 * float(np.median(np.abs([*beyond.values()]))) if beyond else 0.0
    pulled = set[str]()
    for (i, k), much in beyond.items():
        half_way = (usual[k, own[i], k] - usual[own[i], own[i], k]) / 2
        if much > max(PULL * spread, half_way) and spread and half_way > 0:
            pulled.add(clients[i])
    return pulled


def _sketched(layout: ParameterLayout, model: Vector) -> Vector:
    """The parameters of each layer of a model or an update (d,), sketched, one after another."""
    counted = layout.parameter_columns
    columns = (columns[counted[columns]] for columns in layout.layer_columns.values())
    return np.concatenate([sketch(model[of_layer]) for of_layer in columns])


def _layers(layout: ParameterLayout) -> list[slice]:
    """Where each layer is in a sketch, of those that have parameters."""
    counted = layout.parameter_columns
    widths = [min(WIDTH, int(counted[columns].sum())) for columns in layout.layer_columns.values()]
    ends = np.cumsum(widths).tolist()
    return [slice(end - width, end) for end, width in zip(ends, widths, strict=True) if width]
