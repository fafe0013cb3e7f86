from itertools import product

import numpy as np
import pytest

from bouquet.common.protocol import ARRAYS, Proximal
from bouquet.strategies.baselines.clusterfl import ClusterFL
from tests.helpers.points import FOUR, begin, replies


def update(strategy, state, rows, round_=1):
    return strategy.update(state, round_, replies(rows))


def test_the_clusters_are_those_of_the_least_penalty():
    """No other indicator matrix F of the same models has less tr(W Wᵀ) − tr(Fᵀ W Wᵀ F) = Σ_i ‖w_i − w̄_k(i)‖²."""
    rng = np.random.default_rng(3)
    rows = {f"c{i}": rng.normal(size=2) * 3 + (8 * (i % 2), 0) for i in range(6)}
    strategy = ClusterFL(num_clusters=2)
    state = update(strategy, begin(strategy, (1, 1)), rows)
    W = np.array([rows[c] for c in sorted(rows)])

    def penalty(labels):
        clusters = [W[np.array(labels) == k] for k in set(labels)]
        return sum(np.square(of - of.mean(axis=0)).sum() for of in clusters)

    found = penalty([state.assignment[c] for c in sorted(rows)])
    assert found == pytest.approx(min(map(penalty, product((0, 1), repeat=6))))


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
