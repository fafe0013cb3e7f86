"""Runs in which devices serve the mixture of their models."""

import numpy as np
import pytest
import torch

from bouquet.models.export import export
from bouquet.models.kept import device_model
from client.rounds.serving import served_models
from client.state.device_state import DeviceState
from client.state.store import FolderStore
from client.training.evaluation import mixed
from common.errors import BouquetError
from common.settings import load_settings
from experiments.simulation import run
from experiments.simulation.run import STATE_FOLDER, simulate
from tests.helpers.stopped_runs import cut_after, lines_of

BASE = ["data.clients=4", "data.public_fraction=0.1", "data.samples_per_client=60", "run.rounds=3", "run.seed=1"]
BASE += ["data.partition=pathological", "simulation.engine=inline", "model.hidden=16"]
MIXTURE = "personal.serve=mixture"
# At most these: a device alone in its cluster receives what it trained. Of fedavg the personal one is the trained one.
KINDS = {
    "standalone": {"alone"},
    "fedavg": {"alone", "received", "trained"},
    "ditto": {"alone", "received", "trained", "personal"},
    "fedper": {"alone", "received", "trained", "personal"},
    "fesem": {"alone", "received", "trained"},
    "dc-pfl": {"alone", "received", "trained"},
    "ifca": {"alone", "received", "trained"},
    "fedtsdp": {"alone", "received", "trained"},
    "feddane": {"alone", "received", "trained"},
}


def settings(*changes):
    return load_settings(None, [*BASE, *changes])


def state_of(folder, client):
    return DeviceState(FolderStore(folder / STATE_FOLDER / client))


def without_seconds(summary):
    return {key: value for key, value in summary.items() if key != "seconds"}


@pytest.fixture
def kept(monkeypatch):
    """The devices' folders stay."""
    monkeypatch.setattr(run.shutil, "rmtree", lambda *_, **__: None)


def test_the_mean_is_of_probabilities():
    logits = [torch.tensor([[0.0, 0.0]]), torch.log(torch.tensor([[0.9, 0.1]]))]
    assert mixed(logits).exp().tolist() == [pytest.approx([0.7, 0.3])]


@pytest.mark.parametrize("method", sorted(KINDS))
def test_what_is_mixed_and_tested_is_what_the_device_serves(method, tmp_path, kept):
    found = simulate(settings(f"strategy.name={method}", MIXTURE), tmp_path)
    assert set(found["kept_by_client"].values()) == {"mixture"}
    state = state_of(tmp_path, "client-0")
    latest = state.latest()
    version = 2 * latest.round + 1  # the evaluation after the last round
    arrays = state.recall_aside(latest.run, "served", version)
    assert {key.partition("/")[0] for key in arrays if "/" in key} <= KINDS[method]
    model = device_model(tmp_path / STATE_FOLDER / "client-0")
    x = np.random.default_rng(0).normal(size=(5, *model.card.input_shape)).astype(np.float32)
    each = []
    for tensors in served_models(state, latest.run, latest.round):
        one = model.card.build().eval()
        one.load_state_dict({name: torch.as_tensor(array) for name, array in tensors.items()})
        each.append(one(torch.as_tensor(x)).softmax(dim=1).detach().numpy())
    np.testing.assert_allclose(model.probabilities(x), np.mean(each, axis=0), atol=1e-6)


def test_the_model_alone_is_that_of_standalone_and_the_method_is_as_without_the_mixture(tmp_path, kept):
    simulate(settings("strategy.name=standalone"), tmp_path / "alone")
    plain = simulate(settings("strategy.name=ditto"), tmp_path / "plain")
    found = simulate(settings("strategy.name=ditto", MIXTURE), tmp_path / "mixed")
    assert found["accuracy_method_macro"] == plain["accuracy_macro"]
    assert found["bytes_down"] == plain["bytes_down"]
    assert 0 < found["bytes_up"] - plain["bytes_up"] <= 60 * 4 * 4  # what is served and how good it is, a message
    state, own = state_of(tmp_path / "mixed", "client-1"), state_of(tmp_path / "alone", "client-1").latest()
    arrays = state.recall_aside(state.latest().run, "served", 2 * state.latest().round)
    for name, array in own.slots["personal"].items():
        np.testing.assert_array_equal(arrays[f"alone/{name}"], array)


def test_one_kind_alone_is_no_mixture(tmp_path):
    alone = simulate(settings("strategy.name=standalone"), tmp_path / "alone")
    found = simulate(settings("strategy.name=standalone", MIXTURE), tmp_path / "mixed")
    assert found["accuracy_by_client"] == alone["accuracy_by_client"]


def test_without_a_model_alone_it_is_not_trained(tmp_path, kept):
    simulate(settings("strategy.name=fedavg", MIXTURE, "personal.alone=false"), tmp_path)
    state = state_of(tmp_path, "client-0")
    arrays = state.recall_aside(state.latest().run, "served", 2 * state.latest().round)
    assert {key.partition("/")[0] for key in arrays if "/" in key} == {"received", "trained"}


@pytest.mark.parametrize(("method", "engine"), [("fedavg", "inline"), ("ditto", "inline"), ("ditto", "batched")])
def test_a_resumed_run_mixes_as_a_whole_one(method, engine, tmp_path):
    chosen = settings(f"strategy.name={method}", MIXTURE, f"simulation.engine={engine}")
    whole = simulate(chosen, tmp_path / "whole")
    cut_after(2, chosen, tmp_path / "cut")
    again = simulate(chosen, tmp_path / "cut", resume=True)
    assert lines_of(tmp_path / "cut") == lines_of(tmp_path / "whole")
    assert without_seconds(again) == without_seconds(whole)


@pytest.mark.parametrize("suffix", [".onnx", ".pt"])
def test_it_is_exported_as_one_file(suffix, tmp_path, kept):
    if suffix == ".onnx":
        pytest.importorskip("onnxscript")
    simulate(settings("strategy.name=fedavg", MIXTURE), tmp_path)
    export(device_model(tmp_path / STATE_FOLDER / "client-0"), tmp_path / f"model{suffix}")  # which tries it
    assert (tmp_path / f"model{suffix}").stat().st_size > 1000


def test_who_still_writes_choose_is_told_what_it_is_now():
    with pytest.raises(BouquetError, match=r"Unknown setting 'personal.choose'.* Now it is personal.serve = 'best'"):
        settings("personal.choose=true")
