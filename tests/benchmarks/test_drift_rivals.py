"""The steps of FedDrift and CFL-GP, as the benchmark of fleets that change has them, on cases computed by hand."""

from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def root_on_path(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)


def test_models_are_as_far_apart_as_the_worse_of_the_two_is_worse_on_the_others_data():
    from benchmarks.drift_rivals import model_distances

    accuracies = np.array([[0.9, 0.2], [0.5, 0.4], [0.3, 0.8]])  # of two models on three clients' data
    # On the data of the first two clients, weighed 10 to 30: .6 and .35; on the third's: .3 and .8.
    apart = model_distances(accuracies, np.array([0, 0, 1]), np.array([10, 30, 5]))
    assert apart == pytest.approx(np.array([[0, 0.45], [0.45, 0]]))
    better = model_distances(np.array([[0.7, 0.6], [0.9, 0.9]]), np.array([0, 1]), np.array([1, 1]))
    assert better[0, 1] == pytest.approx(0.3)  # the second model is worse on the first's data, the first on no other's


def test_a_step_merges_alike_models_and_gives_a_client_that_drifted_its_own():
    from benchmarks.drift_rivals import DriftState, next_step

    centers = np.array([[0.0], [4.0], [10.0]], dtype=np.float32)
    before = DriftState(centers, [1, 3, 2], {"a": 0, "b": 1, "c": 1, "away": 2}, {"a": 0.8, "b": 0.8, "c": 0.9})
    accuracies = np.array([[0.8, 0.8, 0.1], [0.8, 0.9, 0.1], [0.1, 0.1, 0.4]])
    after = next_step(before, ("a", "b", "c"), accuracies, np.array([1, 1, 1]), delta=0.2)

    # Models 0 and 1 are .1 apart, trained by 1 + 1 and 3 + 1 clients in a step: (0 · 2 + 4 · 4) / 6. Model 2 waits.
    assert after.centers == pytest.approx(np.array([[16 / 6], [10], [10]]))
    assert after.held == [6, 2, 1]
    assert after.assignment == {"a": 0, "b": 0, "c": 2, "away": 1}
    assert after.reached == {"a": 0.8, "b": 0.9, "c": 0.4}

    strict = next_step(before, ("a", "b", "c"), accuracies, np.array([1, 1, 1]), delta=0.05)
    assert len(strict.centers) == 4
    assert strict.assignment == {"a": 0, "b": 1, "c": 3, "away": 2}
    lenient = next_step(before, ("a", "b", "c"), accuracies, np.array([1, 1, 1]), delta=0.6)
    assert len(lenient.centers) == 2
    assert lenient.assignment["c"] == 1


def test_gradients_are_weighed_beside_those_of_before_by_model():
    from benchmarks.drift_rivals import ProfileState, with_gradients

    state = ProfileState(np.zeros((2, 2), dtype=np.float32))
    state = with_gradients(state, ("a",), np.array([[1, 0]], dtype=np.float32), model=0, weight=1)
    state = with_gradients(state, ("a", "b"), np.array([[0, 5], [0, 7]], dtype=np.float32), model=1, weight=0.25)
    state = with_gradients(state, ("b", "a"), np.array([[9, 9], [5, 4]], dtype=np.float32), model=0, weight=0.25)
    assert state.rows == {"a": 0, "b": 1}
    assert state.profile.tolist() == [[2, 1, 0, 5], [9, 9, 0, 7]]  # 3/4 · (1, 0) + 1/4 · (5, 4); b's first is whole


def test_clients_are_clustered_by_their_profiles_and_keep_their_numbers():
    from benchmarks.drift_rivals import ProfileState, partition, renumbered

    profile = np.array([[1, 0, 0.1], [0, 1, 0], [1, 0, -0.1], [0, 0.9, 0]], dtype=np.float32)
    found = partition(profile, 2, seed=1)
    assert found[0] == found[2] != found[1] == found[3]
    rows = {"a": 0, "b": 1, "c": 2, "d": 3}
    before = ProfileState(profile[:2], {"a": 1, "b": 0, "c": 1}, rows, profile)  # d is new
    assert renumbered(before, found, 2) == {"a": 1, "b": 0, "c": 1, "d": 0}


@pytest.mark.parametrize("rival", ["feddrift strategy.step=1 run.rounds=2", "cfl-gp:4 run.rounds=1"])
def test_a_rival_runs_on_the_fleet(rival):
    from benchmarks.changing_fleet import measured
    from benchmarks.drift_rivals import CLASSES

    name = CLASSES[rival.split()[0]]
    *_, last = measured("half turn", rival, 7, f"strategy.name=benchmarks.drift_rivals:{name}")
    assert 0 < last["others"] <= 1
    assert last["clusters"] >= 1
