"""Whole runs of the joint gradient and loss method, and of IFCA, on digits: the devices find their groups."""

import pytest

from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate
from tests.helpers.stopped_runs import lines_of

BASE = ["data.clients=8", "data.groups=2", "data.partition=label-permuted", "strategy.num_clusters=2", "run.rounds=6"]
BASE += ["strategy.local_update=epochs", "simulation.engine=inline"]


@pytest.mark.parametrize("strategy", ["gradient-loss", "ifca"])
def test_the_devices_find_their_groups(strategy, tmp_path):
    summary = simulate(load_settings(None, [*BASE, f"strategy.name={strategy}"]), tmp_path)
    lines = lines_of(tmp_path)
    assert summary["purity"] == 1.0
    assert summary["accuracy_macro"] > 0.85
    assert [line["failures"] for line in lines] == [0] * 6
    assert sum(line["strategy"]["state_lost"] for line in lines) == 0
    assert lines[0]["strategy"]["similarity_gap"] is None
    assert lines[0]["strategy"]["loss_gap"] > 0
    assert (lines[1]["strategy"]["similarity_gap"] is None) == (strategy == "ifca")
