"""FedTSDP: two-stage decoupling with adaptive personalisation layers.

Zhu, Fan, Xie: Federated Two-Stage Decoupling with Adaptive Personalization Layers. Complex & Intelligent Systems 10,
2024. https://doi.org/10.1007/s40747-024-01342-1

Equations are the paper's. Where it is silent: B is 64; a draw of the Hopkins statistic takes a quarter of the clients,
and H is the mean of 20 draws, because one draw varies by up to 0.06; noise points of DBSCAN are clusters of their own;
the Υ of Eq. 9 is 0, since nothing divides by that distance; BatchNorm's counters take no part in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import ARRAYS, FALLBACK, Instruction, Payload
from bouquet.common.protocol.capabilities import LAYERS
from bouquet.strategies.base.method import Ask, Outcome, one_model
from bouquet.strategies.base.options import Above0, Above0To1, Count, Share, Weight
from bouquet.strategies.base.replies import PublicData, Replies
from bouquet.strategies.base.strategy import MethodStrategy
from bouquet.strategies.fedtsdp.decoupling import (
    QUANTILES,
    UNKNOWN,
    density_clusters,
    join_nearest,
    quantiles,
    regroup,
    second_stage,
    weight_distances,
    whole_layers,
)
from bouquet.strategies.fedtsdp.hopkins import draw_batch, entropy, hopkins_statistic, raise_weights, uniform_weights
from bouquet.strategies.fedtsdp.state import FedTSDPState, Observed, answered
from bouquet.strategies.mathematics.aggregation import Assignment, weighted_mean
from bouquet.strategies.mathematics.similarity import Distances, jensen_shannon_divergence

BATCH_STREAM, HOPKINS_STREAM = 2, 3  # of the seed, beside the streams of `bouquet.strategies.base.sampling`
MIN_POINTS = 2  # min_pts of DBSCAN, the point itself included
HOPKINS_DRAWS = 20  # of a quarter of the clients each, m̃ of Eq. 6; H is their mean

Stages = Literal["both", "one", "two"]


@dataclass(eq=False, repr=False)
class FedTSDP(MethodStrategy[FedTSDPState]):
    """Clients are clustered by their models' outputs on public data, then by weights; deep layers become personal.

    What leaves a device in a round: its whole trained model, personal layers too, because the server compares outputs;
    its number of samples; its losses and accuracies. What it is sent: the shared layers of its cluster's mean. Personal
    layers of others reach it only as their mean over a cluster (which may have one member), and only when it has none
    of its own: one that is new, or said that it lost them, is sent all layers; one that failed to reply when it was
    last asked is sent the personal ones as a fallback, in case that it comes back without its own.

    Needs public, unlabelled data: `public` has to be set (`bouquet.server.run.build.build_strategy` does).

    Parameters
    ----------
    hopkins_threshold : float, default 0.65
        h_th; the clients are clustered anew when H is above it.
    patience : int, default 1
        So many rounds in a row; 1 in the paper. IID models may be above it for a round when they leave their first
        plateau (and are one cluster all the same, or nearly); those of Dirichlet data mostly in the first.
    eps_outputs, eps_weights
        ε₁ and ε₂, the radius of DBSCAN in Jensen–Shannon divergence and in ‖w_i − w_j‖₂. The second depends on the size
        of the model and on the training; the record has the quantiles of both.
    dampening : float, default 0.98
        ψ of Eq. 11, by which the number of shared layers L_s is multiplied at every clustering, for the whole fleet
        (docs/decisions.md).
    stages : {"both", "one", "two"}, default "both"
        ``"one"`` clusters by outputs only, ``"two"`` by weights only (the paper's ablation).
    sampling_gain : float | None, default None
        What Eq. 7 adds to the weight of a public sample; None is its `|D_pub| / B`. As W is normalised, that puts
        nearly all of it on the one batch, which is then drawn again and again; 1 / B puts half of it there.
    """

    state_class = FedTSDPState
    wants_public_data = True
    tested_model = "personal: the received layers with its own"
    clusters_chosen_on = "outputs on public data, then uploaded models"

    hopkins_threshold: Share = 0.65
    patience: Count = 1
    eps_outputs: Above0 = 0.15
    eps_weights: Above0 = 3.5
    dampening: Above0To1 = 0.98
    stages: Stages = "both"
    public_batch: ClassVar[int] = 64  # B, public samples drawn in a round
    sampling_gain: Weight | None = None

    def initial_state(self, layout: ParameterLayout, initial: Vector) -> FedTSDPState:
        """One cluster, all layers shared, all public samples alike."""
        return FedTSDPState(
            centers=initial[None, :].copy(),
            assignment={},
            shared_layers=float(len(layout.layers)),
            weights=uniform_weights(self._public().size),
        )

    def prepare(self, state: FedTSDPState, round_: int, clients: Sequence[str], ask: Ask) -> FedTSDPState:
        """Note who is asked: a client that does not reply may come back without its layers. No message is sent."""
        missed_rounds = sorted({*state.missed_rounds, *state.asked})
        return replace(state, asked=list(clients), missed_rounds=missed_rounds, observed=Observed())

    def plan(self, state: FedTSDPState, round_: int, clients: Sequence[str]) -> Mapping[str, Instruction]:
        """Send w_{L_s} of its cluster to each client; the layers above are its own."""
        assert self.layout is not None
        layers = self.layout.layers
        count = whole_layers(state.shared_layers)
        shared, personal = layers[:count], layers[count:]
        members = np.bincount(list(state.assignment.values()), minlength=len(state.centers))
        mean = weighted_mean(state.centers, members if members.any() else None).astype(np.float32)  # over the clients
        instructions = dict.fromkeys(clients, one_model(mean, newcomer=True))
        for client in (client for client in clients if client in state.assignment):
            center, has_none = state.centers[state.assignment[client]], client in state.lost_layers
            models = {ARRAYS: Payload(center, layers if has_none else shared)}
            if personal and client in state.missed_rounds and not has_none:
                models[FALLBACK] = Payload(center, personal)
            instructions[client] = Instruction(models)
        return instructions

    def update(self, state: FedTSDPState, round_: int, replies: Replies) -> Outcome[FedTSDPState]:
        """Algorithm 1 after the uploads: outputs, H, the two stages where there are clusters, and the means."""
        state, replies = answered(state, replies)
        if not len(replies):
            return Outcome(state)
        batch = self._draw_batch(state, round_)
        replies, outputs, diverged = self._outputs(replies, batch)  # p_i
        if not len(replies):
            return Outcome(state, diverged)
        divergence = jensen_shannon_divergence(outputs)  # Eq. 5
        distances = weight_distances(replies.W, replies.layout)  # Eq. 9
        state = self._observe(state, round_, outputs, divergence, distances)  # H, Eq. 6
        if state.observed.clustered:
            state, labels = self._decouple(state, replies.clients, divergence, distances)
            weights = raise_weights(state.weights, batch, self.sampling_gain)  # Eq. 7, 8
            state = replace(state, weights=weights, shared_layers=state.shared_layers * self.dampening)  # Eq. 11
        else:
            state, labels = _keep_clusters(state, replies.clients, divergence)
        placed = labels != UNKNOWN
        centers = self.aggregation.cluster_means(
            replies.W[placed], labels[placed], len(state.centers), replies.num_examples[placed], state.centers
        )
        return Outcome(replace(state, centers=centers), diverged)

    def needs_classes(self) -> str:
        """For the similarity of models."""
        return "models are compared by the class probabilities that they give public samples."

    def device_needs(self) -> Mapping[str, str]:
        """For the personal layers."""
        return {LAYERS: "with each clustering a layer more stays on the device."}

    def record(self, state: FedTSDPState) -> dict[str, Any]:
        """H and what follows of it: both stages' clusters, L_s, the entropy of W (nats), quantiles of distances."""
        return {
            **asdict(state.observed),
            "hopkins_threshold": self.hopkins_threshold,
            "stage_one": state.stage_one,
            "stage_two": state.stage_two,
            "shared_layers": state.shared_layers,
            "whole_shared_layers": whole_layers(state.shared_layers),
            "sampling_entropy": entropy(state.weights),
            "quantiles": list(QUANTILES),
        }

    # --- the steps of Algorithm 1 ------------------------------------------------------------------------------

    def _draw_batch(self, state: FedTSDPState, round_: int) -> NDArray[np.int64]:
        """The public samples (B,) on which this round's models are compared."""
        if len(state.weights) != self._public().size:
            raise BouquetError(
                f"The run began with {len(state.weights)} public samples, now there are {self._public().size}: give "
                "server.public_data, or data.data_dir, as it was."
            )
        return draw_batch(state.weights, self.public_batch, self._generator(round_, BATCH_STREAM))

    def _outputs(
        self, replies: Replies, batch: NDArray[np.int64]
    ) -> tuple[Replies, NDArray[np.float32], dict[str, str]]:
        """p_i (m × B × C) of the models, without those whose outputs are not numbers, which are named."""
        outputs = self._public().predict(replies.W, batch)
        finite = [bool(np.isfinite(output).all()) for output in outputs]
        reason = "Its model's outputs on the public data are not finite; it has diverged."
        diverged = {client: reason for client, sound in zip(replies.clients, finite, strict=True) if not sound}
        return replies.only(finite), outputs[finite], diverged

    def _observe(
        self,
        state: FedTSDPState,
        round_: int,
        outputs: NDArray[np.float32],
        divergence: Distances,
        distances: Distances,
    ) -> FedTSDPState:
        """H, and whether it has been above its threshold for long enough."""
        clients = len(outputs)
        if clients < 2:
            return state
        generator = self._generator(round_, HOPKINS_STREAM)
        h = hopkins_statistic(outputs.reshape(clients, -1), max(1, clients // 4), HOPKINS_DRAWS, generator)
        above = state.above + 1 if h.mean > self.hopkins_threshold else 0
        observed = replace(
            state.observed,
            hopkins=h.mean,
            hopkins_deviation=h.deviation,
            clustered=above >= self.patience,
            divergences=quantiles(divergence),
            distances=quantiles(distances),
        )
        return replace(state, above=above, observed=observed)

    def _decouple(
        self, state: FedTSDPState, clients: Sequence[str], divergence: Distances, distances: Distances
    ) -> tuple[FedTSDPState, Assignment]:
        """Both stages of clustering; clients that are absent follow those that they were with."""
        first = np.zeros(len(clients), dtype=np.int64)
        if self.stages != "two":
            first = density_clusters(divergence, self.eps_outputs, MIN_POINTS)
        second = first if self.stages == "one" else second_stage(first, distances, self.eps_weights, MIN_POINTS)
        stage_one, stage_two = (dict(zip(clients, labels.tolist(), strict=True)) for labels in (first, second))
        assignment, survivors = regroup(state.assignment, stage_two)
        fresh = np.zeros((int(second.max()) + 1, state.centers.shape[1]), dtype=np.float32)  # all of them have members
        centers = np.concatenate([fresh, state.centers[survivors]])
        return replace(state, centers=centers, assignment=assignment, stage_one=stage_one, stage_two=stage_two), second

    # --- details ---------------------------------------------------------------------------------------------

    def _public(self) -> PublicData:
        if self.public is None:
            raise BouquetError(
                "FedTSDP compares the clients' models on public, unlabelled data: set its attribute `public` "
                "(bouquet.server.public_data.inference.public_data makes one of the settings) before the first round."
            )
        return self.public

    def _generator(self, round_: int, stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, round_, stream])


def _keep_clusters(
    state: FedTSDPState, clients: Sequence[str], divergence: Distances
) -> tuple[FedTSDPState, Assignment]:
    """The clusters as they are, and newcomers where the outputs are most like theirs."""
    labels = np.array([state.assignment.get(client, UNKNOWN) for client in clients], dtype=np.int64)
    if len(state.centers) == 1:
        labels[:] = 0
    labels = join_nearest(divergence, labels)
    assignment = {client: label for client, label in zip(clients, labels.tolist(), strict=True) if label != UNKNOWN}
    return replace(state, assignment={**state.assignment, **assignment}), labels
