"""What a device says of a model on trial."""

import numpy as np
import pytest
import torch

from bouquet.client.rounds.rival import judged
from bouquet.client.training.evaluation import Scorer
from bouquet.common.protocol import JUDGED
from bouquet.common.settings.settings import Settings
from bouquet.common.task.task import Classification

SAMPLES = torch.tensor([[1.0], [2.0], [-1.0]]), torch.tensor([1, 1, 0])
RIGHT, WRONG, KNOWS_BY_HEART = (np.array([weight], dtype=np.float32) for weight in (1.0, -1.0, 9.0))


def load(model):
    """Logits (0, w · x) of one weight."""
    layer = torch.nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        layer.weight[:] = torch.tensor([[0.0], [float(model[0])]])
    return layer


@pytest.mark.parametrize(
    ("models", "trained", "vote"),
    [
        ((WRONG, RIGHT), None, 1),
        ((RIGHT, WRONG), None, -1),
        ((RIGHT, RIGHT), None, 0),
        ((WRONG, RIGHT), KNOWS_BY_HEART, 0),  # what it has learned decides in both
        ((WRONG, RIGHT), RIGHT / 2, 1),
    ],
)
def test_a_model_is_judged_as_the_device_serves_it(models, trained, vote):
    task = Classification(Settings().task)
    assert judged(load, models, trained, SAMPLES, task, Scorer(task)) == {JUDGED: vote}
