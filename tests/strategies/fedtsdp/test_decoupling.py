import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.strategies.fedtsdp.decoupling import (
    density_clusters,
    join_nearest,
    quantiles,
    regroup,
    second_stage,
    weight_distances,
    whole_layers,
)


def on_a_line(*places):
    points = np.array(places, dtype=float)
    return np.abs(points[:, None] - points)


def test_noise_points_are_clusters_of_their_own():
    # 0 and 0.1 are near, as are 5 and 5.1; 9 and 20 are near nobody
    distances = on_a_line(5, 0, 9, 0.1, 5.1, 20)
    assert density_clusters(distances, eps=0.15, min_samples=2).tolist() == [0, 1, 2, 1, 0, 3]
    assert density_clusters(distances, eps=100, min_samples=2).tolist() == [0] * 6
    assert density_clusters(distances, eps=0.15, min_samples=3).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_chain_of_near_neighbours_is_one_cluster():
    assert density_clusters(on_a_line(0, 1, 2, 3), eps=1, min_samples=2).tolist() == [0, 0, 0, 0]


def test_the_second_stage_splits_each_cluster_and_joins_none():
    first = np.array([0, 1, 0, 1, 0])
    distances = on_a_line(0, 0, 0.5, 9, 9)
    # 0 and 1 are at the same place and stay apart; so do 3 and 4
    assert second_stage(first, distances, eps=1, min_samples=2).tolist() == [0, 1, 0, 2, 3]


@given(st.integers(1, 12), st.integers(0, 99), st.floats(0.01, 2))
def test_the_second_stage_is_nested_in_the_first(count, seed, eps):
    generator = np.random.default_rng(seed)
    first = generator.integers(0, 3, count)
    second = second_stage(first, on_a_line(*generator.random(count)), eps, 2)
    assert all(len(set(first[second == cluster])) == 1 for cluster in set(second))
    assert set(second) == set(range(second.max() + 1))


def test_absent_clients_follow_the_most_of_those_they_were_with():
    before = {"a": 0, "b": 0, "c": 0, "gone": 0, "d": 1, "away": 1, "alone": 2}
    found = {"a": 1, "b": 0, "c": 1, "d": 0, "new": 2}
    assignment, survivors = regroup(before, found)
    assert assignment == {**found, "gone": 1, "away": 0, "alone": 3}
    assert survivors == [2]
    # of equals the lower cluster; of nobody known, nothing
    assert regroup({"a": 0, "b": 0, "gone": 0}, {"a": 1, "b": 0}).assignment["gone"] == 0
    assert regroup({}, {"a": 0}) == ({"a": 0}, [])


def test_a_newcomer_joins_the_cluster_with_the_least_mean_distance():
    distances = on_a_line(0, 1, 10, 12, 6, 2)
    labels = np.array([0, 0, 2, 2, -1, -1])
    # 6 is at 5.5 from cluster 0 and at 5 from cluster 2; newcomers do not count for one another
    assert join_nearest(distances, labels).tolist() == [0, 0, 2, 2, 2, 0]
    assert labels.tolist() == [0, 0, 2, 2, -1, -1]
    assert join_nearest(distances[:2, :2], np.array([-1, -1])).tolist() == [-1, -1]


def test_a_newcomer_joins_the_cluster_that_is_nearest_in_the_mean():
    distances = np.zeros((5, 5))
    distances[4] = [0.1, 0.9, 0.3, 0.3, 0]  # .5 and .3 in the mean
    assert join_nearest(distances, np.array([0, 0, 1, 1, -1])).tolist() == [0, 0, 1, 1, 1]


@pytest.mark.parametrize(("real", "whole"), [(4.0, 4), (3.5000001, 4), (3.5, 3), (2.6, 3), (1.5, 1), (0.01, 1)])
def test_four_layers_shrink_to_three_when_the_real_number_reaches_three_and_a_half(real, whole):
    assert whole_layers(real) == whole


def test_weight_distances_pass_over_counters():
    arrays = {"w.weight": np.zeros(2, dtype=np.float32), "norm.steps": np.zeros(1, dtype=np.int64)}
    W = np.array([[0, 0, 5, 0, 0], [3, 4, 900, 0, 0]], dtype=np.float32)
    assert weight_distances(W, ParameterLayout.of(arrays)).tolist() == [[0, 5], [5, 0]]


def test_quantiles_are_over_pairs_of_different_clients():
    assert quantiles(on_a_line(0, 1, 5)) == [1, 2.5, 4, 4.5, 5]
