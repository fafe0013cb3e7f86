"""Joint gradient and loss: each device chooses its cluster, by how well and how alike the clusters' models learn.

Lin, Chen, Yang, Wu, Liu: A Joint Gradient and Loss Based Clustered Federated Learning Design. 2023.
https://arxiv.org/abs/2311.13665

Sections and equations are the paper's. With λ = 0 the loss alone decides: IFCA (Ghosh, Chung, Yin, Ramchandran: An
Efficient Framework for Clustered Federated Learning. NeurIPS 2020). Where this differs from the paper:

- The sign. Eq. 3 is printed as cos(∇L, Δ), with Δ called the average gradient; but a model moves against its
  gradient, and with the printed sign a device would avoid its own cluster. Here S = cos(−∇L, Δ).
- The loss. Eq. 1 is the sum over the mini-batch, here it is the mean unless ``batch_loss="sum"``: with the sum of 100
  samples λ weighs the similarity a hundredth as much, and the loss alone decides.
- A cluster is empty when it is no known device's last choice. With all devices in every round this is the paper's
  rule; with a sample of them, a cluster that was merely not sampled is left alone.

The device's part is `bouquet.strategies.gradient_loss.device`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np

from bouquet.common import protocol
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import ClientReply, Instruction, Payload
from bouquet.common.protocol.capabilities import TRAINING
from bouquet.strategies.base.groups import NumClusters
from bouquet.strategies.base.method import Outcome, count_moved
from bouquet.strategies.base.options import Count, Share
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.gradient_loss import wire as choice
from bouquet.strategies.gradient_loss.answers import Answers, mean_gap
from bouquet.strategies.gradient_loss.state import GradientLossState
from bouquet.strategies.gradient_loss.wire import BatchLoss, Choice, LocalUpdate, Similarity, center_record, step_record
from bouquet.strategies.mathematics.initialisation import random_models

EmptyCluster = Literal["tell", "leave"]
ChoiceBatches = Count | Literal["all"]

TOLD_STREAM = 2  # beside the base's streams of sampling


@dataclass(eq=False, repr=False)
class GradientLoss(MethodStrategy[GradientLossState]):
    """All K models go to the devices; each chooses its cluster and trains that one's model (Algorithm 1).

    Parameters
    ----------
    num_clusters : int | "auto", default "auto"
        K. The models start from K different random initialisations. ``"auto"`` begins with one model, of which more are
        made where the devices' updates show groups (`bouquet.strategies.base.groups`).
    gradient_weight : float, default 0.2
        λ of Eq. 4, 0 to 1; 0 is IFCA.
    similarity : {"cosine", "euclidean"}, default "cosine"
        S of Eq. 3: the ``"cosine"`` of −∇L and Δ, or the negative ``"euclidean"`` distance between them.
    local_update : {"step", "epochs"}, default "epochs"
        One gradient ``"step"`` on the mini-batch that decided (Eq. 5; ``train.local_epochs`` does not count then), or
        ``"epochs"``: ``train.local_epochs`` passes over the device's data. The paper's one step a round needs many more
        rounds than any other method here (docs/defaults.md).
    choice_batches : int | "all", default 1
        So many mini-batches of the round decide, as far as the device has them; a step is still taken on the first. The
        paper's 1 is little where a mini-batch is small. ``"all"`` are all of the device's training data, which
        without a gradient are judged in evaluation mode.
    batch_loss : {"mean", "sum"}, default "mean"
        L of Eq. 1 and 4: the mean over the samples that decide, or the paper's ``"sum"``. The step is the mean's.
    empty_cluster : {"tell", "leave"}, default "tell"
        What becomes of a cluster that nobody chose. ``"tell"``: a device is told to train it (II-C); ``"leave"``, as
        IFCA's authors do.
    """

    state_class = GradientLossState
    clusters_chosen_on = "the device's mini-batch; for the last test all of its training data"

    num_clusters: NumClusters = "auto"
    gradient_weight: Share = 0.2
    similarity: Similarity = "cosine"
    local_update: LocalUpdate = "epochs"
    choice_batches: ChoiceBatches = 1
    batch_loss: BatchLoss = "mean"
    empty_cluster: EmptyCluster = "tell"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trainings = "a step on a mini-batch" if self.local_update == "step" else "1"
        self.takes_steps = self.local_update == "epochs"
        # Where clusters come and go, the one that an older task names may be another by now.
        self.takes_late_replies = self.num_clusters != "auto"
        if self.choice_batches == "all":
            self.clusters_chosen_on = "the device's training data"

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> GradientLossState:
        """K different initial models; the first is the given one."""
        count = 1 if self.num_clusters == "auto" else self.num_clusters
        centers = random_models(initial, layout, count, self.seed, self.draw_model)
        # numpy.unique over rows would make a dtype of d fields: gigabytes for ResNet-18.
        if any(np.array_equal(one, other) for one, other in combinations(centers, 2)):
            self.warn(f"Some of the {self.num_clusters} initial models are equal: no device can tell them apart.")
        return GradientLossState(centers)

    def plan(self, state: GradientLossState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """Send the models of all clusters (II-B1), and Δ to a device that does not have what it needs to compute it."""
        forced = self._told(state, round_, clients)
        centers = _centers_of(state)
        steps: dict[str, Payload] = {}
        if state.previous is not None:
            steps = {step_record(k): Payload(step, exact=True) for k, step in enumerate(state.centers - state.previous)}
        # A device that compared the centers of the round before keeps them.
        holds = {client for client in clients if 0 <= state.held.get(client, -1) == state.version - 1}
        return {c: self._ask(state, centers if c in holds else {**centers, **steps}, forced.get(c)) for c in clients}

    def plan_evaluate(self, state: GradientLossState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """The models of all clusters."""
        return dict.fromkeys(clients, self._ask(state, _centers_of(state)))

    def update(self, state: GradientLossState, round_: int, replies: Replies) -> Outcome[GradientLossState]:
        """The identities that the devices answer (Eq. 4), and the means of their models (Eq. 6, 7)."""
        answers = Answers.read(replies, len(state.centers))
        if not answers.trained:
            return Outcome(state, answers.refused)
        moved = count_moved(state.assignment, answers.chosen)
        compared = [client for client in answers.chosen if client not in replies.late]  # these centers
        trained, held = answers.trained, {**state.held, **dict.fromkeys(compared, state.version)}
        before = replace(state, assignment={**state.assignment, **answers.chosen})
        if self.num_clusters == "auto":
            before = self._find(state, before, answers, self.seed + round_)
            trained = {client: before.assignment[client] for client in trained}
            if before.centers is not state.centers:
                held = {}  # what devices keep are other clusters' models
        count = len(before.centers)
        after = replace(
            before,
            # One that nobody trained stays as it was.
            centers=self.aggregation.cluster_means(
                answers.replies.W, list(trained.values()), count, previous=before.centers
            ),
            previous=before.centers if self.gradient_weight else None,
            version=state.version + 1,
            held=held,
            last={
                "members": np.bincount([before.assignment[client] for client in trained], minlength=count).tolist(),
                "empty": len(_empty(before)),
                "told": answers.count(choice.TOLD),
                "moved": moved,
                "state_lost": answers.count(protocol.STATE_LOST),
                "loss_gap": mean_gap(replies, choice.LOSS_GAP),
                "similarity_gap": mean_gap(replies, choice.SIMILARITY_GAP),
            },
        )
        return Outcome(after, answers.refused)

    def trained_record(self, reply: ClientReply) -> str:
        """The cluster that the device says it trained."""
        return center_record(int(reply.metrics.get(choice.TRAINED, -1)))

    def device_needs(self) -> Mapping[str, str]:
        """For the choice."""
        return {TRAINING: "the device compares models on mini-batches of its own training, by loss and gradient."}

    def needs_scores(self) -> str:
        """For the choice."""
        return "the device says which model it chose, by the losses of its own data."

    def record(self, state: GradientLossState) -> dict[str, Any]:
        """Of the last round: devices by cluster, empty clusters, how many devices were told, and moved.

        ``loss_gap`` and ``similarity_gap`` say how far apart the K models were to a device, in the mean over devices:
        what it had to choose by. Identities are the ``assignment`` of each round.
        """
        return {"num_clusters": len(state.centers), "log_p": state.groups.log_p, **state.last}

    def _find(
        self, state: GradientLossState, chosen: GradientLossState, answers: Answers, seed: int
    ) -> GradientLossState:
        """The clusters ``chosen`` by the devices, and more where they clearly are several; those of nobody end."""
        moved = {c for c, k in state.assignment.items() if chosen.assignment[c] != k}
        records = {client: center_record(k) for client, k in answers.trained.items()}
        groups = state.groups.without(moved).after_round(
            answers.replies, chosen.assignment, chosen.assignment, state.centers, seed, self.aggregation, records
        )
        same = groups.origins == [*range(len(state.centers))]
        centers = state.centers if same else state.centers[groups.origins]
        return replace(chosen, centers=centers, assignment=groups.assignment, groups=groups.groups)

    # --- details ---------------------------------------------------------------------------------------------

    def _ask(self, state: GradientLossState, models: Mapping[str, Payload], cluster: int | None = None) -> Instruction:
        options = Choice(
            len(state.centers),
            state.version,
            self.gradient_weight,
            self.similarity,
            self.local_update,
            cluster,
            choice.ALL_BATCHES if self.choice_batches == "all" else self.choice_batches,
            self.batch_loss,
        )
        return Instruction(models=models, procedure=choice.PROCEDURE, config=options.to_config())

    def _told(self, state: GradientLossState, round_: int, clients: Sequence[str]) -> dict[str, int]:
        """Section II-C: for each empty cluster one randomly drawn device, which will train it.

        Of few devices no more than half: else nobody would train what it chose.
        """
        if not state.assignment or self.empty_cluster != "tell":
            return {}
        drawn = np.random.default_rng([self.seed, round_, TOLD_STREAM]).permutation(sorted(clients))
        return dict(zip(drawn[: len(clients) // 2].tolist(), _empty(state), strict=False))


@dataclass(eq=False, repr=False)
class IFCA(GradientLoss):
    """The choice by the loss alone, on all of a device's training data, as IFCA's Algorithm 1 and its authors' code.

    Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning. NeurIPS 2020.
    """

    gradient_weight: float = field(default=0.0, init=False)
    choice_batches: ChoiceBatches = "all"


def _empty(state: GradientLossState) -> list[int]:
    """The clusters that are nobody's last choice."""
    return sorted(set(range(len(state.centers))) - set(state.assignment.values()))


def _centers_of(state: GradientLossState) -> dict[str, Payload]:
    return {center_record(k): Payload(center) for k, center in enumerate(state.centers)}
