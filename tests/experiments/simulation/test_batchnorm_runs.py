"""Every method trains models with batch normalisation: the small one, and some of them ResNet-18."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from bouquet.common.errors import BouquetError
from bouquet.common.methods import METHODS
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate

BASE = [
    "data.clients=5",
    "data.samples_per_client=40",
    "data.public_fraction=0.1",
    "train.local_epochs=1",
    "simulation.engine=inline",
    "run.rounds=2",
]


def run(folder, *changes):
    summary = simulate(load_settings(None, [*BASE, *changes]), folder)
    return summary, [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def models_of(folder):
    return [load_file(file) for file in sorted((folder / "models").glob("*.safetensors"))]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_a_small_cnn_with_batch_normalisation(name, tmp_path):
    summary, lines = run(tmp_path, f"strategy.name={name}", "model.name=cnn-batchnorm")
    assert [(line["replies"], line["failed"]) for line in lines] == [(5, {})] * 2
    assert summary["clients"] == 5
    assert all(np.isfinite(line["loss"]) for line in lines)
    for tensors in models_of(tmp_path):
        assert tensors["norm1.num_batches_tracked"].shape == ()
        assert tensors["norm1.num_batches_tracked"].dtype == np.int64
        # Statistics are those of data: a model of a server that averaged them wrongly says nothing.
        assert (tensors["norm2.running_var"] > 0).all()
    if name not in ("fedper", "standalone"):  # whose models are on the devices
        assert any(tensors["norm1.num_batches_tracked"] > 0 for tensors in models_of(tmp_path))


@pytest.mark.parametrize(
    "changes", [("strategy.name=fedavg", "model.norm=group"), ("strategy.name=standalone", "run.rounds=2")]
)
def test_resnet18(changes, tmp_path):
    """`standalone` lost all its clients in round 2, and ended well all the same."""
    few = ("data.clients=2", "data.samples_per_client=20", "run.rounds=1", "personal.serve=own")
    _, lines = run(tmp_path, "model.name=resnet18", *few, *changes)
    assert [(line["replies"], line["failed"]) for line in lines] == [(2, {})] * len(lines)


def test_matched_averaging_refuses_a_model_with_skip_connections_by_name(tmp_path):
    few = ("data.clients=2", "data.samples_per_client=20", "run.rounds=1")
    with pytest.raises(BouquetError, match="cannot be matched"):
        run(tmp_path, "model.name=resnet18", "strategy.name=fesem-ma", *few)


def test_a_mini_batch_of_one_ends_the_run_with_what_to_change(tmp_path):
    with pytest.raises(BouquetError, match=r"mini-batch of one sample.*train\.batch_size from 2"):
        run(tmp_path, "strategy.name=fedavg", "model.name=resnet18", "train.batch_size=1", "data.samples_per_client=20")
