"""Which clients take part in a round, and the keyword parameters by which every strategy is told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import AfterValidator

from bouquet.common.protocol import ARRAYS, CONFIG, NUM_EXAMPLES
from bouquet.common.settings.sections import number_or_share
from bouquet.strategies.base.options import Above0, Count, Share, WholeNumber, check_fields

TRAIN_STREAM, EVALUATE_STREAM = 0, 1  # of the seed


@dataclass(eq=False, kw_only=True)
class Sampling:
    """Keyword parameters that every strategy takes, as its attributes; those of Flower's FedAvg bear its names.

    Beside them: ``seed``, from which everything random on the server derives; ``min_replies``, a number or a share of
    the clients asked (`fewest_replies`), below which a round leaves the state as it was; ``wait_timeout``, seconds to
    wait for ``min_available_nodes``; ``round_timeout``, seconds for which a message is valid; ``identify``, which asks
    every new node for its client-id before it is sent anything (Bouquet's own ClientApp answers; without it, clients
    are known by the id in their replies or by their node's id).

    Examples
    --------
    >>> bouquet.FeSEM(num_clusters=3, fraction_train=0.5, min_train_nodes=2, seed=7).fraction_train
    0.5
    """

    fraction_train: Share = 1.0
    fraction_evaluate: Share = 1.0
    min_train_nodes: Count = 2
    min_evaluate_nodes: WholeNumber = 2
    min_available_nodes: Count = 2
    weighted_by_key: str = NUM_EXAMPLES
    arrayrecord_key: str = ARRAYS
    configrecord_key: str = CONFIG
    seed: int = 0
    min_replies: Annotated[int | float, AfterValidator(number_or_share)] = 1
    wait_timeout: Above0 = 600.0
    round_timeout: Above0 = 3600.0
    identify: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


def sample_size(clients: int, fraction: float, minimum: int) -> int:
    """How many of the clients take part in a round."""
    return min(clients, max(int(fraction * clients), minimum))


def fewest_replies(min_replies: int | float, sampled: int) -> int:
    """How many usable replies a round needs: ``min_replies`` itself, or where it is a float that share of those asked.

    At least 1. Shares are rounded up: of four clients .6 are three.
    """
    if isinstance(min_replies, int):
        return min_replies
    # 0.7 × 10 is a little more than 7 in floating point.
    return max(1, math.ceil(round(min_replies * sampled, 9)))


def sample_clients(
    clients: Sequence[str], fraction: float, minimum: int, seed: int, round_: int, stream: int
) -> list[str]:
    """A ``fraction`` of the clients, at least ``minimum`` of them: a function of seed, round and stream alone."""
    size = sample_size(len(clients), fraction, minimum)
    if size == len(clients):
        return list(clients)
    generator = np.random.default_rng([seed, round_, stream])
    return sorted(generator.choice(list(clients), size=size, replace=False).tolist())
