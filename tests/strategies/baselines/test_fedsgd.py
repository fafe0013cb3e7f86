import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bouquet.client.data.loading import load_partition
from bouquet.common.model.build import initial_model
from tests.helpers.real_devices import Federation


@pytest.mark.parametrize("partition", ["pathological", "dirichlet"], ids=["equal parts", "unequal parts"])
def test_it_is_centralised_gradient_descent(partition, tmp_path):
    """Three rounds are three steps of gradient descent on all devices' samples together, whoever holds how many."""
    changes = [
        "data.partition=" + partition,
        "data.samples_per_client=400",
        "train.local_epochs=7",
        "train.learning_rate=0.1",
        "personal.serve=own",  # no device keeps a part of its samples to itself
    ]
    federation = Federation(tmp_path, "strategy.name=fedsgd", *changes)
    found = federation.play(1, 2, 3)
    data = federation.settings.data
    parts = [
        load_partition(data.dataset, data.partition, part, data.clients, 0, **data.partition_options())
        for part in range(data.clients)
    ]
    counts = [len(part.train_y) for part in parts]
    assert (max(counts) > 1.2 * min(counts)) == (partition == "dirichlet")
    samples = [(part.train_x, part.train_y) for part in parts]
    x, y = (torch.as_tensor(np.concatenate(arrays)) for arrays in zip(*samples, strict=True))
    model = initial_model(federation.settings)
    for _ in range(3):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= federation.settings.train.learning_rate * parameter.grad
    central = federation.layout.flatten({name: t.detach().numpy() for name, t in model.state_dict().items()})
    assert np.abs(central - federation.initial).max() > 0.01
    np.testing.assert_allclose(found, central, atol=2e-6)


def test_momentum_is_without_effect(tmp_path):
    plain, heavy = (
        Federation(tmp_path / name, "strategy.name=fedsgd", f"train.momentum={value}").play(1)
        for name, value in (("plain", 0.0), ("heavy", 0.9))
    )
    np.testing.assert_array_equal(plain, heavy)
