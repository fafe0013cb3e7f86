"""Whole runs of the joint gradient and loss method on digits: what it finds and sends, and what a restart changes."""

import json
import shutil

import pytest

from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate
from tests.helpers.stopped_runs import Stopped, stop_after

BASE = [
    "data.clients=8",
    "data.groups=2",
    "data.partition=label-permuted",
    "strategy.num_clusters=2",
    "strategy.local_update=epochs",
    "simulation.engine=inline",
]


def run(folder, strategy, *changes, **how):
    simulate(load_settings(None, [*BASE, f"strategy.name={strategy}", *changes]), folder, **how)
    return read(folder)


def read(folder):
    """Summary and lines without what may differ between two runs of the same settings."""
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for part in (summary, *lines):
        del part["seconds"]
        part.pop("identification_bytes", None)
    return summary, lines


@pytest.mark.parametrize("strategy", ["gradient-loss", "ifca"])
def test_the_devices_find_their_groups(strategy, tmp_path):
    summary, lines = run(tmp_path / "run", strategy, "run.rounds=6")
    assert summary["purity"] == 1.0
    assert summary["accuracy_macro"] > 0.85
    assert [line["failures"] for line in lines] == [0] * 6
    assert sum(line["strategy"]["state_lost"] for line in lines) == 0
    assert lines[0]["strategy"]["similarity_gap"] is None
    assert lines[0]["strategy"]["loss_gap"] > 0
    assert (lines[1]["strategy"]["similarity_gap"] is None) == (strategy == "ifca")


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    """The round whose checkpoint was lost is repeated: the devices compare with the centers they compared with then."""
    whole = run(tmp_path / "whole", "gradient-loss", "run.rounds=7")
    with pytest.raises(Stopped):
        run(tmp_path / "cut", "gradient-loss", "run.rounds=7", follow=stop_after(5))
    shutil.rmtree(tmp_path / "cut" / "checkpoint" / "round-000005")
    assert run(tmp_path / "cut", "gradient-loss", "run.rounds=7", resume=True) == whole


@pytest.mark.parametrize("strategy", ["gradient-loss", "ifca"])
def test_the_number_of_models_is_found_and_a_resumed_run_is_the_same(strategy, tmp_path):
    """The round in which it changes is the second: what devices kept of the first is no use to them then."""
    found = ["run.rounds=5", "strategy.num_clusters=auto"]
    whole = run(tmp_path / "whole", strategy, *found)
    summary, lines = whole
    assert [line["strategy"]["num_clusters"] for line in lines] == [1, 2, 2, 2, 2]
    assert summary["purity"] == 1.0
    assert [line["failures"] for line in lines] == [0] * 5
    assert sum(line["strategy"]["state_lost"] for line in lines) == 0
    with pytest.raises(Stopped):
        run(tmp_path / "cut", strategy, *found, follow=stop_after(2))
    shutil.rmtree(tmp_path / "cut" / "checkpoint" / "round-000002")
    assert run(tmp_path / "cut", strategy, *found, resume=True) == whole
