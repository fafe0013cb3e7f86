"""Whole runs on photos as people have them: weights from a file, frozen layers, what the rounds cost, what is left."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from bouquet.common.errors import BouquetError
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation import run
from bouquet.experiments.simulation.run import simulate
from bouquet.models.kept import cluster_model, device_model
from tests.helpers.stopped_runs import cut_after

BASE = [
    "data.clients=3",
    "data.samples_per_client=60",
    "data.public_fraction=0.1",
    "model.name=cnn-batchnorm",
    "run.rounds=3",
    "train.local_epochs=1",
    "simulation.engine=inline",
]


def settings(*changes):
    return load_settings(None, [*BASE, *changes])


def rounds(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """What a first run left behind; its file is the next one's start."""
    folder = tmp_path_factory.mktemp("first") / "run"
    simulate(settings("strategy.name=fedavg", "run.seed=3"), folder)
    return folder / "models" / "cluster-0.safetensors"


@pytest.mark.parametrize("wire", [(), ("wire.up=int4", "wire.down=int4")])
def test_frozen_layers_travel_once_and_are_in_every_model_afterwards(wire, weights, tmp_path, monkeypatch):
    monkeypatch.setattr(run.shutil, "rmtree", lambda *_, **__: None)  # what devices kept, when the run has ended
    chosen = settings("strategy.name=fedavg", f"model.weights={weights}", "model.frozen=all-but-head", *wire)
    summary = simulate(chosen, tmp_path / "run")
    lines = rounds(tmp_path / "run")
    assert [line["failures"] for line in lines] == [0, 0, 0]
    whole, head = 4 * 5850, 4 * 1290  # bytes of parameters and statistics
    for line in lines:
        assert set(line["bytes_by_layer"]["up"]) == {"fc1"}
        assert line["bytes_up"] / 3 < head + 2000
    assert lines[0]["bytes_down"] / 3 > whole - head
    assert all(set(line["bytes_by_layer"]["down"]) == {"fc1"} for line in lines[1:])
    assert all(line["bytes_down"] / 3 < head + 2000 for line in lines[1:])
    assert summary["start"]["frozen"] == ["conv1", "conv2", "norm1", "norm2"]
    assert (summary["start"]["weights"], summary["start"]["taken"]) == ("cluster-0.safetensors", 14)
    first = load_file(weights)
    of_cluster, of_device = cluster_model(tmp_path / "run", 0), device_model(tmp_path / "run/devices/client-1")
    for model in (of_cluster.model, *getattr(of_device.model, "models", [of_device.model])):
        state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
        same = {name for name, array in first.items() if np.array_equal(state[name], array)}
        assert same == {name for name in first if not name.startswith("fc1")}


METHODS = ["fesem", "gradient-loss", "fedtsdp", "fedac", "dc-pfl", "per-fedavg", "feddane", "cfl"]


@pytest.mark.parametrize("name", [*METHODS, "standalone", "hypocluster"])
def test_methods_know_nothing_of_what_is_frozen(name, weights, tmp_path):
    options = ["strategy.num_clusters=2"] if name in ("fesem", "gradient-loss", "hypocluster") else []
    changes = [f"strategy.name={name}", *options, f"model.weights={weights}", "model.frozen=conv1,norm1"]
    simulate(settings(*changes, "run.rounds=2", "train.class_weights=balanced"), tmp_path / "run")
    lines = rounds(tmp_path / "run")
    assert [line["failures"] for line in lines] == [0, 0]
    assert not set(lines[1]["bytes_by_layer"]["down"]) & {"conv1", "norm1"}
    assert not set(lines[1]["bytes_by_layer"]["up"]) & {"conv1", "norm1"}


def test_a_run_goes_on_without_its_file_and_not_with_another(weights, tmp_path):
    file = tmp_path / "mine.safetensors"
    shutil.copy(weights, file)
    changes = ["strategy.name=fedper", f"model.weights={file}", "model.frozen=conv1"]
    whole = simulate(settings(*changes), tmp_path / "whole")
    cut_after(1, settings(*changes), tmp_path / "cut")
    kept = load_file(file)
    file.write_bytes(b"something else")
    with pytest.raises(BouquetError, match="cannot go on with other weights"):
        simulate(settings(*changes), tmp_path / "cut", resume=True)
    file.unlink()
    again = simulate(settings(*changes), tmp_path / "cut", resume=True)
    assert {k: v for k, v in again.items() if k != "seconds"} == {k: v for k, v in whole.items() if k != "seconds"}
    assert np.array_equal(
        load_file(tmp_path / "cut" / "models" / "cluster-0.safetensors")["conv1.weight"], kept["conv1.weight"]
    )
    with pytest.raises(BouquetError, match=r"model\.frozen was"):
        simulate(settings(*changes[:2], "model.frozen=conv2"), tmp_path / "cut", resume=True)


def test_weights_that_cannot_be_read_end_a_run_before_it_begins(tmp_path):
    with pytest.raises(BouquetError, match="cannot be read: No such file"):
        simulate(settings("model.weights=gone.pt"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_augmentation_is_seeded_and_changes_what_is_learned(tmp_path):
    changes = ["run.rounds=1", "strategy.name=fedavg"]
    augmented = [*changes, "train.augment=crop,flip,color"]
    losses = []
    for index, chosen in enumerate((augmented, augmented, changes)):
        simulate(settings(*chosen), tmp_path / str(index))
        losses.append(rounds(tmp_path / str(index))[0]["train_loss"])
    assert losses[0] == losses[1] != losses[2]
