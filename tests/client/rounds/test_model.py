"""A simulation fills one model anew for each message: nothing of the client before may be left in it."""

import numpy as np
import pytest
import torch

from bouquet.client.rounds.model import Built, one_for_all
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.settings import load_settings

CPU = torch.device("cpu")


def settings(*changes):
    return load_settings(None, ["data.dataset=digits", *changes])


@pytest.mark.parametrize("name", ["mlp", "cnn-batchnorm", "resnet18"])
def test_a_model_that_others_used_is_the_one_that_a_device_builds(name):
    own = settings(f"model.name={name}")
    shared, fresh = one_for_all(own, CPU), Built.of(own).on(CPU, own)
    assert shared is one_for_all(own, CPU)
    model = shared.load(np.full(shared.layout.dim, 0.5, dtype=np.float32))
    model.train()(torch.rand(4, 1, 8, 8)).sum().backward()  # moves running statistics, leaves gradients
    drawn = np.random.default_rng(0).random(fresh.layout.dim, dtype=np.float32)
    x = torch.rand(3, 1, 8, 8)
    for vector in (fresh.initial, shared.layout.flatten(shared.layout.unflatten(drawn))):
        outputs = [built.load(vector).eval()(x) for built in (shared, fresh)]
        assert torch.equal(*outputs)
        np.testing.assert_array_equal(shared.vector(), fresh.vector())
    np.testing.assert_array_equal(shared.initial, state_vector(initial_model(own))[1])


OWN = "from torch import nn\n\ndef own():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"


def test_models_of_the_users_own_and_with_frozen_layers_are_not_shared(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    assert one_for_all(settings(f"model.name={tmp_path / 'mine.py'}:own"), CPU) is None
    assert one_for_all(settings("model.name=cnn-batchnorm", "model.frozen=conv1"), CPU) is None
