"""DC-PFL's trials: when a split is proposed, what the two exchanges send, and who takes part."""

import numpy as np
import pytest

from bouquet.common import protocol
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ARRAYS, ClientReply
from bouquet.strategies.base.exchange import Patience
from bouquet.strategies.base.protection import Protection
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.dcpfl import DIVERGED, LOSS_NEW, LOSS_OLD, NEW, TAKE
from bouquet.strategies.dcpfl.state import DCPFLState, Group, Proposal
from bouquet.strategies.dcpfl.trial import judged
from tests.helpers.dcpfl_device import BOTH, FAST, strategy_of, trial_rounds


def test_the_period_ends_a_trial_is_won_and_each_group_goes_its_way(devices, grid, play):
    """Noticed in round 4, where only fast layers go up; the models of the new groups come from round 5."""
    strategy = strategy_of()
    records = trial_rounds(strategy, play, grid, range(1, 9))
    assert [records[t]["period_end"] for t in (3, 4, 5, 6)] == [None, 3, 3, None]
    assert [devices["a"].sent(t)[1] for t in (4, 5)] == [FAST, BOTH]
    first, second = devices["a"].seen[6]
    assert (first.upload, second.upload) == ((), BOTH)
    assert second.models == {}
    assert second.config[TAKE] is True
    trial = records[6]["trial"]
    assert (trial["gamma"], trial["accepted"], trial["asked"], trial["answered"]) == (0.5, True, 4, 4)
    assert trial["loss_new"] < trial["loss_old"]
    assert [records[t]["gamma"] for t in (5, 6)] == [1.0, 0.5]
    assert records[7]["trial"] is None
    assert strategy.assignment(strategy.state) == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert [group["size"] for group in records[6]["groups"]] == [2, 2]
    assert devices["a"].sent(7)[0] == BOTH
    goals = [np.mean([devices[name].goal[6:] for name in pair], axis=0) for pair in ("ab", "cd")]
    assert np.abs(strategy.centers(strategy.state)[:, 6:] - goals).max() < 0.6


@pytest.mark.parametrize(("least", "groups"), [(None, 4), (10, 4), (11, 2), (20, 2), (21, 1)])
def test_a_group_divides_only_into_groups_of_enough_samples(grid, play, least, groups):
    """Each device has ten. What would leave too few is not even tried, which would cost each device two trainings."""
    strategy = strategy_of(min_group_samples=least)
    records = trial_rounds(strategy, play, grid, range(1, 15))
    assert len(set(strategy.assignment(strategy.state).values())) == groups
    assert sum(record["trial"] is not None for record in records.values()) == {4: 2, 2: 1, 1: 0}[groups]


def test_a_fixed_structure_has_groups_of_enough_samples(grid, play):
    strategy = strategy_of(min_group_samples=20, fixed_gamma=0.0)
    trial_rounds(strategy, play, grid, range(1, 5))
    assert strategy.assignment(strategy.state) == {"a": 0, "b": 0, "c": 1, "d": 1}


def test_both_models_of_a_trial_are_means_of_whole_models_of_the_round_before(devices, grid, play):
    strategy = strategy_of()
    play(strategy, grid, range(1, 6))
    trained = {name: device.own.copy() for name, device in devices.items()}
    play(strategy, grid, range(6, 7))
    sent = devices["a"].seen[6][0].models
    assert sent[ARRAYS].vector == pytest.approx(np.mean(list(trained.values()), axis=0))
    assert sent[NEW].vector == pytest.approx((trained["a"] + trained["b"]) / 2)


def test_a_trial_that_is_lost_is_repeated_after_the_retry_rounds(devices, grid, play):
    for device in devices.values():
        device.trial_losses = (1.0, 1.0)  # equal is not better
    strategy = strategy_of(retry_rounds=2)
    records = trial_rounds(strategy, play, grid, range(1, 9))
    assert records[6]["trial"] == {
        "gamma": 0.5,
        "loss_old": 1.0,
        "loss_new": 1.0,
        "accepted": False,
        "asked": 4,
        "answered": 4,
    }
    assert devices["a"].seen[6][1].config[TAKE] is False
    assert strategy.assignment(strategy.state) == dict.fromkeys("abcd", 0)
    for device in devices.values():
        device.trial_losses = None
    assert devices["a"].sent(8)[1] == BOTH  # whole models for the trial
    play(strategy, grid, range(9, 10))
    assert len(devices["a"].seen[9]) == 2
    assert strategy.record(strategy.state)["gamma"] == 0.5


@pytest.mark.parametrize("fraction", [0.0, 0.25])
def test_what_a_trial_is_judged_by_is_held_out_of_all_training(devices, grid, play, fraction):
    play(strategy_of(validation_fraction=fraction), grid, range(1, 9))
    trained = [m for messages in devices["a"].seen.values() for m in messages if TAKE not in m.config]
    assert any(NEW in m.models for m in trained)
    assert [m.validation_fraction for m in trained] == [fraction] * 8


def test_a_device_that_drops_out_between_the_two_exchanges(devices, grid, play):
    strategy = strategy_of()
    strategy.round_patience = Patience(timeout=0.3)
    devices["b"].silent_in = {(6, 2)}
    records = trial_rounds(strategy, play, grid, range(1, 9))
    assert records[6]["trial"]["accepted"]
    assert records[6]["trial"]["answered"] == 4
    assert strategy.assignment(strategy.state) == {"a": 0, "b": 0, "c": 1, "d": 1}
    # b is sent the whole model of its new group, whatever it kept
    assert devices["b"].sent(7)[0] == BOTH
    assert devices["b"].seen[7][0].models[ARRAYS].vector == pytest.approx(devices["a"].tried[True])


def test_a_device_that_does_not_answer_the_first_message_is_not_sent_the_second(devices, grid, play):
    strategy = strategy_of()
    strategy.round_patience = Patience(timeout=0.3)
    devices["b"].silent_in = {(6, 1)}
    records = trial_rounds(strategy, play, grid, range(1, 7))
    assert (records[6]["trial"]["asked"], records[6]["trial"]["answered"]) == (4, 3)
    assert "b" in strategy.train_round.failures
    assert len(devices["b"].seen[6]) == 1
    play(strategy, grid, range(7, 8))
    assert devices["b"].sent(7)[0] == BOTH


def test_a_trial_that_too_few_answer_is_repeated_with_models_of_a_new_round(devices, grid, play):
    """Round 6 has too few replies to change anything, round 7 brings whole models, and round 8 tries their means."""
    strategy = strategy_of(min_replies=2)
    strategy.round_patience = Patience(timeout=0.2)
    for name in "bcd":
        devices[name].silent_in = {(6, 1)}
    records = trial_rounds(strategy, play, grid, range(1, 8))
    assert records[6]["trial"]["loss_new"] is None
    assert not records[6]["trial"]["accepted"]
    assert records[7]["trial"] is None
    assert [devices[name].sent(7)[1] for name in "abcd"] == [BOTH] * 4
    trained = {name: device.own.copy() for name, device in devices.items()}
    assert trial_rounds(strategy, play, grid, range(8, 9))[8]["trial"]["accepted"]
    assert devices["a"].seen[8][0].models[NEW].vector == pytest.approx((trained["a"] + trained["b"]) / 2)


FAR_APART = {"a": (4, 0.5), "b": (4, -0.5), "c": (-4, 4), "d": (-4, -4)}  # the second trial asks only c and d


def test_a_trial_needs_no_more_replies_than_clients_were_asked(devices, grid, play):
    for name, last in FAR_APART.items():
        devices[name].goal[6:] = last
    records = trial_rounds(strategy_of(gamma_step=0.3, min_replies=4), play, grid, range(1, 30))
    trials = [record["trial"] for record in records.values() if record["trial"]]
    assert [(trial["asked"], trial["accepted"]) for trial in trials] == [(4, True), (2, True), (2, True)]


def test_a_trial_that_stays_undecided_is_put_off(devices, grid, play, monkeypatch):
    monkeypatch.setattr("bouquet.strategies.base.exclusion.HELD_UP", 1000)  # else d would sit out
    for name, last in FAR_APART.items():
        devices[name].goal[6:] = last
    devices["d"].silent_in = {(round_, 1) for round_ in range(7, 40)}
    strategy = strategy_of(gamma_step=0.3, min_replies=2, retry_rounds=4)
    strategy.round_patience = Patience(timeout=0.05)
    records = trial_rounds(strategy, play, grid, range(1, 30))
    trials = [t for t, record in records.items() if record["trial"]]
    first = trials[1]
    assert records[first]["trial"] | {"gamma": 0} == {
        "gamma": 0,
        "loss_old": None,
        "loss_new": None,
        "accepted": False,
        "asked": 2,
        "answered": 1,
    }
    assert trials[1:5] == [first, first + 1, first + 2, first + 7]


def test_a_diverged_model_counts_against_its_structure(devices, grid, play):
    """The new structure is better for the three others, by far."""
    devices["b"].trial_losses = (5.0, DIVERGED)
    for name in "acd":
        devices[name].trial_losses = (5.0, 1.0)
    strategy = strategy_of()
    trial = trial_rounds(strategy, play, grid, range(1, 7))[6]["trial"]
    assert (trial["loss_old"], trial["loss_new"], trial["answered"], trial["diverged_new"]) == (5.0, 1.0, 4, 1)
    assert not trial["accepted"]
    assert strategy.assignment(strategy.state) == dict.fromkeys("abcd", 0)


def test_a_structure_whose_models_diverge_loses_to_one_whose_models_do_not(devices, grid, play):
    for name in "ab":
        devices[name].trial_losses = (DIVERGED, 1.0)
    for name in "cd":
        devices[name].trial_losses = (1.0, 1.0)
    trial = trial_rounds(strategy_of(), play, grid, range(1, 7))[6]["trial"]
    assert (trial["diverged_old"], trial["accepted"]) == (2, True)


def test_a_client_with_one_of_both_losses_does_not_count(devices, grid, play):
    devices["a"].trial_losses = (1.0, None)
    for name in "bcd":
        devices[name].trial_losses = (1.0, 2.0)
    trial = trial_rounds(strategy_of(), play, grid, range(1, 7))[6]["trial"]
    assert (trial["asked"], trial["answered"], trial["loss_old"], trial["loss_new"]) == (4, 3, 1.0, 2.0)


def test_a_group_of_one_exchanges_nothing_and_reports_its_loss(devices, grid, play):
    strategy = strategy_of(gamma_step=1.0)  # the first trial is of γ̃ = 0
    records = trial_rounds(strategy, play, grid, range(1, 10))
    assert records[6]["gamma"] == 0.0
    assert records[6]["exchanging"] == 0
    assert records[9]["communication_rounds"] == 6
    for round_ in (7, 8, 9):
        assert devices["c"].sent(round_) == ((), ())
        assert devices["c"].seen[round_][0].start == "personal"
    own = [devices[name].loss(devices[name].own) for name in devices]
    assert strategy.state.history[-1] == (9, pytest.approx(4 * np.mean(own)))  # before its last training, half as near
    play(strategy, grid, range(10, 30))
    assert len(devices["c"].seen[29]) == 1  # nobody is left to part, so there is no further trial


def test_a_device_alone_that_lost_its_state_gets_the_model_it_was_alone_with_first(devices, grid, play):
    strategy = strategy_of(gamma_step=1.0)
    play(strategy, grid, range(1, 7))
    first = devices["c"].own.copy()
    play(strategy, grid, range(7, 8))
    devices["c"].own = None
    play(strategy, grid, range(8, 11))
    assert [devices["c"].sent(round_) for round_ in (8, 9, 10)] == [((), ()), (BOTH, ()), ((), ())]
    assert devices["c"].seen[9][0].models[ARRAYS].vector == pytest.approx(first)
    assert devices["c"].seen[9][0].start == "received"


def test_devices_whose_group_stays_take_no_part_in_a_trial(devices, grid, play):
    """c and d are so far apart that γ̃ = 0.7 parts the pairs, γ̃ = 0.4 only c from d, and γ̃ = 0.1 nobody else."""
    for name, last in FAR_APART.items():
        devices[name].goal[6:] = last
    strategy = strategy_of(gamma_step=0.3)
    records = trial_rounds(strategy, play, grid, range(1, 30))
    trials = {t: record["trial"] for t, record in records.items() if record["trial"]}
    assert [(trial["gamma"], trial["asked"]) for trial in trials.values()] == [(0.7, 4), (0.4, 2), (0.0, 2)]
    asked = {name: [t for t in trials if len(devices[name].seen[t]) == 2] for name in devices}
    first, second, third = trials
    assert asked == {"a": [first, third], "b": [first, third], "c": [first, second], "d": [first, second]}
    assert records[second]["exchanging"] == 2


@pytest.mark.parametrize("told", [1e38, DIVERGED, 1e6])
@pytest.mark.parametrize("gain", [0.1, -0.1])
@pytest.mark.parametrize("place", [0, 1])
def test_one_of_twenty_decides_no_trial_whatever_it_says(told, gain, place):
    losses = {f"c{i:02}": (1.0, 1.0 - gain * (1 + i / 20)) for i in range(19)}
    losses["x"] = (told, 0.0) if place == 0 else (0.0, told)
    layout = ParameterLayout.of({"w": np.zeros(1, dtype=np.float32)})
    received = tuple(
        ClientReply(client, i, np.zeros(1, dtype=np.float32), ("w",), 1, {LOSS_OLD: old, LOSS_NEW: new}, {})
        for i, (client, (old, new)) in enumerate(losses.items())
    )
    state = DCPFLState(["w"], np.zeros((1, 1), dtype=np.float32), [Group()], proposal=Proposal(0.8, {}))
    state = judged(state, 5, [*losses], Replies(layout, received), 1)
    assert state.verdict.accepted == (gain > 0)


def test_one_loss_does_not_make_the_curve_where_devices_are_not_trusted():
    layout = ParameterLayout.of({"w": np.zeros(1, dtype=np.float32)})
    told = [1.0, 1.2, 1.1, 0.9, 1e38]
    received = tuple(
        ClientReply(f"c{i}", i, np.zeros(1, dtype=np.float32), ("w",), 1, {protocol.LOSS: loss}, {})
        for i, loss in enumerate(told)
    )
    strategy = strategy_of()
    state = DCPFLState(["w"], np.zeros((1, 1), dtype=np.float32), [Group()])
    assert strategy._observe(state, 1, Replies(layout, received)).history[-1][1] > 1e37
    strategy.protection = Protection(limit_norm=2.0)
    assert strategy._observe(state, 1, Replies(layout, received)).history[-1][1] < 1.3
