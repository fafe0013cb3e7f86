"""FL+HC, FedGroup and robust federated learning: planted groups, gathering, newcomers, and what tells them apart."""

import json

import numpy as np
import pytest

from bouquet.common.protocol import ARRAYS
from bouquet.strategies.base.state_io import dump_state, load_state
from bouquet.strategies.baselines.fedgroup import FedGroup, decomposed_cosine
from bouquet.strategies.baselines.fl_hc import FLHC
from bouquet.strategies.baselines.robust_tkm import RobustTKM
from tests.helpers import points
from tests.helpers.points import begin

GOALS = {"a": (8, 0), "b": (8, 1), "c": (0, 8), "d": (1, 8), "e": (-8, 0), "f": (-8, 1)}
THREE = [{"a", "b"}, {"c", "d"}, {"e", "f"}]
METHODS = [FLHC(num_clusters=3, warmup_rounds=0), FedGroup(num_clusters=3), RobustTKM(num_clusters=3)]


def go(strategy, state, rounds, goals=GOALS, **more):
    return points.go(strategy, state, rounds, goals, **more)


def groups(strategy, state):
    found = {}
    for client, cluster in strategy.assignment(state).items():
        found.setdefault(cluster, set()).add(client)
    return [found[cluster] for cluster in sorted(found)]


@pytest.mark.parametrize("strategy", METHODS, ids=lambda s: type(s).__name__)
def test_planted_groups_are_found_at_once_and_each_goes_its_way(strategy):
    state = go(strategy, begin(strategy), [1])
    assert groups(strategy, state) == THREE
    np.testing.assert_allclose(state.centers, [[4, 0.25], [0.25, 4], [-4, 0.25]])
    state = go(strategy, state, range(2, 20))
    np.testing.assert_allclose(strategy.centers(state), [[8, 0.5], [0.5, 8], [-8, 0.5]], atol=1e-3)
    json.dumps(strategy.record(state))


@pytest.mark.parametrize("strategy", METHODS, ids=lambda s: type(s).__name__)
def test_a_newcomer_trains_the_common_model_and_joins_whom_it_resembles(strategy):
    state = go(strategy, begin(strategy), range(1, 6))
    late = {**GOALS, "late": (1, 9)}
    plan = strategy.plan(state, 6, ["late"])
    assert plan["late"].models[ARRAYS].vector.tolist() == [0, 0]  # what the others were compared by
    tested = strategy.plan_evaluate(state, 6, ["late", "a"])
    np.testing.assert_allclose(tested["late"].models[ARRAYS].vector, state.centers.mean(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(tested["a"].models[ARRAYS].vector, state.centers[0])
    after = go(strategy, state, [6], late, clients=["late"])
    assert strategy.assignment(after)["late"] == 1
    np.testing.assert_array_equal(after.centers, state.centers)
    # from then on it is one of them
    following = go(strategy, after, [7], late, clients=["late"])
    assert not np.array_equal(following.centers[1], state.centers[1])


@pytest.mark.parametrize("kind", [FLHC, FedGroup, RobustTKM])
def test_where_half_are_asked_the_anchor_stays_while_models_are_gathered(kind):
    options = {"warmup_rounds": 0} if kind is FLHC else {}
    strategy = kind(num_clusters=3, fraction_train=0.5, **options)
    state = begin(strategy)
    asked = [["a", "c", "e"], ["a", "d", "f"], ["c", "d", "e"], ["b", "c", "d"]]
    for round_, clients in enumerate(asked, start=1):
        assert strategy.assignment(state) == {}
        for instruction in strategy.plan(state, round_, clients).values():
            assert instruction.models[ARRAYS].vector.tolist() == [0, 0]
        arrays, rest = dump_state(state)
        state = load_state(strategy.state_class, arrays, json.loads(json.dumps(rest)))
        state = go(strategy, state, [round_], clients=clients)
    # 2 / 0.5 rounds, and nobody waits for a device that never came
    assert groups(strategy, state) == THREE
    assert state.gathered == {}


def test_fewer_clients_than_clusters_train_a_common_model_until_there_are_enough():
    strategy = FedGroup(num_clusters=3)
    state = go(strategy, begin(strategy), [1, 2], clients=["a", "c"])
    assert strategy.assignment(state) == {}
    assert state.centers.tolist() == [[3, 3]]  # three quarters of the way to the mean of (8, 0) and (0, 8)
    assert groups(strategy, go(strategy, state, [3])) == THREE


def test_gathering_ends_early_with_the_papers_pre_training_set():
    strategy = FedGroup(num_clusters=3, fraction_train=0.5)
    strategy.pretraining_scale = 1
    assert groups(strategy, go(strategy, begin(strategy), [1], clients=["a", "c", "e"])) == [{"a"}, {"c"}, {"e"}]


def test_fl_hc_runs_fedavg_before_it_clusters():
    strategy = FLHC(num_clusters=3, warmup_rounds=2)
    state = go(strategy, begin(strategy), [1, 2])
    assert strategy.assignment(state) == {}
    goal = np.mean(list(GOALS.values()), axis=0)
    np.testing.assert_allclose(state.centers, [0.75 * goal], rtol=1e-5)
    state = go(strategy, state, [3])
    assert groups(strategy, state) == THREE
    np.testing.assert_allclose(state.anchor, 0.75 * goal, rtol=1e-5)


def test_decomposed_cosine_by_hand():
    updates = np.array([[3.0, 0, 0], [4, 0, 0], [0, 2, 0], [0, -1, 0]])
    # the leading directions are the first axis (9 + 16) and the second (4 + 1)
    np.testing.assert_allclose(decomposed_cosine(updates, 2), [[1, 0], [1, 0], [0, 1], [0, -1]], atol=1e-12)
    # beyond the rank there is no direction
    np.testing.assert_allclose(decomposed_cosine(updates, 3)[:, 2], 0)
    np.testing.assert_allclose(decomposed_cosine(np.zeros((2, 3)), 2), np.zeros((2, 2)))


def test_decomposed_cosine_is_that_of_the_singular_vectors():
    updates = np.random.default_rng(0).normal(size=(6, 50)).astype(np.float32)
    vectors = np.linalg.svd(updates.astype(np.float64))[2][:3]
    cosine = updates @ vectors.T / np.linalg.norm(updates, axis=1, keepdims=True)
    np.testing.assert_allclose(np.abs(decomposed_cosine(updates, 3)), np.abs(cosine), atol=1e-6)


CORRUPT = {**GOALS, "x": (300, -500)}


def test_trimmed_k_means_gives_a_corrupt_device_no_cluster_the_trimmed_mean_no_say():
    more = {"g": (8, 0.5), "h": (0.5, 8), "i": (-8, 0.5)}
    strategy = RobustTKM(num_clusters=3)
    state = go(strategy, begin(strategy), range(1, 20), {**CORRUPT, **more})
    found = strategy.assignment(state)
    assert len({found[c] for c in "ace"}) == 3
    assert found["a"] == found["b"] == found["g"]
    # the median of three, and of four without the greatest and the least: all within the clients' own goals
    np.testing.assert_allclose(state.centers[found["c"]], [0.5, 8], atol=1e-3)
    assert np.abs(state.centers[found["a"]] - [8, 0.5]).max() <= 0.5
    assert strategy.record(state)["trimmed"] == 1


def test_fedgroup_and_fl_hc_give_the_corrupt_device_what_it_wants():
    """What robust federated learning is for: plain clustering spends a cluster on the outlier."""
    strategy = FLHC(num_clusters=3, warmup_rounds=0)
    assert {"x"} in groups(strategy, go(strategy, begin(strategy), [1], CORRUPT))


def test_local_risk_is_minimised_longer_in_the_first_stage_only():
    strategy = RobustTKM(num_clusters=3)
    state = begin(strategy)
    assert strategy.plan(state, 1, ["a"])["a"].config == {"local-epochs": 10}
    state = go(strategy, state, [1])
    plan = strategy.plan(state, 2, ["a", "late"])
    assert plan["a"].config == {}
    assert plan["late"].config == {"local-epochs": 10}


@pytest.mark.parametrize(("clusters", "fewest"), [(1, 2), (4, 5), (9, 10), (10, 12)])
def test_robust_clustering_needs_k_devices_beside_the_trimmed_ones(clusters, fewest):
    assert RobustTKM(num_clusters=clusters).fewest == fewest
