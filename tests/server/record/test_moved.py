"""Who came to another cluster is in the line of its round."""

import json

from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate

SETTINGS = [
    "data.partition=label-permuted",
    "data.groups=2",
    "data.clients=6",
    "data.samples_per_client=100",
    "simulation.engine=inline",
]
SETTINGS += ["strategy.num_clusters=2", "run.rounds=8", "data.drift=[[7, 0.34]]", "train.local_epochs=4"]
SETTINGS += ["personal.serve=own", "personal.compare=false"]


def test_a_line_has_the_clusters_that_devices_came_from(tmp_path):
    simulate(load_settings(None, SETTINGS), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    before = lines[5]["assignment"]
    assert [line.get("moved") for line in lines[:7]] == [None] * 7
    assert lines[7]["moved"] == {client: before[client] for client in ("client-0", "client-1")}
    assert lines[6]["purity"] < 1 == lines[5]["purity"] == lines[7]["purity"]
