"""The two ways in which FedAC's clients find their clusters: low-rank cosine (Eq. 4), and the models' L2 distance."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Protocol

import numpy as np

from bouquet.strategies.base.replies import FirstModels, Matrix
from bouquet.strategies.fedac.reduction import most_similar, unit_rows
from bouquet.strategies.fedac.state import FedACState, Uploads, remembered_centers
from bouquet.strategies.mathematics.clustering import assign_to_nearest, kmeans
from bouquet.strategies.mathematics.robust import Aggregation

Measure = Literal["low-rank", "l2"]


class ModelSimilarity(Protocol):
    """How clients are compared. ``needs_map`` says whether that takes the map to p numbers."""

    needs_map: bool

    def first_clients(self, state: FedACState, uploads: Uploads) -> tuple[FedACState, list[str]]:
        """The clients that the first clusters can be made of, and the state that remembers them."""

    def first_clusters(
        self, state: FedACState, uploads: Uploads, num_clusters: int, seed: int, rule: Aggregation
    ) -> tuple[dict[str, int], Matrix]:
        """K-means of those clients: the cluster of each, and the centers (K, d), by the ``rule``, of their models."""

    def assign(self, state: FedACState, uploads: Uploads) -> dict[str, int]:
        """The E-step: the cluster of every client that can be compared with the centers in this round."""


class LowRankCosine:
    """The cosine of reduced models, for all clients whose p numbers are known."""

    needs_map = True

    def first_clients(self, state: FedACState, uploads: Uploads) -> tuple[FedACState, list[str]]:
        """All whose p numbers are known."""
        return state, state.known

    def first_clusters(
        self, state: FedACState, uploads: Uploads, num_clusters: int, seed: int, rule: Aggregation
    ) -> tuple[dict[str, int], Matrix]:
        """K-means over the directions of the reduced models.

        The centers are made of this round's models; of a cluster without one, the map holds those of rounds before.
        """
        clients = state.known
        labels = kmeans(unit_rows(state.rows(clients)), num_clusters, seed).assignment
        assignment = dict(zip(clients, labels.tolist(), strict=True))
        if set(clients) == set(uploads.clients):
            previous = np.tile(state.centers[0], (num_clusters, 1))
        else:
            previous = remembered_centers(state, clients, labels, num_clusters, rule)
        members = [assignment[client] for client in uploads.clients]
        return assignment, rule.cluster_means(uploads.W, members, num_clusters, previous=previous)

    def assign(self, state: FedACState, uploads: Uploads) -> dict[str, int]:
        """Eq. 4: the center of the largest cosine."""
        if state.low_rank is None or not state.known:
            return {}
        labels = most_similar(state.rows(state.known), state.low_rank.reduce(state.centers))
        return dict(zip(state.known, labels.tolist(), strict=True))


class L2Distance:
    """The distance of the models themselves, for those of a round; the first are gathered over rounds."""

    needs_map = False

    def first_clients(self, state: FedACState, uploads: Uploads) -> tuple[FedACState, list[str]]:
        """All that ever sent a model."""
        first = FirstModels(state.gathered).add(uploads.clients, uploads.W)
        return replace(state, gathered=first.models), first.clients

    def first_clusters(
        self, state: FedACState, uploads: Uploads, num_clusters: int, seed: int, rule: Aggregation
    ) -> tuple[dict[str, int], Matrix]:
        """K-means over the models."""
        first = FirstModels(state.gathered)
        W = first.W
        labels = kmeans(uploads.layout.parameters_of(W), num_clusters, seed).assignment
        previous = np.tile(state.centers[0], (num_clusters, 1))
        centers = rule.cluster_means(W, labels, num_clusters, previous=previous)
        return dict(zip(first.clients, labels.tolist(), strict=True)), centers

    def assign(self, state: FedACState, uploads: Uploads) -> dict[str, int]:
        """The nearest center."""
        if not uploads.clients:
            return {}
        labels = assign_to_nearest(uploads.parameters, uploads.layout.parameters_of(state.centers))
        return dict(zip(uploads.clients, labels.tolist(), strict=True))


SIMILARITIES: dict[Measure, ModelSimilarity] = {"low-rank": LowRankCosine(), "l2": L2Distance()}
