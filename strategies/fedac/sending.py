"""What FedAC sends a client: what its own model is held near, and the map to p numbers where it is asked for those."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bouquet.common.protocol import ARRAYS, STANDARD, Instruction, Payload, Proximal
from bouquet.strategies.fedac.state import FedACState
from bouquet.strategies.fedac.wire import PROCEDURE, asking_for_numbers, sending_map
from bouquet.strategies.mathematics.aggregation import mean_of_centers

GLOBAL_EMBEDDING = "global-embedding"  # record that holds φ_g


def instruction(
    state: FedACState, client: str, proximal_weight: float, embedding_weight: float, asks_numbers: bool
) -> Instruction:
    """ω_{c(i)} with its weight λ and φ_g with μ; a weight of 0 leaves its term out, and μ = 0 the embedding, too.

    With ``asks_numbers`` the client is to send its model's p numbers in place of the model.
    """
    sent = to_personal_model(state, client)
    models, config = dict(sent.models), dict[str, Any]()
    proximal = [Proximal(ARRAYS, proximal_weight)] if proximal_weight else []
    if embedding_weight:
        models[GLOBAL_EMBEDDING] = Payload(state.global_embedding, tuple(state.embedding))
        proximal.append(Proximal(GLOBAL_EMBEDDING, embedding_weight))
    if asks_numbers and state.low_rank is not None:
        config |= asking_for_numbers(state.map_round)
        if state.holders.get(client) != state.map_round:
            directions, offset = sending_map(state.low_rank)
            models |= directions
            config |= offset
    return replace(
        sent,
        models=models,
        proximal=tuple(proximal),
        procedure=PROCEDURE if asks_numbers else STANDARD,
        upload=() if asks_numbers else None,
        config=config,
    )


def to_personal_model(state: FedACState, client: str, upload: tuple[str, ...] | None = None) -> Instruction:
    """Use your own model; here is your cluster's center, or the mean of them all, in case that there is none."""
    cluster = state.assignment.get(client)
    center = mean_of_centers(state.centers) if cluster is None else state.centers[cluster]
    return Instruction({ARRAYS: Payload(center)}, start="personal", newcomer=cluster is None, upload=upload)


def drawn_for_numbers(
    state: FedACState, clients: Sequence[str], model_share: float, generator: np.random.Generator
) -> set[str]:
    """The clients that are to send p numbers in place of a model: of each cluster all but a ``model_share``."""
    asked: set[str] = set()
    for cluster in range(len(state.centers)):
        members = [client for client in clients if state.assignment.get(client) == cluster]
        asked.update(generator.permutation(members)[math.ceil(model_share * len(members)) :].tolist())
    return asked
