"""Frozen layers: which they are, that they stay to the bit, and that methods know nothing of them."""

import copy

import pytest
import torch
from torch import nn

from bouquet.client.training import sgd
from bouquet.client.training.sgd import SGDOptions
from bouquet.common.errors import BouquetError
from bouquet.common.model.architectures import build_model
from bouquet.common.model.build import initial_model, parameter_names, state_vector
from bouquet.common.model.freezing import freeze, frozen_names, head_layer, load_trained, trained_state, training_mode
from bouquet.common.settings import load_settings


def net():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 6))
    return nn.ModuleDict({"features": body, "drop": nn.Dropout(0.5), "head": nn.Linear(6, 3)})


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        parts = net()
        self.features, self.drop, self.head = parts["features"], parts["drop"], parts["head"]

    def forward(self, x):
        return self.head(self.drop(self.features(x)))


def test_a_name_stands_for_the_layers_that_begin_with_it_up_to_a_dot():
    model = freeze(Net(), ["features"])
    assert state_vector(model)[0].layers == ("head",)
    assert len(frozen_names(model)) == 2 + 5 + 2
    assert state_vector(freeze(Net(), ["features.0", "features.1"]))[0].layers == ("features.3", "head")
    with pytest.raises(BouquetError, match=r"no layer 'feat'; its layers are features\.0, features\.1, features\.3"):
        freeze(Net(), ["feat"])


@pytest.mark.parametrize("name", ["cnn-batchnorm", "torchvision:mobilenet_v3_small"])
def test_all_but_the_head(name):
    model = freeze(build_model(name, (3, 32, 32), 5, 0), ["all-but-head"])
    assert state_vector(model)[0].layers == (head_layer(model),)
    assert {n for n, p in model.named_parameters() if p.requires_grad} == set(trained_state(model))


def test_what_cannot_be_frozen():
    with pytest.raises(BouquetError, match="no parameter is left to train"):
        freeze(Net(), ["features", "head"])
    tied = Net()
    tied.head.bias = tied.features[1].bias = nn.Parameter(torch.zeros(6))
    with pytest.raises(BouquetError, match="is a parameter of another layer, too"):
        freeze(tied, ["features"])


@pytest.mark.parametrize("trained", [None, ("head.weight", "head.bias")])
def test_frozen_layers_stay_to_the_bit_in_evaluation_mode(trained):
    model = freeze(Net(), ["features"])
    before = copy.deepcopy(model.state_dict())
    options = SGDOptions(local_epochs=2, batch_size=3, learning_rate=0.1, momentum=0.9, weight_decay=0.1)
    sgd.train(model, torch.randn(8, 4), torch.arange(8) % 3, options, [], torch.Generator(), trained)
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == {"head.weight", "head.bias"}
    modes = {name: module.training for name, module in training_mode(model).named_modules()}
    assert [name for name, training in modes.items() if training] == ["", "drop", "head"]


def test_what_is_loaded_is_all_that_trains_and_nothing_else():
    model = freeze(Net(), ["features"])
    load_trained(model, {name: torch.ones_like(t) for name, t in trained_state(model).items()})
    assert model.head.weight.eq(1).all()
    with pytest.raises(RuntimeError, match=r"missing: \['head.bias'\]"):
        load_trained(model, {"head.weight": torch.zeros(3, 6)})
    with pytest.raises(RuntimeError, match=r"unexpected: \['features.0.bias'\]"):
        load_trained(model, {**trained_state(model), "features.0.bias": torch.zeros(6)})


def test_the_settings_model_is_frozen_at_both_ends():
    model = initial_model(load_settings(None, ["model.name=cnn-batchnorm", "model.frozen=conv1,norm1"]))
    layout, _ = state_vector(model)
    assert layout.layers == ("conv2", "norm2", "fc1")
    assert "conv1.weight" in parameter_names(model)
    with pytest.raises(BouquetError, match=r"model\.frozen: the model has no layer 'conv9'"):
        initial_model(load_settings(None, ["model.name=cnn-batchnorm", "model.frozen=conv9"]))
