import json

import numpy as np
import pytest

from bouquet.strategies.base.state_io import dump_state, load_state
from bouquet.strategies.gradient_loss import wire as choice
from bouquet.strategies.gradient_loss.state import GradientLossState
from bouquet.strategies.gradient_loss.strategy import GradientLoss
from tests.helpers.choosing_devices import POINTS, asked, begin, fresh, grid, replies, steps

# Steps from cluster 0's model, along the one axis or the other.
APART = {"a": (1, 0), "b": (0, 1), "c": (2, 0), "d": (0, 2), "e": (3, 0)}
ALIKE = {client: (length, length) for length, client in enumerate("abcde", start=1)}


def splitting(steps, rounds=3, **options):
    """The state after rounds in which all devices chose cluster 0 and made these steps, and the one before."""
    strategy = GradientLoss(num_clusters=2, empty_cluster="split", **options)
    state, before = begin(strategy), None
    for round_ in range(1, rounds + 1):
        held = {choice.HELD: state.version}
        models = {client: (state.centers[0] + step, 0, held) for client, step in steps.items()}
        before, state = state, strategy.update(state, round_, replies(models)).state
    return strategy, before, state


def test_a_cluster_that_falls_apart_is_divided_for_an_empty_one():
    """The half of a, c and e goes (2, 0) on, that of b and d (0, 1.5), which is where the empty cluster is put."""
    strategy, before, state = splitting(APART)
    np.testing.assert_allclose(state.centers - before.centers[0], [[2, 0], [0, 1.5]], atol=1e-6)
    np.testing.assert_allclose(state.centers - state.previous, [[2, 0], [0, 1.5]], atol=1e-6)
    assert state.assignment == {"a": 0, "b": 1, "c": 0, "d": 1, "e": 0}
    assert (state.last["empty"], state.last["divided"], state.relocations) == (1, 1, [(3, 1, 0)])
    assert state.last["silhouettes"] == [pytest.approx(1), None]
    assert before.last["divided"] == 0
    # What moved is not what the devices kept: all are sent the steps once, and told whose memory holds for cluster 1.
    plan = strategy.plan(state, 4, list("abcde"))
    assert all(set(steps(instruction)) == {"step-0", "step-1"} for instruction in plan.values())
    assert {tuple(i.config["relocations"]) for i in plan.values()} == {(3, 1, 0)}
    held = {choice.HELD: 3}
    chosen = {client: (state.centers[k], k, held) for client, k in state.assignment.items()}
    after = strategy.update(state, 4, replies(chosen)).state
    assert (after.last["moved"], after.last["empty"], after.last["divided"]) == (0, 0, 0)
    plan = strategy.plan(after, 5, ["a", "late"])
    assert (bool(steps(plan["a"])), "relocations" in plan["a"].config) == (False, False)
    assert list(plan["late"].config["relocations"]) == [3, 1, 0]


def test_one_group_is_not_torn_apart_and_nobody_is_told():
    strategy, _, state = splitting(ALIKE, rounds=6)
    assert (set(state.assignment.values()), state.last["empty"], state.relocations) == ({0}, 1, [])
    assert all("told-cluster" not in i.config for i in strategy.plan(state, 7, list("abcde")).values())


def test_where_no_cluster_is_empty_it_is_as_if_devices_were_told(play):
    found = {}
    for empty_cluster in ("tell", "split"):
        strategy = fresh(empty_cluster=empty_cluster)
        strategy.draw_model = lambda seed: np.array([7, 7], dtype=np.float32)
        play(strategy, grid([]), range(1, 7), POINTS)
        found[empty_cluster] = strategy.state
        assert strategy.state.last["empty"] == 0
    np.testing.assert_array_equal(found["tell"].centers, found["split"].centers)
    assert found["tell"].assignment == found["split"].assignment


def test_ifca_divides_too_and_one_device_is_no_group():
    _, _, state = splitting(APART, gradient_weight=0.0)
    assert (state.previous, state.last["divided"]) == (None, 1)
    _, _, alone = splitting({"a": (1, 0)})
    assert (alone.last["divided"], alone.last["silhouettes"]) == (0, [None, None])


def test_adaptive_has_both_halves_look_again():
    strategy, _, state = splitting(APART, broadcast="adaptive")
    assert {device.stable for device in state.devices.values()} == {0}
    assert all(asked(i) == {"0", "1"} and steps(i) for i in strategy.plan(state, 4, list("abcde")).values())


def test_what_is_known_of_the_steps_survives_a_checkpoint():
    _, _, state = splitting(APART)
    arrays, rest = dump_state(state)
    again = load_state(GradientLossState, arrays, json.loads(json.dumps(rest)))
    assert (again.relocations, again.met) == (state.relocations, state.met)
    np.testing.assert_array_equal(again.total, state.total)
    np.testing.assert_array_equal(again.meetings, state.meetings)


# All are nearest to (1, 9), so that nobody takes (50, 50); from there a and b go one way, c and d another.
ON_ONE_MODEL = {"a": (0.0, 8.0), "b": (0.0, 8.0), "c": (3.0, 9.0), "d": (3.0, 9.0)}


@pytest.mark.parametrize(
    ("options", "broken", "rounds"),
    [({}, {}, 5), ({"gradient_weight": 0.0}, {}, 5), ({}, {"d": (2, 3, 5)}, 9), ({"fraction_train": 0.75}, {}, 40)],
    ids=["all", "ifca", "one-vanishes", "sampled"],
)
def test_two_groups_on_one_model_are_told_apart(play, options, broken, rounds):
    seen, strategy = [], fresh(empty_cluster="split", **options)
    strategy.draw_model = lambda seed: np.array([50, 50], dtype=np.float32)
    play(strategy, grid(seen, broken, goals=ON_ONE_MODEL), range(1, rounds + 1), POINTS)
    assignment = strategy.state.assignment
    assert assignment["a"] == assignment["b"] != assignment["c"] == assignment["d"]
    np.testing.assert_allclose(strategy.state.centers[assignment["d"]], [3, 9], atol=0.6)
    assert len(strategy.state.relocations) == 1
    assert not any(received.config.get("told-cluster") for _, _, received in seen)
