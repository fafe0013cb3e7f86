"""A run that was killed and goes on ends as one that was not, whatever the method, and whatever travels."""

import shutil

import numpy as np
import pytest

from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate
from bouquet.strategies.baselines.cfl import CFL
from tests.helpers.stopped_runs import cut_after, lines_of, models_of, summary_of

BASE = ["data.clients=6", "data.samples_per_client=100", "data.public_fraction=0.1", "data.partition=pathological"]
BASE += ["run.rounds=4", "simulation.engine=inline"]
WIRE = ["wire.up=int4", "wire.down=int4", "server.fraction_train=0.75"]
SOME = "server.fraction_train=0.5"
CHOSEN = {
    "fesem": ["strategy.num_clusters=2"],
    "standalone": [],
    "fedavg": [],
    # H is always above this threshold, so that the second of two layers is personal after one round: 2 · 0.7 = 1.4
    "fedtsdp": ["strategy.hopkins_threshold=0.0", "strategy.dampening=0.7"],
    "fedper": [],
    "ditto": [],
    "ditto with a budget": ["train.budget=fleet", "simulation.speeds=[100,10,3]"],
    "anchored": ["strategy.num_clusters=2"],
    "feddane": [],
    "per-fedavg": [],
    "gradient-loss": ["strategy.num_clusters=2", "data.partition=label-permuted", "data.groups=2"],
    "fedac of some": [SOME],
    "ifca of some": ["strategy.num_clusters=2", SOME],
    "hypocluster of some": ["strategy.num_clusters=2", SOME],
    "cfl of some": [SOME],
    "fl-hc of some": ["strategy.num_clusters=2", "strategy.warmup_rounds=1", SOME],
    "fedgroup of some": ["strategy.num_clusters=2", SOME],
    "robust-tkm of some": ["strategy.num_clusters=2", SOME],
    "clusterfl of some": ["strategy.num_clusters=2", SOME],
    "cgpfl of some": ["strategy.num_clusters=2", SOME],
    "ditto as a mixture": ["personal.serve=mixture"],
    "fedavg batched": ["simulation.engine=batched", "personal.compare=true"],
    "fesem in int4": ["strategy.num_clusters=2", *WIRE],
    "dc-pfl in int4": WIRE,
}


@pytest.mark.parametrize("name", CHOSEN)
def test_a_resumed_run_equals_an_uninterrupted_one(name, tmp_path, monkeypatch):
    """The last checkpoint is lost: devices have been through round 3, and begin it again as they began it then."""
    for threshold, value in (("settled", 1.1), ("in_conflict", 0.01), ("min_separation", 0.1)):
        monkeypatch.setattr(CFL, threshold, value)  # so that it divides in few rounds
    chosen = load_settings(None, [*BASE, f"strategy.name={name.partition(' ')[0]}", *CHOSEN[name]])
    simulate(chosen, tmp_path / "whole")
    cut_after(3, chosen, tmp_path / "cut")
    assert not (tmp_path / "cut" / "summary.json").exists()
    shutil.rmtree(tmp_path / "cut" / "checkpoint" / "round-000003")
    simulate(chosen, tmp_path / "cut", resume=True)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert (lines_of(cut), summary_of(cut)) == (lines_of(whole), summary_of(whole))
    assert all(line["failures"] == 0 for line in lines_of(whole))
    np.testing.assert_equal(models_of(cut), models_of(whole))


@pytest.mark.parametrize("more", [[], ["wire.up=int8", "wire.down=int8"], ["train.budget=fleet"]], ids=str)
def test_who_was_at_work_when_the_server_was_killed_is_counted_once(more, tmp_path):
    """Whoever has replied is asked in the next round: no task is without a reply, and none has two."""
    slow = ["simulation.speeds=[1000,300,30]", "server.buffer=0.4", "run.rounds=14"]
    chosen = load_settings(None, [*BASE, "strategy.name=fedavg", *slow, *more])
    cut_after(4, chosen, tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "checkpoint" / "round-000004")
    simulate(chosen, tmp_path / "cut", resume=True)
    lines, due = lines_of(tmp_path / "cut"), {}
    assert [line["round"] for line in lines] == [*range(1, 15)]
    assert not any(line["failures"] for line in lines)
    for line in lines:
        for client in line["by_client"]:
            assert line["round"] - line["late"].get(client, 0) == due.get(client, 1), (client, line["round"])
            due[client] = line["round"] + 1
    assert any(line["round"] - late < 4 <= line["round"] for line in lines for late in line["late"].values())
