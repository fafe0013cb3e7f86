"""Which clients take part in a round, and the keyword parameters by which every strategy is told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict, Unpack

import numpy as np

from common.protocol import ARRAYS, CONFIG, NUM_EXAMPLES
from strategies.base.options import above_0, check_options, counts, is_count, shares

TRAIN_STREAM, EVALUATE_STREAM = 0, 1  # of the seed


class Sampling(TypedDict, total=False):
    """Keyword parameters that every strategy takes; those of `flwr.serverapp.strategy.FedAvg` bear its names.

    Beside them: ``seed``, from which everything random on the server derives; ``min_replies``, a number or a share of
    the clients asked (`fewest_replies`), below which a round leaves the state as it was; ``wait_timeout``, seconds to
    wait for ``min_available_nodes``; ``round_timeout``, seconds for which a message is valid; ``identify``, which asks
    every new node for its client-id before it is sent anything (Bouquet's own ClientApp answers; without it, clients
    are known by the id in their replies or by their node's id).
    """

    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    seed: int
    min_replies: int | float
    wait_timeout: float
    round_timeout: float
    identify: bool


class Sampled:
    """The parameters of `Sampling` as attributes of a strategy. Raises `BouquetError` for a value that does not fit."""

    def __init__(self, **sampling: Unpack[Sampling]) -> None:
        self.fraction_train = sampling.get("fraction_train", 1.0)
        self.fraction_evaluate = sampling.get("fraction_evaluate", 1.0)
        self.min_train_nodes = sampling.get("min_train_nodes", 2)
        self.min_evaluate_nodes = sampling.get("min_evaluate_nodes", 2)
        self.min_available_nodes = sampling.get("min_available_nodes", 2)
        self.weighted_by_key = sampling.get("weighted_by_key", NUM_EXAMPLES)
        self.arrayrecord_key = sampling.get("arrayrecord_key", ARRAYS)
        self.configrecord_key = sampling.get("configrecord_key", CONFIG)
        self.seed = sampling.get("seed", 0)
        self.min_replies = sampling.get("min_replies", 1)
        self.wait_timeout = sampling.get("wait_timeout", 600.0)
        self.round_timeout = sampling.get("round_timeout", 3600.0)
        self.identify = sampling.get("identify", False)
        least = self.min_replies
        enough = is_count(least) or (isinstance(least, float) and 0 < least <= 1)
        check_options(
            *shares(fraction_train=self.fraction_train, fraction_evaluate=self.fraction_evaluate),
            *counts(min_train_nodes=self.min_train_nodes, min_available_nodes=self.min_available_nodes),
            ("min_evaluate_nodes", self.min_evaluate_nodes, "a whole number from 0", self.min_evaluate_nodes >= 0),
            ("min_replies", least, "a whole number from 1, or a share above 0, at most 1.0", enough),
            *above_0(wait_timeout=self.wait_timeout, round_timeout=self.round_timeout),
        )


def sample_size(clients: int, fraction: float, minimum: int) -> int:
    """How many of the clients take part in a round."""
    return min(clients, max(int(fraction * clients), minimum))


def fewest_replies(min_replies: int | float, asked: int) -> int:
    """How many usable replies a round needs: ``min_replies`` itself, or where it is a float that share of those asked.

    At least 1. Shares are rounded up: of four clients .6 are three.
    """
    if isinstance(min_replies, int):
        return min_replies
    # 0.7 × 10 is a little more than 7 in floating point.
    return max(1, math.ceil(round(min_replies * asked, 9)))


def sample_clients(
    clients: Sequence[str], fraction: float, minimum: int, seed: int, round_: int, stream: int
) -> list[str]:
    """A ``fraction`` of the clients, at least ``minimum`` of them: a function of seed, round and stream alone."""
    size = sample_size(len(clients), fraction, minimum)
    if size == len(clients):
        return list(clients)
    generator = np.random.default_rng([seed, round_, stream])
    return sorted(generator.choice(list(clients), size=size, replace=False).tolist())
