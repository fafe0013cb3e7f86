"""What the server does about replies that are well-formed and bad."""

import numpy as np
import pytest

from common import protocol
from experiments.inline import InlineGrid
from strategies import CFL, FLHC, FedAC, FedAvg, FeSEM
from strategies.mathematics.robust import Aggregation
from strategies.protection import Protection


def plus(amount):
    return lambda start, received: start + np.float32(amount)


def test_an_absurd_update_is_refused_and_the_round_goes_on(scripted, play):
    clients = {i: scripted(name, plus(1.0)) for i, name in enumerate("abcd", 1)} | {9: scripted("x", plus(1e8))}
    strategy = FedAvg(identify=True)
    play(strategy, InlineGrid(clients), range(1, 3))
    assert strategy.centers(strategy.state).tolist() == [[2.0] * 8]
    assert "more than 1000 times the median" in strategy.failures["x"]


def test_an_update_of_a_hundred_times_the_others_is_limited_if_asked_for(scripted, play):
    clients = {i: scripted(name, plus(1.0)) for i, name in enumerate("abc", 1)} | {9: scripted("x", plus(100.0))}
    for limit, expected in ((None, 103 / 4), (2.0, 5 / 4)):
        strategy = FedAvg(identify=True)
        strategy.protection = Protection(limit_norm=limit)
        play(strategy, InlineGrid(dict(clients)), range(1, 2))
        np.testing.assert_allclose(strategy.centers(strategy.state), np.full((1, 8), expected), rtol=1e-6)
    assert strategy.limited == {"x": 0.02}


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum"])
@pytest.mark.parametrize("kind", [FedAvg, FeSEM])
def test_a_minority_does_not_move_a_center(scripted, play, rule, kind):
    clients = {i: scripted(name, plus(1.0)) for i, name in enumerate("abcd", 1)} | {9: scripted("x", plus(-50.0))}
    strategy = kind(identify=True) if kind is FedAvg else kind(num_clusters=1, identify=True)
    strategy.protection = Protection(Aggregation(rule, 0.2))
    play(strategy, InlineGrid(clients), range(1, 3))
    np.testing.assert_allclose(strategy.centers(strategy.state), np.full((1, 8), 2.0))


def test_a_claim_of_many_samples_gains_nothing_under_a_robust_rule(scripted, play):
    many = {protocol.NUM_EXAMPLES: 10**8}
    clients = {i: scripted(name, plus(1.0)) for i, name in enumerate("abcd", 1)} | {9: scripted("x", plus(-5.0), many)}
    strategy = FedAvg(identify=True)
    strategy.protection = Protection(Aggregation("median"))
    play(strategy, InlineGrid(clients), range(1, 2))
    assert strategy.centers(strategy.state).tolist() == [[1.0] * 8]


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum"])
def test_nor_the_embedding_that_all_clusters_of_fedac_share(scripted, play, rule):
    clients = {i: scripted(name, plus(1.0)) for i, name in enumerate("abcd", 1)} | {9: scripted("x", plus(100.0))}
    embedding = {}
    for aggregation in (Aggregation(rule, 0.2), Aggregation()):
        strategy = FedAC(num_clusters=2, tuning="off", identify=True)
        strategy.protection = Protection(aggregation)
        play(strategy, InlineGrid(dict(clients)), range(1, 2))
        embedding[aggregation.rule] = strategy.state.global_embedding[:6].tolist()
    assert embedding == {rule: [1.0] * 6, "mean": [pytest.approx(104 / 5)] * 6}


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum"])
def test_nor_what_cfl_takes_for_settled(scripted, play, rule):
    clients = {i: scripted(name, plus(1.0)) for i, name in enumerate("abcd", 1)} | {9: scripted("x", plus(100.0))}
    strategy = CFL(identify=True)
    strategy.protection = Protection(Aggregation(rule, 0.2))
    play(strategy, InlineGrid(clients), range(1, 2))
    assert strategy.state.last[0]["mean_norm"] == pytest.approx(8**0.5)


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum"])
def test_nor_the_direction_that_newcomers_find_a_cluster_by(rule):
    strategy = FLHC(num_clusters=1)
    strategy.protection = Protection(Aggregation(rule, 0.2))
    updates = np.ones((5, 8), dtype=np.float32)
    updates[2, :4] = -100
    assert strategy.direction(updates).tolist() == [1.0] * 8
