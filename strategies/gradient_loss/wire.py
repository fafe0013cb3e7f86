"""The wire of a method in which the device chooses its cluster: the part of `common.protocol` that only it needs.

Server → device: a whole model ``center-k`` for each cluster that the device may choose, ``step-k`` where it has to be
told how that center moved, and the question itself, a `Choice`, in the config. Device → server: beside the usual
metrics the cluster that it chose and the one that it trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from bouquet.common.compression.delta import MOST_MODELS
from bouquet.common.protocol import ProtocolError, Received, Scalar

PROCEDURE = "gradient-loss"

# Metrics of the reply.
CHOSEN = "cluster"  # the cluster that the device chose, its identity s_i
TRAINED = "trained-cluster"  # the cluster whose model it trained: the one it chose, unless it was told another
TOLD = "told"  # 1 when it was told which cluster to train
LOSS_GAP = "loss-gap"  # between the worst and the best of the models that it compared, on its mini-batch
SIMILARITY_GAP = "similarity-gap"  # between the most and the least similar of their steps

Similarity = Literal["cosine", "euclidean"]
LocalUpdate = Literal["step", "epochs"]
BatchLoss = Literal["mean", "sum"]
ALL_BATCHES = 0  # as a number of mini-batches: all of the device's training data


@dataclass(frozen=True)
class Choice:
    """What the server asks: which of the models in this message is yours, and how to train it.

    ``version`` counts how often the centers have moved. ``told`` is the cluster to train whatever the device chooses.
    ``batches`` is what it judges the models by: so many mini-batches of this round, or `ALL_BATCHES`; ``batch_loss`` is
    what L is of the samples' losses.
    """

    num_clusters: int
    version: int
    gradient_weight: float
    similarity: Similarity = "cosine"
    local_update: LocalUpdate = "step"
    told: int | None = None
    batches: int = 1
    batch_loss: BatchLoss = "mean"

    def to_config(self) -> dict[str, Scalar]:
        """As keys of an instruction's config."""
        rare: dict[str, Scalar] = {} if self.told is None else {"told-cluster": self.told}
        if self.batch_loss != "mean":
            rare["batch-loss"] = self.batch_loss
        return {
            "num-clusters": self.num_clusters,
            "centers-version": self.version,
            "gradient-weight": float(self.gradient_weight),
            "similarity": self.similarity,
            "local-update": self.local_update,
            "choice-batches": self.batches,
            **rare,
        }

    @classmethod
    def read(cls, received: Received) -> Choice:
        """The inverse of `to_config` at the device. Raises `ProtocolError`, naming the key, for what does not fit."""
        config: Mapping[str, Any] = received.config
        try:
            cluster = config.get("told-cluster")
            choice = cls(
                num_clusters=int(config["num-clusters"]),
                version=int(config["centers-version"]),
                gradient_weight=float(config["gradient-weight"]),
                similarity=config["similarity"],
                local_update=config["local-update"],
                told=None if cluster is None else int(cluster),
                batches=int(config.get("choice-batches", 1)),
                batch_loss=config.get("batch-loss", "mean"),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ProtocolError(f"The question which cluster is this device's is not complete: {error}.") from None
        for key, value, allowed in (
            ("similarity", choice.similarity, get_args(Similarity)),
            ("local-update", choice.local_update, get_args(LocalUpdate)),
            ("batch-loss", choice.batch_loss, get_args(BatchLoss)),
        ):
            if value not in allowed:
                raise ProtocolError(f"The server sent {key} = {value!r}; this device knows {', '.join(allowed)}.")
        if not 1 <= choice.num_clusters <= MOST_MODELS:
            raise ProtocolError(f"The server sent num-clusters = {choice.num_clusters}; it is from 1 to {MOST_MODELS}.")
        clusters = range(choice.num_clusters)
        if missing := [k for k in clusters if center_record(k) not in received.models]:
            raise ProtocolError(f"The server asks this device to choose a cluster and sent no model of {missing[0]}.")
        if choice.told is not None and choice.told not in clusters:
            raise ProtocolError(f"The server tells this device to train cluster {choice.told} of {len(clusters)}.")
        return choice


def center_record(cluster: int) -> str:
    """Name of the record that holds w_k, the model of a cluster."""
    return f"center-{cluster}"


def step_record(cluster: int) -> str:
    """Name of the record that holds Δ_k, how the model of a cluster moved last."""
    return f"step-{cluster}"
