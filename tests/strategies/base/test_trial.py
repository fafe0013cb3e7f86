"""What devices say of the models that they would have in other clusters, and what becomes of it."""

from dataclasses import replace

import numpy as np
import pytest

from bouquet.common.protocol import JUDGED, RIVAL, Instruction, Payload
from bouquet.strategies.base.filters.filter import OutgoingInstruction
from bouquet.strategies.base.filters.trial import Rivals
from bouquet.strategies.base.groups import LONGEST, Groups, Trial
from bouquet.strategies.base.state_io import dump_state, load_state
from bouquet.strategies.fesem.state import FeSEMState
from bouquet.strategies.fesem.strategy import FeSEM
from tests.strategies.base.test_groups import LAYOUT, Fleet


def said(replies, votes):
    """With votes of these devices, whatever they were sent."""
    received = (replace(r, config={JUDGED: votes[r.client]} if r.client in votes else {}) for r in replies.received)
    return replace(replies, received=tuple(received))


def run(fleet, state, rounds, vote, strategy=None):
    """After rounds in which the devices say ``vote(client, trial)``; and who was asked in each of them."""
    strategy, asked = strategy or FeSEM(), []
    for round_ in rounds:
        trial = state.groups.trial
        asked.append(len(trial.rows))
        votes = {client: vote(client, trial) for client in trial.rows}
        state = strategy.update(state, round_, said(fleet.answer(strategy, state, round_), votes))
    return state, asked


def begin(fleet):
    return fleet.run(FeSEM(), 1)


def test_a_cluster_is_divided_when_its_devices_gain_by_it():
    fleet = Fleet(12, 2)
    state, asked = run(fleet, begin(fleet), range(2, 4), lambda *_: 1)
    assert fleet.is_found(state)
    assert asked[0] == 12


def test_what_is_on_trial_is_the_mean_model_of_those_who_would_share_it():
    fleet, strategy = Fleet(12, 2), FeSEM()
    state = strategy.initial_state(LAYOUT, np.zeros(LAYOUT.dim, dtype=np.float32))
    answers = fleet.answer(strategy, state, 1)
    trial = strategy.update(state, 1, answers).groups.trial
    for client in answers.clients:
        same = [fleet.group_of[other] == fleet.group_of[client] for other in answers.clients]
        np.testing.assert_allclose(trial.models[trial.rows[client]], answers.W[same].mean(axis=0), rtol=1e-5)


def test_what_is_on_trial_weighs_as_the_centers_do_and_without_the_late():
    fleet, strategy = Fleet(12, 2), FeSEM()
    state = begin(fleet)
    answers = fleet.answer(strategy, state, 2)
    received = tuple(replace(one, num_examples=1 + 9 * place) for place, one in enumerate(answers.received))
    answers = said(replace(answers, received=received, late={"d00": 1}), {})
    earlier = replace(state, groups=replace(state.groups, trial=Trial()))  # who is late is only not there
    trial = strategy.update(earlier, 2, answers).groups.trial
    for client in ("d02", "d03"):
        same = [c != "d00" and fleet.group_of[c] == fleet.group_of[client] for c in answers.clients]
        mean = np.average(answers.W[same], axis=0, weights=answers.num_examples[same])
        np.testing.assert_allclose(trial.models[trial.rows[client]], mean, rtol=1e-4, atol=1e-4)


def test_a_group_that_nobody_replied_of_keeps_what_it_was_beside_the_center():
    fleet, strategy = Fleet(12, 2), FeSEM()
    state = begin(fleet)
    before, center = state.groups.trial, state.centers[0]
    of_group = sorted(client for client, group in fleet.group_of.items() if group == 0)[:2]
    answers = fleet.answer(strategy, state, 2, of_group)
    after = strategy.update(state, 2, said(answers, {})).groups.trial
    other = next(client for client, group in fleet.group_of.items() if group == 1)
    base = answers.W.mean(axis=0)
    np.testing.assert_allclose(
        after.models[after.rows[other]], base + before.models[before.rows[other]] - center, rtol=1e-4, atol=1e-4
    )
    own, then = after.models[after.rows[of_group[0]]], before.models[before.rows[of_group[0]]]
    np.testing.assert_allclose(own, base + 4 / 6 * (then - center), rtol=1e-4, atol=1e-4)  # two of six replied
    assert sorted(after.counts) == [6, 6]


def test_a_checkpoint_of_before_counts_were_kept_goes_on_with_those_who_reply():
    fleet, strategy = Fleet(12, 2), FeSEM()
    arrays, rest = dump_state(begin(fleet))
    del rest["groups"]["trial"]["counts"]
    state = load_state(FeSEMState, arrays, rest)
    of_group = sorted(client for client, group in fleet.group_of.items() if group == 0)[:2]
    trial = strategy.update(state, 2, said(fleet.answer(strategy, state, 2, of_group), {})).groups.trial
    assert {fleet.group_of[client] for client in trial.rows} == {0}
    assert trial.counts == [2]


def test_groups_that_are_of_no_use_stay_together_and_are_asked_less_and_less():
    fleet = Fleet(12, 2)
    state, asked = run(fleet, begin(fleet), range(2, 31), lambda *_: -1)
    assert len(state.centers) == 1
    assert np.diff(np.flatnonzero(asked)).tolist() == [2, 3, 4, 5, 6, 7]


def test_where_few_gain_more_than_lose_they_are_asked_again():
    fleet = Fleet(12, 2)
    state, asked = run(fleet, begin(fleet), range(2, 8), lambda client, _: 1 if int(client[1:]) < 7 else -1)
    assert len(state.centers) == 1
    assert asked == [12] * 6


def test_one_device_has_one_vote():
    fleet = Fleet(12, 2)
    loud = {"d00": 10**12}
    state, _ = run(fleet, begin(fleet), range(2, 5), lambda client, _: loud.get(client, -1))
    assert len(state.centers) == 1


@pytest.mark.parametrize(
    ("log_p", "gains", "loses", "pays"),
    [
        (-20, 4, 2, None),  # of six, 2 more are no clear gain
        (-20, 4, 1, True),
        (-8.5, 4, 1, None),  # as many gain by chance with probability 6 / 32: together −10.2, of −11.5
        (-8.5, 5, 0, True),  # 1 / 32: together −12.0
        (-8.5, 2, 3, False),
    ],
)
def test_how_clear_groups_are_and_who_gains_count_together(log_p, gains, loses, pays):
    votes = dict(enumerate([1] * gains + [-1] * loses))
    trial = Trial(votes={f"d{number:02d}": vote for number, vote in votes.items()})
    assert trial.pays([*trial.votes], log_p) is pays


def test_where_no_device_can_say_groups_that_are_hardly_seen_are_not_divided():
    trial = Trial(silent=["d00", "d01", "d02", "d03"])
    assert trial.pays(trial.silent, -8) is False
    assert trial.pays(trial.silent, -12) is True


def test_where_no_device_can_say_the_test_alone_decides_and_nothing_is_joined():
    fleet = Fleet(12, 2)
    state = fleet.run(FeSEM(), 20, begin(fleet), first=2)
    assert fleet.is_found(state)


def test_one_silent_device_does_not_speak_for_all_though_it_was_asked_alone():
    trial = Trial(rows={"d00": 0, "d01": 0, "d02": 0, "d03": 0})
    fleet = Fleet(4, 1)
    answers = fleet.answer(FeSEM(), begin(fleet), 2)
    alone = trial.heard(answers.only([True, False, False, False]))
    assert alone.silent == ["d00"]
    assert alone.pays([*trial.rows], -20) is None
    assert alone.heard(answers.only([False, True, True, True])).pays([*trial.rows], -20) is True
    assert alone.heard(said(answers, {"d00": 1})).silent == ["d01", "d02", "d03"]


def test_a_late_vote_is_of_another_trial():
    trial = Trial(rows={"d00": 0, "d01": 0})
    fleet = Fleet(2, 1)
    answers = said(fleet.answer(FeSEM(), begin(fleet), 2), {"d00": 1, "d01": 1})
    assert trial.heard(replace(answers, late={"d00": 1})).votes == {"d01": 1}


@pytest.mark.parametrize(("gains", "clusters"), [(1, 1), (-1, 2)])
def test_two_clusters_are_joined_when_their_devices_gain_by_it(gains, clusters):
    fleet = Fleet(12, 2)
    state, _ = run(fleet, begin(fleet), range(2, 4), lambda *_: 1)
    assert len(state.centers) == 2
    state, asked = run(fleet, state, range(4, 18), lambda _, trial: gains if trial.pair else -1)
    assert len(state.centers) == clusters
    assert {*state.assignment.values()} == {*range(clusters)}
    assert 12 in asked


def test_a_new_cluster_is_not_asked_at_once_whether_to_join():
    fleet = Fleet(12, 2)
    state, _ = run(fleet, begin(fleet), range(2, 4), lambda *_: 1)
    assert len(state.centers) == 2
    _, asked = run(fleet, state, range(4, 18), lambda *_: 0)
    assert asked.index(12) == LONGEST


def test_a_pair_that_stays_unclear_gives_way_to_a_division():
    """A device alone in its cluster says that it gains, the others of the pair say nothing."""
    fleet = Fleet(13, 2)
    fleet.goals["d12"] = 30 * fleet.generator.standard_normal(LAYOUT.dim)
    state, _ = run(fleet, fleet.run(FeSEM(), 1), range(2, 4), lambda *_: 1)
    assert len(state.centers) == 3
    apart = 4 * fleet.generator.standard_normal(LAYOUT.dim)
    state, _ = run(fleet, state, range(4, 18), lambda client, _: int(client == "d12"))
    assert len(state.groups.trial.pair) == 2
    for client in ("d00", "d01", "d02", "d03", "d04", "d05"):
        fleet.goals[client] += apart
    state, _ = run(fleet, state, range(18, 40), lambda client, trial: int(client == "d12") if trial.pair else 1)
    assert len(state.centers) == 5


def test_what_was_said_of_a_division_is_not_said_of_a_pair():
    """One cluster's division is unclear, another's has just been refused: two are asked whether to join."""
    trial = Trial(votes={"d00": 1, "d01": 1}, quiet=LONGEST)
    asked = trial.next({"d00": 0, "d01": 1}, {"d00", "d01"}, True, {"d00": 0, "d01": 0, "d02": 1}, np.eye(2))
    assert asked.pair == [0, 1]
    assert asked.votes == {}


def test_the_model_on_trial_goes_out_to_those_who_judge_it_and_in_training():
    model = np.ones(LAYOUT.dim, dtype=np.float32)
    groups = Groups(trial=Trial(rows={"a": 0}, models=model[None]))
    rivals = Rivals(groups.model_for)
    plain = Instruction(models={"arrays": Payload(0 * model)})
    sent = {
        (client, trains): rivals.outgoing(OutgoingInstruction(LAYOUT, client, trains, plain)).instruction.models
        for client in "ab"
        for trains in (True, False)
    }
    assert np.array_equal(sent["a", True][RIVAL].vector, model)
    assert [key for key, models in sent.items() if RIVAL in models] == [("a", True)]
