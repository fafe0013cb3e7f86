"""Whole runs of the joint gradient and loss method, and of IFCA, on digits: the devices find their groups."""

import shutil

import pytest

from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate
from tests.helpers.stopped_runs import cut_after, lines_of, summary_of

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


def test_the_number_of_models_is_found_and_a_resumed_run_is_the_same(tmp_path):
    """The round in which it changes is the second: what devices kept of the first is no use to them then."""
    found = load_settings(None, [*BASE, "strategy.name=gradient-loss", "run.rounds=5", "strategy.num_clusters=auto"])
    assert simulate(found, tmp_path / "whole")["purity"] == 1.0
    lines = lines_of(tmp_path / "whole")
    assert [line["strategy"]["num_clusters"] for line in lines] == [1, 2, 2, 2, 2]
    assert [line["failures"] for line in lines] == [0] * 5
    assert sum(line["strategy"]["state_lost"] for line in lines) == 0
    cut_after(2, found, tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "checkpoint" / "round-000002")
    simulate(found, tmp_path / "cut", resume=True)
    assert (lines_of(tmp_path / "cut"), summary_of(tmp_path / "cut")) == (lines, summary_of(tmp_path / "whole"))
