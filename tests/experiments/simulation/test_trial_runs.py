"""Runs in which devices judge whether other clusters would pay."""

import pytest

from bouquet.client.rounds import session
from bouquet.common.protocol import JUDGED
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate
from tests.helpers.stopped_runs import lines_of

BASE = ["data.clients=8", "run.seed=1", "simulation.engine=inline", "model.hidden=16", "personal.compare=false"]
ROTATED = ["data.partition=rotated", "data.groups=2", "run.rounds=4"]


def test_devices_say_that_groups_which_conflict_pay_and_a_trial_costs_one_model_more(tmp_path, monkeypatch):
    heard, judged = [], session.judged
    monkeypatch.setattr(session, "judged", lambda *args: heard.append(judged(*args)) or heard[-1])
    found = simulate(load_settings(None, [*BASE, *ROTATED]), tmp_path)
    assert (found["clusters"], found["purity"]) == (2, 1.0)
    votes = [one[JUDGED] for one in heard if one]
    assert sum(votes[-8:]) > 2
    down = [line["bytes_down"] for line in lines_of(tmp_path)]
    # The trial of round 2 is too early to pay, that of round 4 pays.
    assert down[1:] == pytest.approx([2 * down[0], down[0], 2 * down[0]], rel=0.05)


def test_nothing_is_said_under_privacy(tmp_path, monkeypatch):
    heard, judged = [], session.judged
    monkeypatch.setattr(session, "judged", lambda *args: heard.append(judged(*args)) or heard[-1])
    simulate(load_settings(None, [*BASE, *ROTATED, "privacy.clip_norm=1.0"]), tmp_path)
    assert not heard


@pytest.mark.parametrize(
    ("method", "serve", "is_alone"), [("fesem", "own", True), ("fesem", "auto", False), ("anchored", "own", False)]
)
def test_a_device_that_serves_what_it_is_sent_judges_that_by_itself(tmp_path, monkeypatch, method, serve, is_alone):
    beside, judged = [], session.judged
    monkeypatch.setattr(session, "judged", lambda *args: beside.append(args[2]) or judged(*args))
    chosen = [f"strategy.name={method}", f"personal.serve={serve}"]
    simulate(load_settings(None, [*BASE, *ROTATED, *chosen]), tmp_path)
    assert beside
    assert all((one is None) == is_alone for one in beside)
