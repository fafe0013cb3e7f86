"""Runs in which the fleet decides what devices answer with, as it is without a setting."""

import json

import pytest

from bouquet.client.rounds.mixture import Mixing
from bouquet.client.rounds.serving import served_models
from bouquet.client.state.device_state import DeviceState
from bouquet.client.state.store import FolderStore
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation import run
from bouquet.experiments.simulation.run import STATE_FOLDER, simulate
from bouquet.models.kept import device_model
from bouquet.strategies.base.filters.serving import FleetVote

BASE = ["data.clients=5", "data.public_fraction=0.1", "data.samples_per_client=60", "run.rounds=4", "run.seed=1"]
BASE += ["simulation.engine=inline", "model.hidden=16", "strategy.name=fedavg"]
OWN_MIXES = ["data.partition=pathological", "data.classes_per_client=2"]
ALIKE = ["data.partition=iid", "data.samples_per_client=20", "data.clients=12", "run.rounds=8"]


def settings(*changes):
    return load_settings(None, [*BASE, *changes])


@pytest.mark.parametrize(("changes", "kind"), [(OWN_MIXES, "mixture"), (ALIKE, "received")])
def test_the_fleet_serves_what_it_does_better_with(changes, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(run.shutil, "rmtree", lambda *_, **__: None)
    found = simulate(settings(*changes), tmp_path)
    assert set(found["kept_by_client"].values()) == {kind}
    assert found["accuracy_macro"] == pytest.approx(found["accuracy_in_use_macro"])
    assert found["accuracy_in_use_macro"] > found["accuracy_alone_macro"] - 0.02
    if kind == "received":
        assert found["accuracy_in_use_macro"] == found["accuracy_received_macro"]
    name = sorted(found["kept_by_client"])[0]
    state = DeviceState(FolderStore(tmp_path / STATE_FOLDER / name))
    latest = state.latest()
    models = served_models(state, latest.run, latest.round)
    assert len(models) == (1 if kind == "received" else 3)
    device_model(tmp_path / STATE_FOLDER / name)  # what `bouquet predict` answers with


def test_alone_is_what_standalone_gives(tmp_path):
    alone = simulate(settings(*OWN_MIXES, "strategy.name=standalone"), tmp_path / "alone")
    found = simulate(settings(*OWN_MIXES), tmp_path / "found")
    assert found["accuracy_alone_macro"] == pytest.approx(alone["accuracy_macro"], abs=1e-6)
    own = simulate(settings(*OWN_MIXES, "strategy.name=standalone", "personal.serve=own"), tmp_path / "own")
    assert alone["accuracy_by_client"] == own["accuracy_by_client"]  # nothing is kept out of what nobody judges


def test_the_engines_decide_alike(tmp_path):
    heard = {}
    for engine in ("inline", "batched"):
        simulate(settings(*OWN_MIXES, f"simulation.engine={engine}"), tmp_path / engine)
        checkpoint = sorted((tmp_path / engine / "checkpoint").glob("round-*"))[-1]
        heard[engine] = json.loads((checkpoint / "state.json").read_text())["state"]["_serving"]["sums"]
    assert heard["inline"] == pytest.approx(heard["batched"], abs=0.05)
    assert set(heard["inline"]) == {f"client-{number}" for number in range(5)}


@pytest.mark.parametrize(
    "changes",
    [
        ["data.clients=1", "server.min_clients=1", "server.min_replies=1"],
        ["data.samples_per_client=3", "data.min_samples=2"],
    ],
    ids=" ".join,
)
def test_one_device_and_very_few_samples_are_no_trouble(changes, tmp_path):
    found = simulate(settings(*changes), tmp_path)
    assert len(found["kept_by_client"]) == found["clients"]


def test_nothing_is_counted_in_the_first_round_nor_under_privacy(tmp_path, monkeypatch):
    said = []
    incoming = FleetVote.incoming
    monkeypatch.setattr(
        FleetVote, "incoming", lambda self, r: said.append(r.config.get("serving")) or incoming(self, r)
    )
    simulate(settings("run.rounds=1"), tmp_path / "first")
    assert said == [None] * 5
    counted = []
    monkeypatch.setattr(Mixing, "_counted", lambda *_: counted.append(1) or {})
    private = ["privacy.clip_norm=1", "privacy.noise_multiplier=0.01"]
    simulate(settings(*private, "privacy.scores=send"), tmp_path / "private")
    assert not counted
    found = json.loads((tmp_path / "private" / "summary.json").read_text())
    assert set(found["kept_by_client"].values()) == {"mixture"}


def test_without_the_comparison_nothing_is_trained_alone(tmp_path):
    found = simulate(settings(*OWN_MIXES, "personal.compare=false"), tmp_path)
    assert all("alone" not in kinds for kinds in found["mixed_by_client"].values())
    assert "accuracy_alone_macro" not in found
