"""A run that ends when its score stands still."""

import json

from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate

SMALL = ["data.clients=2", "data.samples_per_client=40", "run.rounds=30", "simulation.engine=inline"]
SMALL += ["strategy.name=fedavg", "personal.compare=false", "train.local_epochs=4", "train.learning_rate=0.2"]


def lines_of(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_a_run_ends_after_so_many_rounds_without_a_better_score(tmp_path):
    summary = simulate(load_settings(None, [*SMALL, "run.patience=3"]), tmp_path / "run")
    lines = lines_of(tmp_path / "run")
    scores = [line["accuracy_macro"] for line in lines]
    assert 4 <= len(lines) == summary["rounds"] < 30
    assert max(scores[-3:]) <= max(scores[:-3])
    assert all(max(scores[: n - 3]) < max(scores[n - 3 : n]) for n in range(4, len(scores)))
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["round"]) == ("finished", len(lines))
    # Asked to go on it has nothing to do, and with more patience it goes on.
    simulate(load_settings(None, [*SMALL, "run.patience=3"]), tmp_path / "run", resume=True)
    assert lines_of(tmp_path / "run") == lines
    more = load_settings(None, [*SMALL, "run.patience=0", f"run.rounds={len(lines) + 1}"])
    assert simulate(more, tmp_path / "run", resume=True)["rounds"] == len(lines) + 1
