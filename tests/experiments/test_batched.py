import numpy as np
import pytest

from common.settings import load_settings
from experiments.simulation import simulate

BASE = ["run.rounds=2", "data.clients=7", "data.partition=dirichlet", "server.min_clients=2", "train.local_epochs=2"]


def runs(folder, *changes):
    return {
        engine: simulate(load_settings(None, [*BASE, *changes, f"simulation.engine={engine}"]), folder / engine)
        for engine in ("inline", "batched")
    }


def centers(folder):
    from safetensors.numpy import load_file

    return {f"{file.name}/{n}": a for file in sorted(folder.glob("models/*")) for n, a in load_file(file).items()}


@pytest.mark.parametrize(
    "changes",
    [
        ("strategy.name=fedavg", "model.name=mlp"),
        ("strategy.name=fedavg", "model.name=cnn-dcpfl", "train.max_gradient_norm=none", "train.momentum=0"),
        ("strategy.name=fedprox", "train.weight_decay=0.01", "simulation.at_once=3"),
        ("strategy.name=fedrep",),
        ("strategy.name=ditto",),
        ("strategy.name=feddane",),
    ],
)
def test_the_same_as_one_by_one(tmp_path, changes):
    found = runs(tmp_path, *changes)
    one, many = centers(tmp_path / "inline"), centers(tmp_path / "batched")
    assert one.keys() == many.keys()
    for name in one:
        np.testing.assert_allclose(many[name], one[name], rtol=0, atol=1e-5)
    assert found["batched"]["accuracy_by_client"] == found["inline"]["accuracy_by_client"]
