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
- Nobody needs all K models once its identity is settled: ``broadcast="adaptive"``.
- Two groups that begin on one model may stay there: the step of their 40 devices is less noisy, and so more like
  everybody's gradient, than that of a device that is told to train the empty cluster. ``empty_cluster="split"`` divides
  the cluster (`bouquet.strategies.gradient_loss.division`).

The device's part is `bouquet.strategies.gradient_loss.device`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from bouquet.common import protocol
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import Instruction, Payload
from bouquet.common.protocol.offers import TRAINING
from bouquet.strategies.base.method import Outcome, count_moved
from bouquet.strategies.base.options import Allowed, Count, Share, is_count
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.gradient_loss import wire as choice
from bouquet.strategies.gradient_loss.answers import Answers, identified, mean_gap
from bouquet.strategies.gradient_loss.relocation import relocated
from bouquet.strategies.gradient_loss.state import GradientLossState
from bouquet.strategies.gradient_loss.wire import (
    BatchLoss,
    Choice,
    LocalUpdate,
    Relocation,
    Similarity,
    center_record,
    step_record,
)
from bouquet.strategies.mathematics.initialisation import random_models

Broadcast = Literal["full", "adaptive"]
EmptyCluster = Literal["tell", "split", "leave"]
ChoiceBatches = Annotated[
    int | Literal["all"], Allowed("a whole number from 1, or 'all'", lambda value: value == "all" or is_count(value))
]
ChoiceMemory = Annotated[float, Allowed("a number from 0 to below 1", lambda value: 0 <= value < 1)]
# Infinity fits: then no rise of the loss makes a device look at all clusters again.

TOLD_STREAM = 2  # beside the base's streams of sampling


@dataclass(eq=False, repr=False)
class GradientLoss(MethodStrategy[GradientLossState]):
    """All K models go to the devices; each chooses its cluster and trains that one's model (Algorithm 1).

    Parameters
    ----------
    num_clusters : int, default 4
        K. The models start from K different random initialisations.
    gradient_weight : float, default 0.2
        λ of Eq. 4, 0 to 1; 0 is IFCA.
    similarity : {"cosine", "euclidean"}, default "cosine"
        S of Eq. 3: the ``"cosine"`` of −∇L and Δ, or the negative ``"euclidean"`` distance between them.
    local_update : {"step", "epochs"}, default "step"
        One gradient ``"step"`` on the mini-batch that decided (Eq. 5; ``train.local_epochs`` does not count then), or
        ``"epochs"``: ``train.local_epochs`` passes over the device's data.
    broadcast : {"full", "adaptive"}, default "full"
        ``"full"`` sends all K models every round. ``"adaptive"`` sends a device its own cluster's model only, once it
        has found the same cluster three times in a row; it is sent all K again five rounds after
        it last compared them, and in the round after its training loss rose by more than a tenth of what it was.
    choice_batches : int | "all", default 1
        So many mini-batches of the round decide, as far as the device has them; a step is still taken on the first. The
        paper's 1 is little where a mini-batch is small. ``"all"`` are all of the device's training data, as IFCA has it
        (its Algorithm 1, and its authors' code); without a gradient they are judged in evaluation mode. The method
        ``ifca`` has ``"all"`` by default.
    batch_loss : {"mean", "sum"}, default "mean"
        L of Eq. 1 and 4: the mean over the samples that decide, or the paper's ``"sum"``. The step is the mean's.
    choice_memory : float, default 0.0
        From 0 to below 1, the share of a device's losses and similarities that stays from its comparisons before, an
        exponential mean; 0 is the paper's.
    empty_cluster : {"tell", "split", "leave"}, default "tell"
        What becomes of a cluster that nobody chose. ``"tell"``: a device is told to train it (II-C); ``"leave"``, as
        IFCA's authors do; ``"split"``: the cluster whose devices' steps are clearly of two directions, seen over three
        rounds or more, is divided, and the empty one is where its smaller half is. The larger of two such clusters is
        divided first; without one, the empty cluster stays as it is.
    **sampling
        See `bouquet.strategies.base.sampling.Sampling`.
    """

    state_class = GradientLossState
    clusters_chosen_on = "the device's mini-batch; for the last test all of its training data"

    num_clusters: Count = 4
    gradient_weight: Share = 0.2
    similarity: Similarity = "cosine"
    local_update: LocalUpdate = "step"
    broadcast: Broadcast = "full"
    stable_after: ClassVar[int] = 3  # comparisons in a row with the same cluster
    look_every: ClassVar[int] = 5  # rounds after which a device compares anew
    loss_rise: ClassVar[float] = 0.1  # the share by which a loss may rise
    choice_batches: ChoiceBatches = 1
    choice_memory: ChoiceMemory = 0.0
    batch_loss: BatchLoss = "mean"
    empty_cluster: EmptyCluster = "tell"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trainings = "a step on a mini-batch" if self.local_update == "step" else "1"
        if self.choice_batches == "all":
            self.clusters_chosen_on = "the device's training data"

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> GradientLossState:
        """K different initial models; the first is the given one."""
        centers = random_models(initial, layout, self.num_clusters, self.seed, self.draw_model)
        # numpy.unique over rows would make a dtype of d fields: gigabytes for ResNet-18.
        if any(np.array_equal(one, other) for one, other in combinations(centers, 2)):
            self.warn(f"Some of the {self.num_clusters} initial models are equal: no device can tell them apart.")
        return GradientLossState(centers)

    def plan(self, state: GradientLossState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """Send the models of all clusters, or of its own to a device whose identity is stable (II-B1).

        Δ goes only to a device that does not have what it needs to compute it.
        """
        told = self._told(state, round_, clients)
        centers = {center_record(k): Payload(center) for k, center in enumerate(state.centers)}
        steps: dict[str, Payload] = {}
        if state.previous is not None:
            steps = {step_record(k): Payload(step, exact=True) for k, step in enumerate(state.centers - state.previous)}
        instructions = {}
        for client in clients:
            if client not in told and self._is_settled(state, client):
                its_center = center_record(state.assignment[client])
                models = {its_center: centers[its_center]}
            else:
                models = centers if self._holds(state, client) else {**centers, **steps}
            instructions[client] = self._ask(state, models, told.get(client), self._relocated_since(state, client))
        return instructions

    def plan_evaluate(self, state: GradientLossState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """The models of all clusters; with ``"adaptive"``, its own one's to a device that knows its cluster."""
        centers = {center_record(k): Payload(center) for k, center in enumerate(state.centers)}
        assignment = state.assignment if self.broadcast == "adaptive" else {}
        names = {c: [center_record(assignment[c])] if c in assignment else list(centers) for c in clients}
        return {c: self._ask(state, {name: centers[name] for name in names[c]}) for c in clients}

    def update(self, state: GradientLossState, round_: int, replies: Replies) -> Outcome[GradientLossState]:
        """The identities that the devices answer (Eq. 4), where empty clusters are put, and the means (Eq. 6, 7)."""
        answers = Answers.read(replies, self.num_clusters)
        if not answers.trained:
            return Outcome(state, answers.refused)
        before, state = state, identified(state, answers, self.loss_rise)
        state = replace(state, previous=state.centers, last=self._seen(before, state, replies, answers))
        if self.empty_cluster == "split":
            state, answers = relocated(state, answers, self._empty(state.assignment))
        return Outcome(self._means(state, answers), answers.refused)

    def device_needs(self) -> Mapping[str, str]:
        """For the choice."""
        return {TRAINING: "the device compares models on mini-batches of its own training, by loss and gradient."}

    def needs_scores(self) -> str:
        """For the choice."""
        return "the device says which model it chose, by the losses of its own data."

    def record(self, state: GradientLossState) -> dict[str, Any]:
        """Of the last round: devices by cluster, empty clusters, how many devices were told, compared, and moved.

        ``loss_gap`` and ``similarity_gap`` say how far apart the K models were to a device, in the mean over devices:
        what it had to choose by. Identities are the ``assignment`` of each round.
        """
        return {"num_clusters": self.num_clusters, **state.last}

    # --- details ---------------------------------------------------------------------------------------------

    def _means(self, state: GradientLossState, answers: Answers) -> GradientLossState:
        """The mean of each cluster's models (Eq. 6, 7); one that nobody trained stays as it was."""
        centers = self.aggregation.cluster_means(
            answers.replies.W, list(answers.trained.values()), self.num_clusters, previous=state.centers
        )
        previous = state.previous if self.gradient_weight else None
        return replace(state, centers=centers, previous=previous, version=state.version + 1)

    def _seen(
        self, before: GradientLossState, state: GradientLossState, replies: Replies, answers: Answers
    ) -> dict[str, Any]:
        """For the record: who chose, was told, compared and moved in this round."""
        chosen = answers.chosen
        return {
            "members": np.bincount(list(chosen.values()), minlength=self.num_clusters).tolist(),
            "empty": len(self._empty(state.assignment)),
            "told": answers.count(choice.TOLD),
            "compared": sum(state.devices[client].held == state.version for client in chosen),
            "moved": count_moved(before.assignment, chosen),
            "state_lost": answers.count(protocol.STATE_LOST),
            "loss_gap": mean_gap(replies, choice.LOSS_GAP),
            "similarity_gap": mean_gap(replies, choice.SIMILARITY_GAP),
        }

    def _ask(
        self,
        state: GradientLossState,
        models: Mapping[str, Payload],
        told: int | None = None,
        relocations: Sequence[Relocation] = (),
    ) -> Instruction:
        asked = Choice(
            self.num_clusters,
            state.version,
            self.gradient_weight,
            self.similarity,
            self.local_update,
            told,
            choice.ALL_BATCHES if self.choice_batches == "all" else self.choice_batches,
            self.choice_memory,
            tuple(relocations),
            self.batch_loss,
        )
        return Instruction(models=models, procedure=choice.PROCEDURE, config=asked.to_config())

    def _empty(self, assignment: Mapping[str, int]) -> list[int]:
        """The clusters that are nobody's last choice."""
        return sorted(set(range(self.num_clusters)) - set(assignment.values()))

    def _told(self, state: GradientLossState, round_: int, clients: Sequence[str]) -> dict[str, int]:
        """Section II-C: for each empty cluster one randomly drawn device, which will train it.

        Of few devices no more than half: else nobody would train what it chose.
        """
        if not state.assignment or self.empty_cluster != "tell":
            return {}
        drawn = np.random.default_rng([self.seed, round_, TOLD_STREAM]).permutation(sorted(clients))
        return dict(zip(drawn[: len(clients) // 2].tolist(), self._empty(state.assignment), strict=False))

    def _is_settled(self, state: GradientLossState, client: str) -> bool:
        """Whether the device's own cluster's model is all that it needs this round."""
        device = state.devices.get(client)
        if self.broadcast == "full" or device is None:
            return False
        due = state.version - device.held >= self.look_every
        return device.stable >= self.stable_after and not due and not device.rising

    def _holds(self, state: GradientLossState, client: str) -> bool:
        """Whether the device has the centers that it needs to compute Δ itself.

        Those of the round before; with ``"adaptive"`` those that it compared last, if that is not too long ago: what
        it then computes is the mean step since.
        """
        device = state.devices.get(client)
        oldest = state.version - (1 if self.broadcast == "full" else self.look_every)
        # What moved since an empty cluster was put elsewhere is no step of that cluster's.
        oldest = max(oldest, 0, *(version for version, _, _ in state.relocations))
        return device is not None and oldest <= device.held < state.version

    def _relocated_since(self, state: GradientLossState, client: str) -> list[Relocation]:
        """Where clusters were put since the device compared them last, for what it remembers of them."""
        device = state.devices.get(client)
        held = choice.NOTHING if device is None else device.held
        return [relocation for relocation in state.relocations if relocation[0] > held]
