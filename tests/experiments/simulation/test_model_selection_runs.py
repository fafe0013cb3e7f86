"""Runs in which devices choose what they keep, over several methods."""

import numpy as np
import pytest

from bouquet.client.rounds.serving import served_models
from bouquet.client.state.device_state import DeviceState
from bouquet.client.state.store import FolderStore
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation import run
from bouquet.experiments.simulation.run import STATE_FOLDER, simulate
from bouquet.models.kept import device_model
from tests.helpers.stopped_runs import cut_after, lines_of

# A seed at which no device keeps what it trained alone in an earlier round, which is not what standalone ends with.
BASE = ["data.clients=5", "data.public_fraction=0.1", "data.samples_per_client=60", "run.rounds=3", "run.seed=1"]
BASE += ["simulation.engine=inline", "model.hidden=16"]
CHOOSE = "personal.serve=best"


def settings(*changes):
    return load_settings(None, [*BASE, *changes])


def without_seconds(summary):
    return {key: value for key, value in summary.items() if key != "seconds"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The accuracies of devices that train alone, where each has two classes."""
    folder = tmp_path_factory.mktemp("alone")
    changes = ["data.partition=pathological", "strategy.name=standalone"]
    return simulate(settings(*changes), folder)["accuracy_by_client"]


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedper", "fesem", "dc-pfl", "ifca", "fedtsdp", "feddane"])
def test_a_device_that_keeps_the_model_trained_alone_has_that_of_standalone(method, alone, tmp_path):
    chosen = settings("data.partition=pathological", f"strategy.name={method}", CHOOSE)
    found = simulate(chosen, tmp_path / "run")
    kept = found["kept_by_client"]
    own = [client for client, kind in kept.items() if kind == "alone"]
    assert len(own) >= 3  # after three rounds, with two classes a device, nothing is as good
    assert {client: found["accuracy_by_client"][client] for client in own} == {client: alone[client] for client in own}
    assert all(line["failures"] == 0 for line in lines_of(tmp_path / "run"))
    assert found["accuracy_macro"] > found["accuracy_method_macro"] - 0.05


def test_where_all_are_alike_and_samples_are_few_the_federations_model_is_kept(tmp_path):
    few = ("data.clients=20", "data.samples_per_client=30", "run.rounds=12", "train.learning_rate=0.2", CHOOSE)
    found = simulate(settings("strategy.name=fedavg", *few), tmp_path / "run")
    kept = list(found["kept_by_client"].values())
    assert kept.count("received") >= 15
    last = lines_of(tmp_path / "run")[-1]["by_client"]
    assert {"kept", "accuracy_kept"} <= set(last["client-00"])


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_a_resumed_run_chooses_as_a_whole_one(method, tmp_path):
    chosen = settings(f"strategy.name={method}", CHOOSE)
    whole = simulate(chosen, tmp_path / "whole")
    cut_after(2, chosen, tmp_path / "cut")
    again = simulate(chosen, tmp_path / "cut", resume=True)
    assert lines_of(tmp_path / "cut") == lines_of(tmp_path / "whole")
    assert without_seconds(again) == without_seconds(whole)


def test_what_is_served_is_what_was_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr(run.shutil, "rmtree", lambda *_, **__: None)
    found = simulate(settings("data.partition=pathological", "strategy.name=fedavg", CHOOSE), tmp_path)
    assert found["kept_by_client"]["client-0"] == "alone"
    folder = tmp_path / STATE_FOLDER / "client-0"
    state = DeviceState(FolderStore(folder))
    latest = state.latest()
    (chosen,) = served_models(state, latest.run, latest.round)
    served = {name: tensor.numpy() for name, tensor in device_model(folder).model.state_dict().items()}
    for name, array in chosen.items():
        np.testing.assert_array_equal(served[name], array)
    assert any(np.any(served[name] != array) for name, array in latest.slots["personal"].items())


def test_without_a_model_trained_alone_others_are_compared_with_the_methods_own(tmp_path):
    chosen = settings("data.partition=pathological", "strategy.name=fedavg", CHOOSE, "personal.alone=never")
    kept = simulate(chosen, tmp_path / "run")["kept_by_client"]
    assert set(kept.values()) == {"personal"}


def test_the_choice_costs_no_model_on_the_wire(tmp_path):
    plain = simulate(settings("strategy.name=fedavg"), tmp_path / "plain")
    chosen = simulate(settings("strategy.name=fedavg", CHOOSE), tmp_path / "chosen")
    messages = 5 * 4
    for way in ("bytes_up", "bytes_down"):
        assert 0 < chosen[way] - plain[way] < 400 * messages
