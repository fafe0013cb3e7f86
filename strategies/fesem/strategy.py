"""FeSEM: multi-center federated learning by stochastic expectation maximisation.

Long, Xie, Shen, Zhou, Wang, Jiang: Multi-Center Federated Learning: Clients Clustering for Better
Personalization. World Wide Web 26, 2023. https://arxiv.org/abs/2108.08647

Equations and sections are the paper's. Where it is silent: ``proximal_weight`` (its λ/m) is 0.001; where K is given,
the first centers come from k-means over the clients' models after one round of a common model; matched averaging
(FeSEM-MA, section 5.1) keeps the width of every layer, so that a center is a model of the same architecture. Where this
differs: K is found while the run goes on (`bouquet.strategies.base.groups`), not before it (section 5.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import ARRAYS, Instruction, Proximal
from bouquet.common.protocol.capabilities import TERMS
from bouquet.strategies.base.groups import NumClusters
from bouquet.strategies.base.method import count_moved, one_model
from bouquet.strategies.base.options import Weight, Weighting
from bouquet.strategies.base.replies import FirstModels, Matrix, Replies
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.fesem.matching import match_rows
from bouquet.strategies.fesem.state import FeSEMState
from bouquet.strategies.fesem.steps import expectation_step, matched_to, mean_distance
from bouquet.strategies.mathematics.aggregation import Assignment, mean_of_centers
from bouquet.strategies.mathematics.clustering import kmeans


@dataclass(eq=False, repr=False)
class FeSEM(MethodStrategy[FeSEMState]):
    """Multi-center aggregation: every client belongs to the nearest of K centers, which are means of their clients.

    Parameters
    ----------
    num_clusters : int | "auto", default "auto"
        K. ``"auto"`` begins with one center, and divides its clients where their updates show groups.
    proximal_weight : float, default 0.001
        λ/m of Eq. 7 without the α_i before the loss; the device minimises its loss + λ/m · ‖W − C‖². Of devices with
        equally many samples (α_i = 1/m) it is then the paper's λ.
    weighted_loss : bool, default False
        Eq. 7 as printed, with α_i = n_i / Σ n before the loss. It has the minimum of the loss + (λ/m) / α_i · ‖W − C‖²,
        which is what the device is given, so that its step does not shrink with the number of clients. From the second
        round on; a client that is not known yet counts as the mean one. Without it λ/m is the same for all.
    weighting : {"uniform", "examples"} or None, default None
        ``"uniform"`` is Eq. 9; ``"examples"`` weighs clients by their numbers of samples. By default the former where K
        is given, and the latter where it is found: with one center that is FedAvg's mean.
    """

    state_class = FeSEMState
    takes_late_replies = True
    places_by_loss = True
    takes_steps = True
    clusters_chosen_on = "uploaded models"

    num_clusters: NumClusters = "auto"
    proximal_weight: Weight = 0.001
    weighted_loss: bool = False
    weighting: Weighting | None = None
    matching: ClassVar[bool] = False

    @property
    def by_examples(self) -> bool:
        """Whether clients weigh by their numbers of samples."""
        return self.weighting == "examples" or (self.weighting is None and self.num_clusters == "auto")

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> FeSEMState:
        """One center: the common initial model."""
        return FeSEMState(centers=initial[None, :].copy(), assignment={})

    def plan(self, state: FeSEMState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """Send C_{r_i} to client i (Algorithm 1); one without a cluster, who could not choose, gets the centers' mean.

        Eq. 7 has no ½ before its proximal term, the wire's term has one: hence the factor 2.
        """
        newcomer = mean_of_centers(state.centers if state.origin is None else state.origin[None, :])
        cluster = state.assignment
        models = {c: state.centers[cluster[c]] if c in cluster else newcomer for c in clients}
        return {client: one_model(model, proximal=self._proximal(state, client)) for client, model in models.items()}

    def plan_evaluate(self, state: FeSEMState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """What a client would train from; before the first clustering, the mean of what is gathered for it."""
        return self.plan(replace(state, origin=None), round_ + 1, clients)

    def update(self, state: FeSEMState, round_: int, replies: Replies) -> FeSEMState:
        """E-step (Eq. 8) and M-step (Eq. 9), between them the look at how many clusters there are where K is found."""
        if self.weighted_loss:
            sizes = dict(zip(replies.clients, replies.num_examples.tolist(), strict=True))
            state = replace(state, sizes={**state.sizes, **sizes})
        if self.num_clusters != "auto" and not state.assignment:
            return self._first_clusters(state, replies, self.num_clusters)
        aligned = self._aligned(replies, state.centers)  # (K, n, d), for matched averaging
        nearest = expectation_step(replies.layout, replies.W, aligned, state.centers)  # Eq. 8
        seed = self.seed + round_ if self.num_clusters == "auto" else None
        found = state.groups.e_step(
            replies, state.assignment, nearest, state.centers, seed, self.aggregation, self.by_examples
        )
        labels, origins = found.labels(replies.clients), np.array(found.origins)
        rows = matched_to(replies.W, aligned, origins[labels])
        centers = self._maximization_step(rows, labels, replies, state.centers[origins])  # Eq. 9
        return replace(
            state,
            centers=centers,
            assignment=found.assignment,
            moved=count_moved(state.assignment, found.assignment) if len(origins) == len(state.centers) else 0,
            intra_distance=mean_distance(replies.layout, rows, centers, labels),
            groups=found.groups,
        )

    def wants_late(self, state: FeSEMState) -> bool:
        """Not before the first clustering where K is given: those models come from one common start."""
        return self.num_clusters == "auto" or bool(state.assignment)

    def device_needs(self) -> Mapping[str, str]:
        """For the proximal term."""
        weight = self.proximal_weight
        return {TERMS: f"proximal_weight = {weight:g} (Eq. 7); with 0 it has none."} if weight else {}

    def record(self, state: FeSEMState) -> dict[str, Any]:
        """K, how many clients the E-step moved, the distance of Eq. 6, and how clear groups in a cluster were."""
        return {
            "moved": state.moved,
            "intra_distance": state.intra_distance,
            "num_clusters": len(state.centers),
            "log_p": state.groups.log_p,
        }

    def _maximization_step(self, W: Matrix, nearest: Assignment, replies: Replies, centers: Matrix) -> Matrix:
        """Eq. 9: each center (K, d) becomes the mean of its clients' models W (n × d); one without clients stays."""
        weights = replies.num_examples if self.by_examples else None
        return self.aggregation.cluster_means(W, nearest, len(centers), weights, centers)

    def _first_clusters(self, state: FeSEMState, replies: Replies, num_clusters: int) -> FeSEMState:
        """K-means over the models that clients made of one common model, once there are K of them.

        Where models began at another one, they differ by that, too. So while they are too few, the common model is sent
        again and they are gathered, until a round brings nobody new; then it goes on as the mean of them.
        """
        origin = state.centers[:1] if state.origin is None else state.origin[None, :]
        rows = matched_to(replies.W, self._aligned(replies, origin), np.zeros(len(replies), dtype=np.int64))
        first = FirstModels(state.gathered, state.examples).add(replies.clients, rows, replies.num_examples.tolist())
        weights = [*first.examples.values()] if self.by_examples else None
        seen = sorted({*state.seen, *replies.clients})
        if len(first.clients) < num_clusters:
            center = self.aggregation.cluster_means(first.W, [0] * len(first.clients), 1, weights, origin)
            # While fewer than K were ever seen, who was seen before is not new, though gathering began anew.
            earlier = state.gathered if len(seen) >= num_clusters else state.seen
            if {*replies.clients} <= {*earlier}:
                return FeSEMState(center, {}, sizes=state.sizes, seen=seen)
            return replace(
                state, centers=center, origin=origin[0], gathered=first.models, examples=first.examples, seen=seen
            )
        labels, means, _ = kmeans(first.W, num_clusters, self.seed, compared=replies.layout.parameters_of(first.W))
        centers = self.aggregation.cluster_means(first.W, labels, num_clusters, weights, previous=means)
        return FeSEMState(
            centers,
            assignment=dict(zip(first.clients, labels.tolist(), strict=True)),
            intra_distance=mean_distance(replies.layout, first.W, centers, labels),
            sizes=state.sizes,
        )

    def _aligned(self, replies: Replies, centers: Matrix) -> Matrix | None:
        """The clients' models matched to each center, (K, n, d), for matched averaging."""
        if not self.matching:
            return None
        return np.stack([match_rows(center, replies.W, replies.layout) for center in centers])

    def _proximal(self, state: FeSEMState, client: str) -> tuple[Proximal, ...]:
        """λ/m of Eq. 7, over the client's α_i where that is before its loss."""
        weight = 2 * self.proximal_weight
        if sizes := [*state.sizes.values()]:
            weight *= sum(sizes) / state.sizes.get(client, sum(sizes) / len(sizes))
        return (Proximal(ARRAYS, weight),) if weight else ()


class FeSEMMA(FeSEM):
    """FeSEM-MA: FeSEM that aligns the hidden units of models before it averages them (section 5.1)."""

    matching = True
