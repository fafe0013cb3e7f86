"""Whole runs of DC-PFL on digits with real devices: bytes, restarts, lost state and the report."""

import json
import shutil

import pytest

from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate
from tests.helpers.stopped_runs import cut_after, lines_of

SETTINGS = [
    "strategy.name=dc-pfl",
    "strategy.discrepancy_rounds=2",
    "strategy.loss_window=1",
    "strategy.observe_rounds=1",
    "strategy.slow_ratio=0.8",
    "data.clients=6",
    "data.groups=3",
    "data.partition=dominant",
    "model.hidden=[32,16]",
    "train.learning_rate=0.05",
    "run.rounds=10",
    "simulation.engine=inline",
]


@pytest.fixture(scope="module")
def settings():
    return load_settings(None, SETTINGS)


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    simulate(settings, folder)
    return folder


def test_slow_layers_are_in_no_bytes_and_trials_split_the_groups(finished):
    lines = lines_of(finished)
    assert all(line["replies"] == 6 and not line["failed"] for line in lines)
    whole = lines[0]["bytes_by_layer"]["up"]
    between = [line for line in lines[2:] if set(line["bytes_by_layer"]["up"]) < set(whole)]
    assert between
    for line in between:
        slow = set(lines[line["round"] - 2]["strategy"]["groups"][0]["slow"])
        assert set(line["bytes_by_layer"]["up"]) == set(whole) - slow
    trials = [line for line in lines if line["strategy"]["trial"]]
    assert any(line["strategy"]["trial"]["accepted"] for line in trials)
    first = trials[0]
    assert sum(first["bytes_by_layer"]["down"].values()) == 2 * sum(whole.values())
    assert first["bytes_by_layer"]["up"] == whole
    assert lines[-1]["clusters"] > 1
    # how many splits there are depends on the losses of so short a run; none of them cuts a true group
    summary = json.loads((finished / "summary.json").read_text())
    found = {(group, summary["assignment"][client]) for client, group in summary["groups"].items()}
    assert len(found) == 3


@pytest.mark.parametrize(("after", "is_lost"), [(3, False), (5, True), (6, True), (8, False)])
def test_a_restart_of_the_server_in_any_phase_changes_nothing(after, is_lost, settings, finished, tmp_path):
    """Also where the checkpoint was lost of a round that the devices have been through, and both its messages."""
    cut_after(after, settings, tmp_path / "cut")
    if is_lost:
        shutil.rmtree(tmp_path / "cut" / "checkpoint" / f"round-{after:06}")
    simulate(settings, tmp_path / "cut", resume=True)
    assert lines_of(tmp_path / "cut") == lines_of(finished)
