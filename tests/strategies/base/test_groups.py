"""The number of clusters, found while a run goes on, with FeSEM as the method that asks."""

from dataclasses import replace

import numpy as np
import pytest

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ARRAYS
from bouquet.strategies.base.groups import Groups
from bouquet.strategies.base.state_io import dump_state, load_state
from bouquet.strategies.cgpfl.strategy import CGPFL
from bouquet.strategies.fesem.state import FeSEMState
from bouquet.strategies.fesem.strategy import FeSEM
from bouquet.strategies.mathematics.robust import Aggregation
from tests.helpers.points import replies

LAYOUT = ParameterLayout.of({"a.weight": np.zeros((8, 20)), "b.weight": np.zeros((2, 8)), "frozen": np.zeros(3)})
MOVED = np.arange(LAYOUT.dim) < 176


class Fleet:
    """Devices that each go half of the way to their group's goal, and some way of their own, persistent and not."""

    def __init__(self, devices, groups, apart=1.0, own=0.5, seed=0):
        self.generator = np.random.default_rng(seed)
        goals = apart * self.generator.standard_normal((groups, LAYOUT.dim))
        self.group_of = {f"d{i:02}": i % groups for i in range(devices)}
        self.goals = {
            client: goals[group] + own * self.generator.standard_normal(LAYOUT.dim)
            for client, group in self.group_of.items()
        }

    def answer(self, strategy, state, round_, clients=None, noise=0.1):
        plan = strategy.plan(state, round_, sorted(clients or self.goals))
        rows = {}
        for client, asked in plan.items():
            sent = asked.models[ARRAYS].vector
            step = 0.5 * (self.goals[client] - sent) + noise * self.generator.standard_normal(LAYOUT.dim)
            rows[client] = sent + MOVED * step
        return replies(rows, layout=LAYOUT, plan=plan)

    def run(self, strategy, rounds, state=None, per_round=None, first=1):
        state = strategy.initial_state(LAYOUT, np.zeros(LAYOUT.dim, dtype=np.float32)) if state is None else state
        for round_ in range(first, first + rounds):
            asked = None
            if per_round:
                asked = np.random.default_rng(round_).permutation(sorted(self.goals))[:per_round].tolist()
            state = strategy.update(state, round_, self.answer(strategy, state, round_, asked))
        return state

    def is_found(self, state):
        pairs = {(group, state.assignment[client]) for client, group in self.group_of.items()}
        return len(pairs) == len(state.centers) == len({*self.group_of.values()})


@pytest.mark.parametrize("kind", [FeSEM, CGPFL])
@pytest.mark.parametrize(("devices", "groups"), [(6, 3), (12, 2), (20, 5), (40, 6)])
def test_groups_are_found_when_two_rounds_agree(kind, devices, groups):
    fleet, strategy = Fleet(devices, groups), kind()
    state = fleet.run(strategy, 1)
    assert len(state.centers) == 1
    state = fleet.run(strategy, 4, state, first=2)
    assert fleet.is_found(state)
    assert strategy.record(state)["log_p"] <= 0


def test_one_group_stays_one():
    state = Fleet(20, 1).run(FeSEM(), 15)
    assert len(state.centers) == 1
    assert state.assignment == {f"d{i:02}": 0 for i in range(20)}


def test_groups_are_found_where_few_devices_are_asked_in_a_round():
    """Three of twelve, of four groups: no round has a model of each."""
    fleet = Fleet(12, 4)
    assert fleet.is_found(fleet.run(FeSEM(), 40, per_round=3))


def test_a_cluster_is_divided_again():
    """Two kinds first, and within each two, which are hardly apart beside them."""
    fleet = Fleet(24, 4, apart=0.0, own=0.3, seed=1)
    far, near = 6 * fleet.generator.standard_normal((2, LAYOUT.dim)), fleet.generator.standard_normal((4, LAYOUT.dim))
    for client, group in fleet.group_of.items():
        fleet.goals[client] = fleet.goals[client] + far[group % 2] + near[group]
    strategy = FeSEM()
    assert fleet.is_found(fleet.run(strategy, 10))


def test_resumed_from_a_checkpoint_it_is_the_same_to_the_bit():
    fleet, strategy = Fleet(20, 4), FeSEM()
    state = fleet.run(strategy, 1)
    assert state.groups.proposed
    assert state.groups.directions
    again = load_state(FeSEMState, *dump_state(state))
    received = fleet.answer(strategy, state, 2)
    one, other = (dump_state(strategy.update(from_, 2, received)) for from_ in (state, again))
    assert one[1] == other[1]
    assert one[0].keys() == other[0].keys()
    assert all(np.array_equal(one[0][name], other[0][name]) for name in one[0])


def test_late_replies_are_compared_with_those_that_are_as_late():
    """One that nobody is as late as says nothing of groups."""
    fleet, strategy = Fleet(12, 1), FeSEM()
    state = fleet.run(strategy, 1)
    received = replace(fleet.answer(strategy, state, 2), late={"d03": 1, "d04": 2, "d05": 2})
    after = strategy.update(state, 2, received)
    assert "d03" in after.assignment
    changed = {c for c, one in after.groups.directions.items() if (one != state.groups.directions[c]).any()}
    assert changed == {*fleet.goals} - {"d03"}


def test_devices_that_are_always_late_are_no_group():
    """They began at an older model, from which all move another way."""
    fleet, strategy = Fleet(12, 1), FeSEM()
    state = fleet.run(strategy, 1)
    late = dict.fromkeys(("d00", "d01", "d02", "d03", "d04"), 1)
    for round_ in range(2, 10):
        received = fleet.answer(strategy, state, round_)
        rows = received.W + np.float32(3) * np.array([[c in late] for c in received.clients], dtype=np.float32) * MOVED
        kept = tuple(replace(one, vector=row) for one, row in zip(received.received, rows, strict=True))
        state = strategy.update(state, round_, replace(received, received=kept, late=late))
    assert len(state.centers) == 1


def test_groups_are_found_though_half_of_the_devices_are_always_late():
    fleet, strategy = Fleet(16, 2), FeSEM()
    state = fleet.run(strategy, 1)
    late = {client: 1 for client in fleet.goals if int(client[1:]) >= 8}
    for round_ in range(2, 8):
        state = strategy.update(state, round_, replace(fleet.answer(strategy, state, round_), late=late))
    assert fleet.is_found(state)


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum"])
def test_groups_are_found_under_robust_aggregation_beside_a_bad_device(rule, monkeypatch):
    fleet = Fleet(21, 4)
    fleet.goals["d20"] = 1e3 * fleet.generator.standard_normal(LAYOUT.dim)
    monkeypatch.setattr(FeSEM, "aggregation", Aggregation(rule))
    state = fleet.run(FeSEM(), 6)
    found = {client: state.assignment[client] for client in fleet.group_of if client != "d20"}
    pairs = {(fleet.group_of[client], cluster) for client, cluster in found.items()}
    assert len(pairs) == len({cluster for _, cluster in pairs}) == 4


@pytest.mark.parametrize("method", [FeSEM, CGPFL])
def test_a_device_in_the_wrong_cluster_is_doubted_and_may_choose(method):
    """The E-step sees only where its model ended; where its data pull is seen after some rounds."""
    fleet, strategy = Fleet(20, 2, apart=3.0), method()
    state = fleet.run(strategy, 8)
    assert fleet.is_found(state)
    own = state.assignment["d00"]
    wrong = replace(state, assignment={**state.assignment, "d00": 1 - own}, groups=Groups())
    doubted = fleet.run(strategy, 5, wrong, first=9)
    assert strategy.doubted(doubted) == ["d00"]
    assert doubted.assignment["d00"] == 1 - own  # nobody asked it yet
    chosen = strategy.placed(doubted, {"d00": own})
    assert chosen.assignment["d00"] == own
    assert "d00" not in chosen.groups.directions
    assert not strategy.doubted(chosen)


def test_a_cluster_that_everybody_left_ends():
    fleet, strategy = Fleet(12, 2, apart=3.0), FeSEM()
    state = fleet.run(strategy, 5)
    assert len(state.centers) == 2
    spare = np.vstack([state.centers[:1] + 100, state.centers])
    moved = replace(state, centers=spare, assignment={c: k + 1 for c, k in state.assignment.items()})
    after = fleet.run(strategy, 1, moved, first=6)
    assert fleet.is_found(after)
