"""CFL on quadratics: a client with the goal g moves from θ to θ + (g − θ) / 2."""

import json

import numpy as np
import pytest

from bouquet.common.protocol import ARRAYS
from bouquet.strategies.baselines.cfl import CFL, CFLState, _split, optimal_bipartition, separation
from tests.helpers import points
from tests.helpers.points import half_way

GOALS = {"a": (1, 0), "b": (1, 0.2), "c": (-1, 0), "d": (-1, -0.2)}


def begin(strategy, start=(0, 8)):
    return points.begin(strategy, start)


def go(strategy, state, rounds, goals=GOALS, **more):
    return points.go(strategy, state, rounds, goals, **more)


def cfl(settled, in_conflict, min_separation=CFL.min_separation):
    """With thresholds as parts of the first mean update's norm, which is the greatest here."""
    strategy = CFL()
    strategy.settled, strategy.in_conflict, strategy.min_separation = settled, in_conflict, min_separation
    return strategy


def test_it_divides_when_the_mean_update_has_settled_and_not_before():
    strategy = cfl(0.3 / 4, 0.4 / 4)
    state = begin(strategy)
    # ‖mean update‖ of the four is 4, 2, 1, 0.5, 0.25: the fifth round is the first one below 0.3
    for round_, norm in enumerate([4, 2, 1, 0.5], start=1):
        state = go(strategy, state, [round_])
        assert state.last[0]["mean_norm"] == pytest.approx(norm)
        assert set(state.assignment.values()) == {0}
    state = go(strategy, state, [5])
    assert state.assignment == {"a": 0, "b": 0, "c": 1, "d": 1}
    # each side makes its own mean update in this very round: from (0, 0.5) half way to (±1, ±0.1)
    np.testing.assert_allclose(state.centers, [[0.5, 0.3], [-0.5, 0.2]], atol=1e-6)
    state = go(strategy, state, range(6, 30))
    np.testing.assert_allclose(state.centers, [[1, 0.1], [-1, -0.1]], atol=1e-3)
    assert len(state.centers) == 2  # clients of a side agree: their updates stay below ε₂


def test_a_settled_cluster_whose_clients_agree_is_not_divided():
    strategy = cfl(0.05 / 4, 0.6 / 4)
    state = go(strategy, begin(strategy), range(1, 12))
    # settled from round 8 on; max ‖update‖ tends to ½·‖(1, 0.2)‖ = 0.51
    assert state.last[0]["mean_norm"] < 0.05
    assert state.last[0]["greatest_norm"] == pytest.approx(0.51, abs=0.01)
    assert len(state.centers) == 1


def test_only_a_division_that_keeps_a_gap():
    """Eight clients around a circle pull at the model from everywhere: no two sides, cos(45°) across the best."""
    angles = np.arange(8) * np.pi / 4
    circle = {f"c{i}": (np.cos(t), np.sin(t)) for i, t in enumerate(angles)}
    strategy = cfl(0.3 / 4, 0.4 / 4)
    state = go(strategy, begin(strategy), range(1, 10), circle)
    assert state.last[0]["separation"] == pytest.approx(np.sqrt((1 - np.sqrt(0.5)) / 2), abs=0.02)
    assert len(state.centers) == 1
    loose = cfl(0.3 / 4, 0.4 / 4, 0.3)
    assert len(go(loose, begin(loose), range(1, 10), circle).centers) > 1


def test_the_best_bipartition_has_the_least_cross_similarity():
    similarity = np.array([[1.0, 0.9, 0.2, -0.3], [0.9, 1.0, 0.5, 0.0], [0.2, 0.5, 1.0, 0.6], [-0.3, 0.0, 0.6, 1.0]])
    sides, cross = optimal_bipartition(similarity)
    assert sides.tolist() == [0, 0, 1, 1]
    assert cross == 0.5
    assert separation(-1.0) == 1.0
    assert separation(0.5) == 0.5


FOUR = {"a": (4, 4), "b": (4, 4.2), "c": (4, -4), "d": (4, -4.2), "e": (-4, 4), "f": (-4, 4.2), "g": (-4, -4)}


def test_four_groups_by_divisions_of_divisions_with_thresholds_of_its_own():
    strategy = CFL()
    state = go(strategy, begin(strategy, (0, 2)), range(1, 40), FOUR)
    groups = {}
    for client, cluster in strategy.assignment(state).items():
        groups.setdefault(cluster, set()).add(client)
    assert sorted(map(sorted, groups.values())) == [["a", "b"], ["c", "d"], ["e", "f"], ["g"]]
    assert len(strategy.centers(state)) == 4
    record = strategy.record(state)
    assert record["num_clusters"] == 4
    assert len(record["settling"]) == 4
    json.dumps(record)


def test_by_default_clients_divide_that_pull_less_than_at_the_start_but_not_much():
    """All pull by .625 at first, at the settled model two sides by .5 of it each way: .8 of that, above three quarters.

    Clients half as far apart pull by .4, as those of one distribution do, and stay together.
    """
    strategy = CFL()
    apart = {"a": (1, 0), "b": (1, 0.01), "c": (-1, 0), "d": (-1, -0.01)}
    state = go(strategy, begin(strategy, (0, 1.25)), range(1, 3), apart)
    seen = state.last[0]
    assert (seen["below"], seen["above"]) == pytest.approx((0.25 * 0.625, 0.75 * 0.625), rel=1e-3)
    assert len(go(strategy, state, range(3, 20), apart).centers) == 2
    near = {client: (x / 2, y) for client, (x, y) in apart.items()}
    assert len(go(strategy, begin(strategy, (0, 1.25)), range(1, 20), near).centers) == 1


def test_a_newcomer_is_led_down_the_parameter_tree():
    strategy = CFL()
    state = go(strategy, begin(strategy, (0, 2)), range(1, 40), FOUR)
    before = state.centers.copy()
    late = {"late": (-4, -4.1)}
    # the model of the first division, not of a cluster: only there was everybody's update compared
    asked = strategy.plan(state, 40, ["late"])["late"].models[ARRAYS].vector
    assert not any(np.array_equal(asked, center) for center in state.centers)
    state = strategy.update(state, 40, half_way(strategy, state, 40, late))
    assert "late" not in strategy.assignment(state)
    for round_ in range(41, 41 + len(state.splits)):
        if "late" not in strategy.assignment(state):
            state = strategy.update(state, round_, half_way(strategy, state, round_, late))
    np.testing.assert_array_equal(state.centers, before)  # what it made of old models is in no mean
    assert strategy.assignment(state)["late"] == strategy.assignment(state)["g"]
    mean = strategy.plan_evaluate(state, 41, ["other"])["other"].models[ARRAYS].vector
    np.testing.assert_allclose(mean, before.mean(axis=0), rtol=1e-6)


def test_a_division_of_a_side_that_was_divided_before_leaves_the_tree_above_it():
    state = CFLState(np.zeros((1, 2), dtype=np.float32), dict.fromkeys("abcd", 0))
    for members in ("abcd", "abc", "ab"):
        sides = np.array([0] * (len(members) - 1) + [1])
        state = _split(state, 0, [*members], np.ones((len(members), 2), dtype=np.float32), sides)
    assert state.assignment == {"a": 0, "b": 3, "c": 2, "d": 1}
    assert [split.clusters for split in state.splits] == [[0, 1], [0, 2], [0, 3]]
    assert [split.splits for split in state.splits] == [[1, None], [2, None], [None, None]]


def test_half_of_the_clients_a_round_and_one_that_vanishes():
    strategy = cfl(0.1 / 4, 0.4 / 4)
    strategy.memory = 3
    state = begin(strategy)
    goals = {**GOALS, "gone": (1, 0.1)}
    for round_ in range(1, 30):
        asked = ["a", "c"] if round_ % 2 else ["b", "d"]
        state = go(strategy, state, [round_], goals, clients=[*asked, "gone"] if round_ < 3 else asked)
    known = strategy.assignment(state)
    assert known["a"] == known["b"] != known["c"] == known["d"]
    # what it sent is too old: it looks for its side when it comes back
    assert "gone" not in known
    assert state.descending == {"gone": 0}
    state = go(strategy, state, [30], goals, clients=["gone", "a"])
    assert strategy.assignment(state)["gone"] == known["a"]


def test_a_sample_of_one_side_is_not_taken_for_everybody():
    """Two of four clients agree that the model is far off; the means of both halves of the fleet count together."""
    strategy = cfl(1.2, 0.8)
    strategy.memory = 2
    state = go(strategy, begin(strategy, (0, 0.5)), [1])
    for round_ in range(2, 6):
        state = go(strategy, state, [round_], clients=["a", "b"] if round_ % 2 else ["c", "d"])
        if len(state.centers) > 1:
            break
    known = strategy.assignment(state)
    assert known["a"] == known["b"] != known["c"] == known["d"]


def test_nothing_is_kept_of_clients_that_are_all_asked_in_every_round():
    strategy = CFL()
    state = go(strategy, begin(strategy), range(1, 4))
    assert state.updates == {}
    assert set(go(strategy, state, [4], clients=["a"]).updates) == {"a"}


def test_the_mean_and_whether_a_cluster_has_settled_are_weighted_by_samples():
    strategy = cfl(0.4 / 0.5, 0.5 / 0.5)
    # updates (±1, 0) with 3 samples and 1: |3 − 1| / 4 is above ε₁, their plain mean is 0
    goals, examples = {"a": (2, 0), "b": (-2, 0)}, {"a": 3, "b": 1}
    state = go(strategy, begin(strategy, (0, 0)), [1], goals, examples=examples)
    assert state.last[0]["mean_norm"] == 0.5
    assert state.centers.tolist() == [[0.5, 0]]
