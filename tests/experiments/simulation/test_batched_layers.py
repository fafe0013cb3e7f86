import pytest
from torch import nn

from bouquet.experiments.simulation.batched_layers import Layers


def plain():
    return nn.Sequential(
        nn.Flatten(), nn.ReLU(), nn.Linear(6, 5, bias=False), nn.ReLU(), nn.ReLU(), nn.Linear(5, 4), nn.Linear(4, 3)
    )


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(6, 3), nn.Tanh()),
        nn.Sequential(nn.Flatten(0), nn.Linear(6, 3)),
        nn.Sequential(nn.Flatten()),
        nn.Linear(6, 3),
    ],
)
def test_other_models_are_left_to_automatic_differentiation(model):
    assert Layers.of(model) is None


def test_a_layer_with_a_hook_of_its_own_is_left_to_automatic_differentiation():
    model = plain()
    model[2].register_forward_hook(lambda *_: None)
    assert Layers.of(model) is None
