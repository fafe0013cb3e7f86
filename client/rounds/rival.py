"""Whether the device would do better with the model on trial, which it judges beside the one that it was sent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor, nn

from bouquet.client.training import evaluation
from bouquet.client.training.evaluation import Scorer
from bouquet.common.errors import NotNow
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol import JUDGED, Scalar
from bouquet.common.task.task import Task


def judged(
    load: Callable[[Vector], nn.Module],
    models: tuple[Vector, Vector],
    trained: Vector | None,
    samples: tuple[Tensor, Tensor],
    task: Task,
    scorer: Scorer,
) -> dict[str, Scalar]:
    """What a reply's config says of the model on trial; empty where the owner ends the work.

    ``models`` (d,) are the one that training began with, and the one on trial. Either is judged as the device serves
    it: by itself, or together with the ``trained`` one, because then what the device learns by itself is no reason to
    be in a cluster. By all of its training samples, which both have seen alike, with those that it kept out of this
    round.
    """
    with suppress(NotNow):
        said = [evaluation.predict(load(model), samples[0]) for model in (*models, trained) if model is not None]
        by_own, by_rival = (scorer.errors(task.together([one, *said[2:]]), samples[1]) for one in said[:2])
        return {JUDGED: int(torch.sign(torch.sign(torch.nan_to_num(by_own - by_rival)).sum()))}
    return {}
