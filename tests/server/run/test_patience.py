"""A run that ends when its devices do no better."""

import json

import pytest

from bouquet.common.settings import load_settings
from bouquet.common.task.score import ACCURACY, Score
from bouquet.experiments.simulation.run import simulate
from bouquet.server.run.patience import Standstill

SMALL = ["data.clients=2", "data.samples_per_client=40", "run.rounds=30", "simulation.engine=inline"]
SMALL += ["strategy.name=fedavg", "personal.compare=false", "train.local_epochs=4", "train.learning_rate=0.2"]


def lines_of(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def standing_still(lines, score=ACCURACY):
    """The rounds without a better one, after each of the lines."""
    still = Standstill(score)
    return [(still.add(line), still.rounds)[1] for line in lines]


def line(scores, key="accuracy"):
    return {"by_client": {client: {key: value} for client, value in scores.items()}}


@pytest.mark.parametrize("honest", [2, 3, 20])
def test_one_device_keeps_no_run_on(honest):
    rounds = [{**{f"d{k}": 0.5 for k in range(honest)}, "liar": n / 100} for n in range(10)]
    assert standing_still(map(line, rounds)) == [*range(10)]
    error = Score("mae", "MAE", "s", higher_is_better=False)
    worse = [{**{f"d{k}": 2.0 for k in range(honest)}, "liar": 10.0**-n} for n in range(10)]
    assert standing_still([line(one, "mae") for one in worse], error) == [*range(10)]


@pytest.mark.parametrize("honest", [3, 20])
def test_one_device_ends_no_run_of_which_the_others_do_better(honest):
    rounds = [{**{f"d{k}": n / 100 for k in range(honest)}, "liar": 1.0 if n < 2 else 0.0} for n in range(10)]
    assert standing_still(map(line, rounds)) == [0] * 10


def test_rounds_of_devices_that_were_in_none_before_do_not_count():
    rounds = [{"a": 0.5}, {"b": 0.4}, {"a": 0.5, "c": 0.4}, {}, {"c": 0.4, "d": 0.1, "e": 0.1}, {"a": 0.6}]
    assert standing_still(map(line, rounds)) == [0, 0, 1, 1, 1, 0]


def test_a_run_ends_after_so_many_rounds_without_a_better_score(tmp_path):
    summary = simulate(load_settings(None, [*SMALL, "run.patience=3"]), tmp_path / "run")
    lines = lines_of(tmp_path / "run")
    assert 4 <= len(lines) == summary["rounds"] < 30
    assert standing_still(lines)[-4:] == [0, 1, 2, 3]
    assert max(standing_still(lines)[:-1]) < 3
    assert ["not better in 3 rounds: the run ends (run.patience)" in str(line["warnings"]) for line in lines[-2:]] == [
        False,
        True,
    ]
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["round"]) == ("finished", len(lines))
    # Asked to go on it has nothing to do, and with more patience it goes on.
    simulate(load_settings(None, [*SMALL, "run.patience=3"]), tmp_path / "run", resume=True)
    assert lines_of(tmp_path / "run") == lines
    more = load_settings(None, [*SMALL, "run.patience=0", f"run.rounds={len(lines) + 1}"])
    assert simulate(more, tmp_path / "run", resume=True)["rounds"] == len(lines) + 1
