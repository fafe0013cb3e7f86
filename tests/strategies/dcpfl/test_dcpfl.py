"""DC-PFL from round to round: what travels, who joins, what a checkpoint holds."""

import math

import numpy as np
import pytest

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ARRAYS, ClientReply
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.dcpfl import WHOLE_ROUND
from bouquet.strategies.dcpfl.grouping import distances_of
from bouquet.strategies.dcpfl.state import DCPFLState, Group
from bouquet.strategies.dcpfl.strategy import DCPFL
from tests.helpers.dcpfl_device import BOTH, FAST, Device, strategy_of, trial_rounds


def test_one_model_for_all_until_the_group_graph_is_made(devices, grid, play):
    strategy = strategy_of()
    records = trial_rounds(strategy, play, grid, range(1, 3))
    assert all(device.sent(round_) == (BOTH, BOTH) for device in devices.values() for round_ in (1, 2))
    assert records[1]["graph"] is None
    assert records[2]["graph"]["clients"] == ["a", "b", "c", "d"]
    heights = [merge[2] for merge in records[2]["graph"]["linkage"]]
    assert heights[1] < 0.1 < 1.5 < heights[2]
    distances = distances_of(strategy.state)
    assert strategy.state.clients == ["a", "b", "c", "d"]
    assert distances[0, 1] < distances[0, 2]
    # Eq. 3 in round 1: everybody came from 0 and went half the way, so the updates are the goals
    goals = np.array([device.goal for device in devices.values()])
    assert strategy.centers(strategy.state)[0] == pytest.approx(goals.mean(axis=0) * 0.75, abs=1e-6)


def test_slow_layers_are_in_no_message_between_full_rounds(devices, grid, play):
    """Full rounds are 2, 5 and 8: all layers go up in them and come down after them."""
    strategy = strategy_of(observe_rounds=50)
    play(strategy, grid, range(1, 10))
    found = {round_: devices["a"].sent(round_) for round_ in range(1, 10)}
    cycle = [(BOTH, FAST), (FAST, FAST), (FAST, BOTH)]
    assert [found[round_] for round_ in range(3, 9)] == cycle + cycle
    assert found[9] == (BOTH, FAST)
    group = strategy.record(strategy.state)["groups"][0]
    assert (group["full_round"], group["slow"], group["apart"]) == (8, ["first"], {"first": 3, "last": 1})


def test_a_slow_layer_goes_on_on_the_device_and_is_averaged_in_the_full_round(devices, grid, play):
    strategy = strategy_of(observe_rounds=50)
    play(strategy, grid, range(1, 3))
    center = strategy.centers(strategy.state)[0]
    play(strategy, grid, range(3, 5))
    between = strategy.centers(strategy.state)[0]
    assert between[:6].tolist() == center[:6].tolist()
    assert devices["d"].own[0] == pytest.approx(0.03 + 0.25 * (center[0] - 0.03))  # trained twice
    play(strategy, grid, range(5, 6))
    assert strategy.centers(strategy.state)[0, 0] == pytest.approx(
        np.mean([d.goal[0] + 0.125 * (center[0] - d.goal[0]) for d in devices.values()])
    )


def test_without_layer_wise_aggregation_all_layers_travel_in_every_round(devices, grid, play):
    strategy = strategy_of(layer_wise=False, observe_rounds=50)
    play(strategy, grid, range(1, 8))
    assert all(device.sent(round_) == (BOTH, BOTH) for device in devices.values() for round_ in range(1, 8))


@pytest.mark.parametrize("missed", [5, 6, 7])
def test_a_device_that_missed_the_full_round_or_its_outcome_is_sent_the_whole_model(missed, devices, grid, play):
    strategy = strategy_of(observe_rounds=50)
    play(strategy, grid, range(1, missed))
    node = grid.handlers.pop(1)
    play(strategy, grid, range(missed, missed + 1))
    grid.handlers[1] = node
    play(strategy, grid, range(missed + 1, 9))
    # The full round 5 ends with an upload; what it led to comes down in round 6, or when the device is next there.
    assert [devices["a"].sent(round_) for round_ in (5, 6, 7, 8)] == {
        5: [None, (BOTH, FAST), (FAST, FAST), (FAST, BOTH)],
        6: [(FAST, BOTH), None, (BOTH, FAST), (FAST, BOTH)],
        7: [(FAST, BOTH), (BOTH, FAST), None, (FAST, BOTH)],
    }[missed]


def test_a_new_device_is_sent_the_whole_model_and_joins_in_the_next_full_round(devices, grid, play, layout):
    strategy = strategy_of(observe_rounds=50)
    play(strategy, grid, range(1, 4))
    new = Device("e", layout, (4, 0.3))
    grid.handlers[9] = new
    play(strategy, grid, range(4, 6))
    assert [new.sent(round_) for round_ in (4, 5)] == [(BOTH, FAST), (FAST, BOTH)]
    assert strategy.state.clients == ["a", "b", "c", "d", "e"]
    distances = distances_of(strategy.state)
    assert distances[4, 0] < 0.1 < distances[4, 2]


def test_a_device_that_lost_its_state_is_left_out_and_then_sent_the_whole_model(devices, grid, play):
    strategy = strategy_of(observe_rounds=50)
    play(strategy, grid, range(1, 4))
    devices["a"].own = None
    play(strategy, grid, range(4, 5))
    others = [devices[name].own[6] for name in "bcd"]
    assert strategy.centers(strategy.state)[0, 6] == pytest.approx(np.mean(others))
    assert strategy.state.history[-1][1] == pytest.approx(
        np.mean([devices[name].loss(devices[name].seen[4][0].models[ARRAYS].vector) for name in "bcd"]), rel=0.2
    )
    play(strategy, grid, range(5, 6))
    assert devices["a"].sent(4) == (FAST, FAST)
    assert devices["a"].sent(5) == (BOTH, BOTH)


def test_a_device_with_layers_of_another_time_says_so(devices, grid, play):
    strategy = strategy_of(observe_rounds=50)
    play(strategy, grid, range(1, 4))
    backup = devices["a"].own.copy()
    play(strategy, grid, range(4, 7))
    devices["a"].own, devices["a"].whole_round = backup, 3  # as round 3 left it
    play(strategy, grid, range(7, 8))
    assert devices["a"].seen[7][0].config[WHOLE_ROUND] == 6
    assert "a" not in strategy.state.whole
    play(strategy, grid, range(8, 9))
    assert devices["a"].sent(8) == (BOTH, BOTH)


def test_a_fixed_gamma_is_taken_once_the_graph_is_made_and_kept_without_trials(devices, grid, play):
    strategy = strategy_of(fixed_gamma=0.8)
    records = trial_rounds(strategy, play, grid, range(1, 12))
    assert [records[t]["gamma"] for t in (1, 2, 11)] == [1.0, 0.8, 0.8]
    assert all(records[t]["trial"] is None for t in records)
    assert all(len(device.seen[t]) == 1 for device in devices.values() for t in range(1, 12))
    assert strategy.assignment(strategy.state) == {"a": 0, "b": 0, "c": 1, "d": 1}


def test_a_device_that_comes_after_the_first_split_joins_the_group_in_its_direction(devices, grid, play, layout):
    strategy = strategy_of(retry_rounds=50)
    play(strategy, grid, range(1, 7))
    new = Device("e", layout, (-4, 0.1))
    grid.handlers[9] = new
    before = strategy.state.common_model()
    play(strategy, grid, range(7, 9))
    assert new.sent(7) == (BOTH, BOTH)
    assert new.seen[7][0].models[ARRAYS].vector == pytest.approx(before)
    assert strategy.assignment(strategy.state)["e"] == strategy.assignment(strategy.state)["c"]
    assert new.sent(8)[0] == BOTH


def test_a_device_that_comes_when_all_are_alone_is_alone(devices, grid, play, layout):
    strategy = strategy_of(gamma_step=1.0)
    play(strategy, grid, range(1, 7))
    new = Device("e", layout, (0, 4))
    grid.handlers[9] = new
    play(strategy, grid, range(7, 9))
    assert strategy.assignment(strategy.state)["e"] == 4
    assert new.sent(8) == ((), ())
    assert strategy.centers(strategy.state).shape == (5, 8)


def test_the_common_model_is_the_mean_over_members_without_groups_of_one():
    centers = np.array([[0], [10], [99]], dtype=np.float32)
    assignment = {"a": 0, "b": 0, "c": 0, "d": 1, "e": 1, "f": 2}
    state = DCPFLState(["first"], centers, [Group(), Group(), Group()], assignment, gamma=0.5)
    assert state.common_model().tolist() == [4]  # (3 · 0 + 2 · 10) / 5


def test_only_every_third_round_decides_anew_which_layers_are_slow(layout):
    """In rounds around a trial, too, the whole model goes up; slow copies have then been apart for another time."""
    received = tuple(
        ClientReply(name, 0, np.array([i] * 6 + [5, 5], dtype=np.float32), layout.layers, 10, {}, {})
        for i, name in enumerate("ab")
    )
    strategy = DCPFL(discrepancy_rounds=2)
    group = Group(4, ["first"])
    state = DCPFLState(list(layout.layers), np.zeros((1, 8), dtype=np.float32), [group], {"a": 0, "b": 0})
    found = {round_: strategy.update(state, round_, Replies(layout, received)).groups[0] for round_ in (2, 5, 6, 7)}
    assert {round_: group.slow for round_, group in found.items()} == {
        2: ["last"],
        5: ["first"],
        6: ["first"],
        7: ["last"],
    }
    assert found[6].apart == {"first": 2, "last": 1}
    assert found[6].discrepancies == {"first": 0.5 / 4.5, "last": 0}
    assert [found[round_].full_round for round_ in (5, 7)] == [5, 7]


def test_the_loss_is_smoothed_over_whole_cycles_of_the_slow_layers():
    assert [DCPFL(loss_window=s).loss_window for s in (1, 3, 5, 7)] == [3, 3, 6, 9]
    assert DCPFL(layer_wise=False).loss_window == 5


@pytest.mark.parametrize("discrepancy", ["l1", "l1-own", "cosine"])
def test_any_distance_finds_the_pairs_and_counters_do_not_count(discrepancy, layout):
    """Batch normalisation's counters differ by what each client trained, and would outweigh all else."""
    counting = ParameterLayout.of(
        {**layout.unflatten(np.zeros(8, dtype=np.float32)), "norm.count": np.zeros(1, dtype=np.int16)}
    )
    rows = {"a": (4, 1, 10), "b": (4, 0.9, 9000), "c": (-4, 1, 10), "d": (-4, 0.9, 9000)}
    received = tuple(
        ClientReply(
            client=name,
            node=0,
            vector=np.array([rows[name][0]] * 6 + list(rows[name]), dtype=np.float32),
            layers=counting.layers,
            num_examples=10,
            metrics={},
            config={},
        )
        for name in rows
    )
    strategy = DCPFL(discrepancy_rounds=1, fixed_gamma=0.7, discrepancy=discrepancy)
    state = strategy.initial_state(counting, np.zeros(9, dtype=np.float32))
    state = strategy.update(state, 1, Replies(counting, received))
    assert state.assignment == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert state.centers[:, 6].tolist() == [4, -4]


def test_half_of_the_clients_in_a_round(layout, play):
    """Pairs that never met have an estimate, and what a device sends always fits what it was sent before."""
    devices = [Device(f"c{i:02}", layout, (4 * (-1) ** i, 0.1 * i)) for i in range(12)]
    strategy = strategy_of(fraction_train=0.5, seed=1)
    play(strategy, InlineGrid(dict(enumerate(devices, start=1))), range(1, 25))
    assert not strategy.train_round.failures
    assignment = strategy.assignment(strategy.state)
    assert len(assignment) == 12
    assert strategy.state.gamma < 1
    for i in range(12):
        for j in range(i):
            if (i - j) % 2:
                assert assignment[f"c{i:02}"] != assignment[f"c{j:02}"]


def test_replies_that_fail_the_checks_do_not_disturb_the_others(devices, grid, play):
    strategy = strategy_of()
    devices["d"].goal = np.full(8, math.inf, dtype=np.float32)
    play(strategy, grid, range(1, 12))
    assert set(strategy.assignment(strategy.state)) == {"a", "b", "c"}
    assert np.isfinite(strategy.centers(strategy.state)).all()
