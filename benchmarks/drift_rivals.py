"""FedDrift and CFL-GP on the fleet that changes of `benchmarks.changing_fleet`, each a short strategy of one's own.

    python -m benchmarks.drift_rivals RUNS.csv --seeds 3001 3002      # what RUNS.csv has already is not run again

From the repository's root; RUNS.csv as there, and on standard output the summary beside the published runs of ours. A
rival with options: ``--rivals "feddrift strategy.delta=0.1"``.

What was read: of FedDrift its authors' code (github.com/microsoft/FedDrift, FedAvgEnsDataLoader.py, algorithm
``H_A_F``); of CFL-GP the abstract and its authors' code and poster
(github.com/Heasung-Kim/clustered-federated-learning-via-gradient-based-partitioning). Neither paper's pseudo-code. What
differs from that is with each class. Numbers that are not the authors' were chosen on seeds 3101 and 3102.
"""

import argparse
import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from benchmarks.changing_fleet import DRIFT, METHODS, completed, summary
from bouquet.client.procedures import standard
from bouquet.client.rounds.session import Session
from bouquet.client.training import evaluation
from bouquet.common.protocol import NUM_EXAMPLES
from bouquet.strategies import Instruction, Matrix, MethodStrategy, ParameterLayout, Payload, Replies, Vector, one_model
from bouquet.strategies.base.method import Ask
from bouquet.strategies.base.options import Count, Share
from bouquet.strategies.mathematics.clustering import hierarchical_clusters, kmeans
from bouquet.strategies.mathematics.initialisation import random_models
from bouquet.strategies.mathematics.robust import Aggregation

PUBLISHED = Path("experiments/results/benchmarks/changing-fleet-runs.csv")
CLASSES = {"feddrift": "FedDrift", "cfl-gp:4": "GradientPartitioning"}
RIVALS = (
    "feddrift",
    "feddrift strategy.step=4",
    "feddrift strategy.step=1 strategy.delta=0.2",
    "cfl-gp:4",
    "cfl-gp:4 strategy.criterion=turns",
)
ACCURACIES = "accuracies"  # key of the reply's config


# --- FedDrift ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DriftState:
    """Models (K, d), how many clients trained each in how many time steps, and of each client model and accuracy."""

    centers: Matrix
    held: list[int]
    assignment: dict[str, int] = field(default_factory=dict)
    reached: dict[str, float] = field(default_factory=dict)  # of its best model when the time step began


@dataclass(eq=False, repr=False)
class FedDrift(MethodStrategy[DriftState]):
    """A client that no model fits any more gets its own; models that are as good on each other's data become one.

    Jothimurugesan, Hsieh, Wang, Joshi, Gibbons: Federated Learning under Distributed Concept Drift. AISTATS 2023.
    https://arxiv.org/abs/2206.00799

    Every client begins with a model of its own. At the begin of each time step all of them test all models on their
    newest data, and `next_step` follows; inside of it each model is trained by its clients as in FedAvg.

    Parameters
    ----------
    delta : float, default 0.4
        δ, in accuracy: by how much a client's best model must be worse than in the step before to be a drift, and how
        far apart models may be that become one. The authors' values are .04 to .20, by data set. Here clients know by
        heart what they judge by: of .05 to .6 those from .3 to .5 were best, and .2 where a step is one round.
    step : int, default 5
        Rounds in a time step. New data come with each, in the authors' example after 200 rounds. With 5 the changes of
        the benchmark, in rounds 11 and 16, fall on the begin of a step, as theirs do; with 4 they fall inside of one.

    Where it differs from the authors' code: a client trains and judges by the data that it has now, not also by those
    of earlier steps. So a model that no client has at the moment becomes one with no other, and waits for a client that
    it fits. There is no cap on the number of models, and so none is evicted. A client that comes later, of which they
    say nothing, takes the model that is best for it. A client that drifted is alone for one step, their W = 1.
    """

    state_class = DriftState

    delta: Share = 0.4
    step: Count = 5

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> DriftState:
        return DriftState(initial[None], [0])

    def prepare(self, state: DriftState, round_: int, clients: Sequence[str], ask: Ask) -> DriftState:
        if not state.assignment:
            own = {client: model for model, client in enumerate(clients)}
            return DriftState(np.tile(state.centers, (len(clients), 1)), [1] * len(clients), own)
        begins = (round_ - 1) % self.step == 0
        asked = [client for client in clients if begins or client not in state.assignment]
        if not asked:
            return state
        models = {f"model-{k}": Payload(center) for k, center in enumerate(state.centers)}
        question = Instruction(models=models, upload=(), procedure="benchmarks.drift_rivals")
        replies = ask(dict.fromkeys(asked, question))
        found = np.array([reply.config[ACCURACIES] for reply in replies.received], dtype=np.float64)
        if begins:
            return next_step(state, replies.clients, found, replies.num_examples, self.delta)
        best = zip(replies.clients, found.argmax(axis=1).tolist(), strict=True)
        return replace(state, assignment={**state.assignment, **dict(best)})

    def plan(self, state: DriftState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        return own_models(state, clients)

    def update(self, state: DriftState, round_: int, replies: Replies) -> DriftState:
        return replace(state, centers=means_by_samples(state, replies, self.aggregation))


def next_step(
    state: DriftState,
    clients: Sequence[str],
    accuracies: NDArray[np.float64],
    samples: NDArray[np.int64],
    delta: float,
) -> DriftState:
    """The models and who has which in a time step that begins, by ``accuracies`` (n, K) on n clients' ``samples`` (n,).

    A drift is where a client's best accuracy is more than ``delta`` less than when the last step began.
    """
    best, now = accuracies.argmax(axis=1), accuracies.max(axis=1)
    drifted = np.array([state.reached.get(client, 0.0) for client in clients]) - now > delta
    used = np.unique(best[~drifted])
    held = np.array(state.held) + np.bincount(best[~drifted], minlength=len(state.held))
    group = np.arange(len(state.centers))
    if len(used) > 1:
        apart = model_distances(accuracies[~drifted][:, used], np.searchsorted(used, best[~drifted]), samples[~drifted])
        labels = hierarchical_clusters(apart, linkage="complete", threshold=delta)
        group[used] = [used[labels == label][0] for label in labels]
    kept, place = np.unique(group, return_inverse=True)
    centers = [np.average(state.centers[group == k], axis=0, weights=np.maximum(held[group == k], 1)) for k in kept]
    together = [int(held[group == k].sum()) for k in kept]
    assignment, fresh = {**state.assignment}, len(kept)
    for client, model, drifts in zip(clients, best, drifted, strict=True):
        assignment[client] = fresh if drifts else int(place[model])
        if drifts:  # from the model that was best, and alone until the next step
            centers, together, fresh = [*centers, state.centers[model]], [*together, 1], fresh + 1
    reached = {**state.reached, **dict(zip(clients, now.tolist(), strict=True))}
    silent = {client: int(place[model]) for client, model in state.assignment.items() if client not in clients}
    return DriftState(np.stack(centers).astype(np.float32), together, assignment | silent, reached)


def model_distances(
    accuracies: NDArray[np.float64], labels: NDArray[np.int64], samples: NDArray[np.int64]
) -> NDArray[np.float64]:
    """How much worse, at most, a model is on another's data than on its own, (K, K); 0 where it is not.

    ``accuracies`` (n, K) of all models on n clients' data, whose own models are ``labels`` (n,).
    """
    of_model = np.eye(accuracies.shape[1])[labels] * samples[:, None]  # (n, K)
    on_data = accuracies.T @ of_model / of_model.sum(axis=0)  # of model i on the data of model j's clients
    worse = np.diag(on_data)[:, None] - on_data
    return np.maximum(np.maximum(worse, worse.T), 0)


def train(session: Session) -> Message:
    """On a device: the accuracy of each model that was sent, in order, on its training data; nothing is trained."""
    x, y = session.train_data
    models = [session.whole(f"model-{k}") for k in range(len(session.received.models))]
    scores = [evaluation.test(session.load(model), x, y, session.scorer).score for model in models]
    session.metrics[NUM_EXAMPLES] = len(y)
    return session.reply(config={ACCURACIES: scores})


evaluate = standard.evaluate


# --- CFL-GP -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProfileState:
    """Centers (K, d), client → cluster, and client → row of the ``profile`` (n, K · d)."""

    centers: Matrix
    assignment: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    profile: Matrix = field(default_factory=lambda: np.zeros((0, 0), np.float32))


@dataclass(eq=False, repr=False)
class GradientPartitioning(MethodStrategy[ProfileState]):
    """Clients are clustered by the gradients that they made over many rounds at common models (CFL-GP).

    Kim, Kim, de Veciana: Clustered Federated Learning via Gradient-based Partitioning. ICML 2024.
    https://proceedings.mlr.press/v235/kim24p.html

    Every ``period`` rounds all clients make a gradient at one of the K models. Means of these over rounds, for each
    model, are a client's column of the gradient profile matrix, which is projected on its first K left singular
    vectors. K-means of that are the clusters, numbered so that most clients keep theirs.

    Parameters
    ----------
    num_clusters : int, default 4
        K.
    period : int, default 2
        Rounds from one clustering to the next; the authors' default.
    criterion : {"first", "turns"}, default "first"
        The model of the gradients. It stays the ``"first"`` in the authors' code. Their matrix has room for all, and
        with the models taking ``"turns"`` their weights β make running means; with the first alone, β forgets.

    Where it differs from the authors' code: a gradient is of the criterion's model, where they take it of the client's
    own, which was far worse here. Clusters are looked at until the end; their default stops after half of the rounds,
    which no later change would survive. A client trains after the clustering, not before it. By their protocol
    ``model_averaging`` the update of a round's training is the gradient. Of a client that comes later, of which they
    say nothing, the first gradient at a model counts whole.
    """

    state_class = ProfileState

    num_clusters: Count = 4
    period: Count = 2
    criterion: Literal["first", "turns"] = "first"

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> ProfileState:
        return ProfileState(random_models(initial, layout, self.num_clusters, self.seed, self.draw_model))

    def prepare(self, state: ProfileState, round_: int, clients: Sequence[str], ask: Ask) -> ProfileState:
        if (round_ - 1) % self.period:
            return state
        model = (round_ - 1) // self.period % self.num_clusters if self.criterion == "turns" else 0
        replies = ask({client: one_model(state.centers[model]) for client in clients})
        weight = 1 / (round_ // (self.num_clusters * self.period) + 1)
        state = with_gradients(state, replies.clients, replies.updates, model, weight)
        found = partition(state.profile, self.num_clusters, self.seed)
        return replace(state, assignment=renumbered(state, found, self.num_clusters))

    def plan(self, state: ProfileState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        return own_models(state, clients)

    def update(self, state: ProfileState, round_: int, replies: Replies) -> ProfileState:
        return replace(state, centers=means_by_samples(state, replies, self.aggregation))


def with_gradients(
    state: ProfileState, clients: Sequence[str], gradients: Matrix, model: int, weight: float
) -> ProfileState:
    """With clients' gradients (n, d) at a model, which count by their ``weight`` β beside those of before, if any."""
    width, rows = gradients.shape[1], {**state.rows}
    for client in clients:
        rows.setdefault(client, len(rows))
    profile = np.zeros((len(rows), len(state.centers) * width), np.float32)
    if state.rows:
        profile[: len(state.profile)] = state.profile
    for client, gradient in zip(clients, gradients, strict=True):
        known = profile[rows[client], model * width : (model + 1) * width]
        known += (weight if known.any() else 1) * (gradient - known)
    return replace(state, rows=rows, profile=profile)


def partition(profile: Matrix, num_clusters: int, seed: int) -> NDArray[np.int64]:
    """The clusters (n,) of clients' rows (n, K · d), by k-means of their projection on the first singular vectors."""
    directions = np.linalg.svd(profile, full_matrices=False)[2][:num_clusters]
    return kmeans((profile @ directions.T).astype(np.float32), num_clusters, seed).assignment


def renumbered(state: ProfileState, found: NDArray[np.int64], count: int) -> dict[str, int]:
    """Client → cluster, of clusters ``found`` (n,) by row, with numbers by which most clients keep theirs."""
    overlap = np.zeros((count, count))
    for client, row in state.rows.items():
        if client in state.assignment:
            overlap[found[row], state.assignment[client]] += 1
    number = linear_sum_assignment(-overlap)[1]
    return {client: int(number[found[row]]) for client, row in state.rows.items()}


# --- both ---------------------------------------------------------------------------------------------------------


def own_models(state: DriftState | ProfileState, clients: Sequence[str]) -> Mapping[str, Instruction]:
    """Each client's own center, and the first one for who has none."""
    return {client: one_model(state.centers[state.assignment.get(client, 0)]) for client in clients}


def means_by_samples(state: DriftState | ProfileState, replies: Replies, aggregation: Aggregation) -> Matrix:
    """The centers (K, d), each the mean of its clients' models by their numbers of samples; one of nobody stays."""
    labels = [state.assignment.get(client, 0) for client in replies.clients]
    return aggregation.cluster_means(replies.W, labels, len(state.centers), replies.num_examples, state.centers)


# --- the benchmark ------------------------------------------------------------------------------------------------


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[3001, 3002])
    parser.add_argument("--changes", nargs="*", default=list(DRIFT))
    parser.add_argument("--rivals", nargs="*", default=RIVALS)
    options = parser.parse_args(arguments if arguments is None else list(arguments))
    wanted = [(change, rival, seed) for rival in options.rivals for change in options.changes for seed in options.seeds]
    classes = {rival: CLASSES[rival.split()[0]] for rival in options.rivals}
    strategies = {rival: f"strategy.name=benchmarks.drift_rivals:{name}" for rival, name in classes.items()}
    lines: list[dict[str, Any]] = completed(options.runs, wanted, strategies)
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        lines += [*csv.DictReader(file)]
    lines = [line for line in lines if int(line["seed"]) in options.seeds]
    csv.writer(sys.stdout, lineterminator="\n").writerows(summary(lines, (*METHODS, *options.rivals)))


if __name__ == "__main__":
    main()
