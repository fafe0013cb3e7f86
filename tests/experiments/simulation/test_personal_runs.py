"""Whole runs of the methods whose devices keep layers or models of their own."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate
from tests.helpers.stopped_runs import cut_after, lines_of

BASE = ["data.clients=6", "data.partition=pathological", "data.public_fraction=0.1", "run.rounds=3"]
BASE += ["simulation.engine=inline"]
OWN = "personal.serve=own"
# H is always above this threshold, so that the second of two layers is personal after one round: 2 · 0.7 = 1.4
FEDTSDP = ("strategy.name=fedtsdp", "strategy.hopkins_threshold=0.0", "strategy.dampening=0.7")


def settings(*changes):
    return load_settings(None, [*BASE, *changes])


def test_fedtsdp_sends_fewer_layers_once_it_has_clustered(tmp_path):
    simulate(settings(*FEDTSDP), tmp_path / "run")
    first, second, third = (line["bytes_by_layer"] for line in lines_of(tmp_path / "run"))
    assert set(first["down"]) == set(first["up"]) == set(third["up"]) == {"fc1", "fc2"}
    assert set(second["down"]) == set(third["down"]) == {"fc1"}
    similarity = json.loads((tmp_path / "run" / "similarity.json").read_text())
    assert similarity["kind"].startswith("Jensen–Shannon")
    assert len(similarity["clients"]) == 6


def test_a_device_that_lost_its_layers_says_so_and_is_sent_its_clusters(tmp_path):
    """Lost without having missed a round, so that the server cannot know: the round after it repairs that."""
    run = tmp_path / "run"
    cut_after(2, settings(*FEDTSDP, "run.rounds=4"), run)
    shutil.rmtree(run / "devices" / "client-0")
    simulate(settings(*FEDTSDP, "run.rounds=4"), run, resume=True)
    third, fourth = lines_of(run)[2:]
    assert (third["strategy"]["state_lost"], fourth["strategy"]["state_lost"]) == (["client-0"], [])
    down = {client: both[1] for client, both in fourth["bytes_by_client"].items()}
    layer = 10 * 64 * 4 + 10 * 4
    assert down["client-0"] == pytest.approx(down["client-1"] + layer, abs=500)
    assert fourth["bytes_by_layer"]["down"].keys() == {"fc1", "fc2"}


def test_fedper_exchanges_the_base_only_and_suits_two_classes_a_client(tmp_path):
    """The last layer decides between classes; each device needs its own two only."""
    personal = simulate(settings("strategy.name=fedper", "run.rounds=4", OWN), tmp_path / "fedper")
    for line in lines_of(tmp_path / "fedper"):
        assert set(line["bytes_by_layer"]["up"]) == set(line["bytes_by_layer"]["down"]) == {"fc1"}
    common = simulate(settings("strategy.name=fedavg", "run.rounds=4", OWN), tmp_path / "fedavg")
    assert personal["accuracy_macro"] > common["accuracy_macro"] + 0.1


def test_ditto_is_tested_with_the_personal_models(tmp_path):
    """Its global model is FedAvg's, so that what it gains over FedAvg is the personal models'."""
    ditto = simulate(settings("strategy.name=ditto", "run.rounds=4", OWN), tmp_path / "ditto")
    common = simulate(settings("strategy.name=fedavg", "run.rounds=4", OWN), tmp_path / "fedavg")
    assert ditto["accuracy_macro"] > common["accuracy_macro"] + 0.1
    models = [load_file(tmp_path / name / "models" / "cluster-0.safetensors") for name in ("ditto", "fedavg")]
    assert all(np.array_equal(models[0][name], array) for name, array in models[1].items())
