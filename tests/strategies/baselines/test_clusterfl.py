from itertools import product

import numpy as np
import pytest

from bouquet.common.protocol import ARRAYS, Proximal
from bouquet.strategies.baselines.clusterfl import ClusterFL, clustering_penalty, indicator_matrix
from tests.helpers.points import FOUR, begin, replies


def update(strategy, state, rows, round_=1):
    return strategy.update(state, round_, replies(rows))


def test_the_indicator_matrix_and_the_penalty_by_hand():
    F = indicator_matrix(np.array([0, 0, 1]), 2)
    np.testing.assert_allclose(F, [[0.5**0.5, 0], [0.5**0.5, 0], [0, 1]])
    np.testing.assert_allclose(F.T @ F, np.eye(2))
    W = np.array([[1.0], [3.0], [5.0]])
    # tr(W Wᵀ) = 35; tr(Fᵀ W Wᵀ F) = (1 + 3)² / 2 + 25 = 33
    assert clustering_penalty(W, F, 1.0, 1.0) == pytest.approx(2)  # Σ‖w_i − mean‖² = 1 + 1 + 0
    assert clustering_penalty(W, F, 2.0, 1.0) == pytest.approx(37)


def test_the_indicator_update_minimises_the_penalty():
    """No other indicator matrix of the same models is better than the one that the server finds."""
    rng = np.random.default_rng(3)
    rows = {f"c{i}": rng.normal(size=2) * 3 + (8 * (i % 2), 0) for i in range(6)}
    strategy = ClusterFL(num_clusters=2)
    state = update(strategy, begin(strategy, (1, 1)), rows)
    W = np.array([rows[c] for c in sorted(rows)], dtype=np.float32)
    all_matrices = [np.array(labels) for labels in product((0, 1), repeat=6)]
    least = min(clustering_penalty(W, indicator_matrix(labels, 2), 1.0, 1.0) for labels in all_matrices)
    assert state.spread == pytest.approx(least, rel=1e-5)
    assert strategy.record(state)["spread"] == state.spread


def test_each_device_goes_on_from_its_own_model_near_its_clusters_mean():
    strategy = ClusterFL(num_clusters=2)
    state = begin(strategy, (1, 1))
    first = strategy.plan(state, 1, ["a"])["a"]
    assert (first.proximal, first.newcomer) == ((), True)  # F is 0 before there are clusters
    state = update(strategy, state, FOUR)
    plan = strategy.plan(state, 2, ["a", "c", "new"])
    assert plan["a"].models[ARRAYS].vector.tolist() == [0, 1]
    assert plan["c"].models[ARRAYS].vector.tolist() == [10, 1]
    assert plan["new"].models[ARRAYS].vector.tolist() == [5, 1]
    for instruction in plan.values():
        assert instruction.start == "personal"
        assert instruction.proximal == (Proximal(ARRAYS, 0.1),)  # β‖·‖² is (2 β / 2)‖·‖²
    assert [plan[c].newcomer for c in ("a", "c", "new")] == [False, False, True]


def test_the_clusters_follow_the_models_and_models_of_those_not_asked_stay():
    strategy = ClusterFL(num_clusters=2)
    state = update(strategy, begin(strategy, (1, 1)), FOUR)
    assert strategy.assignment(state) == {"a": 0, "b": 0, "c": 1, "d": 1}
    state = update(strategy, state, {"b": (9, 1)}, 2)
    assert strategy.assignment(state) == {"a": 0, "b": 1, "c": 1, "d": 1}
    np.testing.assert_allclose(state.centers, [[0, 0], [29 / 3, 1]], rtol=1e-6)
    assert state.moved == 1


def test_there_are_no_clusters_before_there_are_enough_clients():
    strategy = ClusterFL(num_clusters=3)
    state = update(strategy, begin(strategy, (1, 1)), {"a": (0, 0), "c": (10, 0)})
    assert strategy.assignment(state) == {}
    assert state.centers.tolist() == [[5, 0]]
    state = update(strategy, state, {"d": (20, 9)}, 2)
    assert strategy.assignment(state) == {"a": 0, "c": 1, "d": 2}
