"""Median, trimmed mean, Krum and limits on norms, by hand."""

import numpy as np

from bouquet.strategies.mathematics.aggregation import cluster_means
from bouquet.strategies.mathematics.robust import Aggregation, capped, fences, krum, norm_limits

ROWS = np.array([[0, 0], [1, 2], [2, 4], [3, 6], [100, -900]], dtype=np.float32)


def test_the_mean_is_the_mean_with_its_weights():
    weights = [1, 2, 3, 4, 0]
    np.testing.assert_array_equal(
        Aggregation().cluster_means(ROWS, [0] * 5, 1, weights), cluster_means(ROWS, [0] * 5, 1, weights)
    )


def test_the_median_is_by_coordinate_and_weighs_all_alike():
    median = Aggregation("median")
    assert median.cluster_means(ROWS, [0] * 5, 1, [1, 1, 1, 1, 1000]).tolist() == [[2, 2]]
    assert median.cluster_means(ROWS[:4], [0] * 4, 1).tolist() == [[1.5, 3]]


def test_the_trimmed_mean_cuts_off_either_end():
    assert Aggregation("trimmed-mean").cluster_means(ROWS, [0] * 5, 1).tolist() == [[2, 2]]
    assert Aggregation("trimmed-mean").cluster_means(ROWS[:4], [0] * 4, 1).tolist() == [[1.5, 3]]


def test_krum_takes_the_row_that_is_nearest_to_most():
    # With n = 5 and f = 1 the two nearest count. Squared distances on the line 0, 1, 2, 3 of (1, 2): 5, 20, 45.
    assert krum(ROWS, 1) == 1  # 5 + 5, as row 2; the first of equals
    assert Aggregation("krum").cluster_means(ROWS, [0] * 5, 1).tolist() == [[1, 2]]


def test_each_cluster_has_its_own_and_two_members_are_averaged():
    labels = [0, 0, 0, 1, 1]
    found = Aggregation("median").cluster_means(ROWS, labels, 3, previous=np.full((3, 2), 7, dtype=np.float32))
    assert found.tolist() == [[1, 2], [51.5, -447], [7, 7]]


def test_weights_are_capped_by_the_median_of_those_that_count():
    assert capped(np.array([0, 0, 0, 1, 100]), 3).tolist() == [0, 0, 0, 1, 3]


def test_norms_are_limited_by_their_clusters_median():
    norms = np.array([1.0, 2.0, 9.0, 10.0, 20.0, 400.0, 0.0])
    kept = norm_limits(norms, np.array([0, 0, 0, 1, 1, 1, 1]), 2.0)
    # Medians 2 and 20; the client that uploaded nothing counts nowhere.
    np.testing.assert_allclose(kept, [1, 1, 4 / 9, 1, 1, 0.1, 1])


def test_a_cluster_of_two_is_measured_by_all():
    kept = norm_limits(np.array([1.0, 1.0, 1.0, 1.0, 8.0]), np.array([0, 0, 0, 1, 1]), 2.0)
    np.testing.assert_allclose(kept, [1, 1, 1, 1, 0.25])


def test_of_two_who_are_all_the_larger_norm_does_not_make_its_own_limit():
    np.testing.assert_allclose(norm_limits(np.array([1.0, 1e6]), np.array([0, 0]), 2.0), [1, 2e-6])
    np.testing.assert_allclose(norm_limits(np.array([0.0, 1e6]), np.array([0, 0]), 2.0), [1, 1])


def test_krum_passes_on_nothing_of_its_choice_that_it_did_not_see():
    W = np.array([[0.0, 1.0], [2.0, 2.0], [1.0, 50.0], [1.1, 4.0], [0.9, 3.0]])  # the third is in the middle of all
    compared = np.array([True, False])
    assert Aggregation("krum", compared=compared).center(W)[0].tolist() == [1.0, 3.0]
    assert Aggregation("krum").center(W[:, :1])[0].tolist() == [1.0]


def test_fences_leave_out_the_few_that_are_far_off_and_keep_a_variance_positive():
    values = np.array([[1.0, -1.0], [2.0, 0.0], [3.0, 1.0], [4.0, 2.0], [1e9, -1e9]])
    low, high = fences(values)
    assert low.tolist() == [0.0, -6.0]
    assert high.tolist() == [9.0, 6.0]
