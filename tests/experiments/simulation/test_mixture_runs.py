"""Runs in which devices serve the mixture of their models."""

import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from bouquet.client.data.loading import part_of
from bouquet.client.rounds import mixture
from bouquet.client.rounds.samples import RoundSamples
from bouquet.client.rounds.serving import LEFT_OUT, served_models
from bouquet.client.state.device_state import DeviceState
from bouquet.client.state.store import FolderStore
from bouquet.common.settings import load_settings
from bouquet.common.settings.sections import TaskSettings
from bouquet.common.task.task import Classification
from bouquet.experiments.simulation import run
from bouquet.experiments.simulation.run import STATE_FOLDER, simulate
from bouquet.models.export import export
from bouquet.models.kept import device_model
from bouquet.server.record.reader import read_run
from tests.helpers.stopped_runs import lines_of

BASE = ["data.clients=4", "data.public_fraction=0.1", "data.samples_per_client=60", "run.rounds=3", "run.seed=1"]
BASE += ["data.partition=pathological", "simulation.engine=inline", "model.hidden=16"]
BASE += ["personal.serve=own", "personal.compare=false"]
MIXTURE = "personal.serve=mixture"
# At most these: a device alone in its cluster receives what it trained. Of fedavg the personal one is the trained one.
KINDS = {
    "standalone": {"alone", "trained"},
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


@pytest.fixture
def kept(monkeypatch):
    """The devices' folders stay."""
    monkeypatch.setattr(run.shutil, "rmtree", lambda *_, **__: None)


def test_the_mean_is_of_probabilities():
    logits = [torch.tensor([[0.0, 0.0]]), torch.log(torch.tensor([[0.9, 0.1]]))]
    assert Classification(TaskSettings()).together(logits).exp().tolist() == [pytest.approx([0.7, 0.3])]


@pytest.mark.parametrize("method", sorted(KINDS))
def test_what_is_mixed_and_tested_is_what_the_device_serves(method, tmp_path, kept):
    found = simulate(settings(f"strategy.name={method}", MIXTURE), tmp_path)
    assert set(found["kept_by_client"].values()) == {"mixture"}
    state = state_of(tmp_path, "client-0")
    latest = state.latest()
    version = 2 * latest.round + 1  # the evaluation after the last round
    arrays = state.load_arrays(latest.run, "served", version)
    assert {key.partition("/")[0] for key in arrays if "/" in key} <= KINDS[method] | {LEFT_OUT}
    model = device_model(tmp_path / STATE_FOLDER / "client-0")
    x = np.random.default_rng(0).normal(size=(5, *model.card.input_shape)).astype(np.float32)
    each = []
    for tensors in served_models(state, latest.run, latest.round):
        one = model.card.build().eval()
        one.load_state_dict({name: torch.as_tensor(array) for name, array in tensors.items()})
        each.append(one(torch.as_tensor(x)).softmax(dim=1).detach().numpy())
    np.testing.assert_allclose(model.probabilities(x), np.mean(each, axis=0), atol=1e-6)


def test_the_method_is_as_without_the_mixture(tmp_path):
    plain = simulate(settings("strategy.name=ditto"), tmp_path / "plain")
    found = simulate(settings("strategy.name=ditto", MIXTURE), tmp_path / "mixed")
    assert found["accuracy_method_macro"] == plain["accuracy_macro"]
    assert found["bytes_down"] == plain["bytes_down"]
    assert 0 < found["bytes_up"] - plain["bytes_up"] <= 70 * 4 * 4  # what is served and how good it is, a message


def kept_by_kind(folder, client):
    """Tensors by slot, after the last evaluation."""
    state = state_of(folder, client)
    latest, found = state.latest(), {}
    for key, array in state.load_arrays(latest.run, "served", 2 * latest.round + 1).items():
        slot, separator, name = key.partition("/")
        if separator:
            found.setdefault(slot, {})[name] = torch.as_tensor(array)
    return found


def held_out(samples, number):
    """The half of a device's training samples that its model alone never trains on."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"1/client-{number}/0".encode()))
    return torch.randperm(samples, generator=generator)[: samples // 2]


def wrong(model, tensors, x, y):
    model.load_state_dict(tensors)
    return int((model(x).argmax(dim=1) != y).sum())


# With half of the data held out for the judgement, and not a fifth, chance has less to say.
JUDGED = [MIXTURE, "data.samples_per_client=40", "train.local_epochs=4", "run.rounds=4"]


@pytest.mark.parametrize(("partition", "is_mixed"), [("iid", False), ("pathological", True)])
def test_the_model_alone_is_left_out_where_the_received_one_errs_less_on_the_unseen(
    partition, is_mixed, tmp_path, kept, monkeypatch
):
    monkeypatch.setattr(mixture, "HELD_OUT", 0.5)
    chosen = settings("strategy.name=fedavg", *JUDGED, f"data.partition={partition}", "data.classes_per_client=1")
    simulate(chosen, tmp_path)
    model = device_model(tmp_path / STATE_FOLDER / "client-0").card.build().eval()
    for number in range(4):
        slots = kept_by_kind(tmp_path, f"client-{number}")
        data = part_of(chosen, number)
        x, y = torch.as_tensor(data.train_x), torch.as_tensor(data.train_y)
        held = held_out(len(y), number)
        alone = slots.get("alone", slots.get(LEFT_OUT))
        errors, of_received = (wrong(model, one, x[held], y[held]) for one in (alone, slots["received"]))
        assert ("alone" in slots) == (errors <= of_received) == is_mixed
    served = served_models(state_of(tmp_path, "client-0"), state_of(tmp_path, "client-0").latest().run, 4)
    assert len(served) == (3 if is_mixed else 2)
    said = (["alone"] if is_mixed else []) + ["received", "trained"]
    record = read_run(tmp_path)
    assert record.summary["mixed_by_client"] == {f"client-{number}": said for number in range(4)}
    assert record.summary["alone_left_out_by"] == ([] if is_mixed else [f"client-{number}" for number in range(4)])
    assert record.rounds[-1]["by_client"]["client-0"]["mixed"] == said
    assert record.served("client-3") == (
        "alone + received + trained" if is_mixed else "received + trained, without alone"
    )
    (tmp_path / "summary.json").unlink()
    assert read_run(tmp_path).served("client-3") == " + ".join(said) + ("" if is_mixed else ", without alone")


def test_of_a_private_run_the_record_says_nothing_of_what_is_served(tmp_path):
    private = ["privacy.clip_norm=1.0", "privacy.noise_multiplier=0.1", "strategy.name=fedavg"]
    found = simulate(settings(*private, MIXTURE), tmp_path)
    assert not {"kept_by_client", "mixed_by_client", "alone_left_out_by"} & set(found)
    numbers = lines_of(tmp_path)[-1]["by_client"]["client-0"]
    assert not {"kept", "mixed", "alone_left_out"} & set(numbers)


def test_the_model_alone_never_saw_what_it_is_judged_on(tmp_path, kept, monkeypatch):
    monkeypatch.setattr(mixture, "HELD_OUT", 0.5)
    chosen = settings("strategy.name=fedavg", *JUDGED)
    simulate(chosen, tmp_path / "true")
    read = RoundSamples.of

    def with_other_labels(data, device, seed):
        if seed != zlib.crc32(b"1/client-0/0"):
            return read(data, device, seed)
        y = data.train_y.copy()
        y[held_out(len(y), 0)] = (y[held_out(len(y), 0)] + 1) % 10
        return read(replace(data, train_y=y), device, seed)

    monkeypatch.setattr(RoundSamples, "of", with_other_labels)
    simulate(chosen, tmp_path / "false")
    before, after = (kept_by_kind(tmp_path / name, "client-0") for name in ("true", "false"))
    alone = [slots.get("alone", slots.get(LEFT_OUT)) for slots in (before, after)]
    assert all(torch.equal(one, alone[1][name]) for name, one in alone[0].items())
    assert not all(torch.equal(one, after["trained"][name]) for name, one in before["trained"].items())


@pytest.mark.parametrize("suffix", [".onnx", ".pt"])
def test_it_is_exported_as_one_file(suffix, tmp_path, kept):
    if suffix == ".onnx":
        pytest.importorskip("onnxscript")
    simulate(settings("strategy.name=fedavg", MIXTURE), tmp_path)
    export(device_model(tmp_path / STATE_FOLDER / "client-0"), tmp_path / f"model{suffix}")  # which tries it
    assert (tmp_path / f"model{suffix}").stat().st_size > 1000
