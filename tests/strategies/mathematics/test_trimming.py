import numpy as np
import pytest

from bouquet.common.errors import BouquetError
from bouquet.strategies.mathematics.trimming import trimmed_kmeans, trimmed_mean


def test_trimmed_mean_by_hand():
    W = np.array([[0, 9], [1, -99], [2, 7], [3, 8], [1000, 6]], dtype=np.float32)
    # a fifth of five: one value at either end of each coordinate
    assert trimmed_mean(W, 0.2).tolist() == [2, 7]
    assert trimmed_mean(W, 0.4).tolist() == [2, 7]
    np.testing.assert_allclose(trimmed_mean(W, 0.0), [201.2, -13.8], rtol=1e-6)
    assert trimmed_mean(W, 0.0).dtype == np.float32


def test_a_share_above_0_leaves_one_outlier_of_three_out_and_never_everything():
    assert trimmed_mean(np.array([[1.0], [2.0], [1e9]]), 0.01).tolist() == [2]
    assert trimmed_mean(np.array([[1.0], [3.0]]), 0.49).tolist() == [2]
    assert trimmed_mean(np.array([[5.0]]), 0.49).tolist() == [5]


@pytest.mark.parametrize(("rows", "share"), [(0, 0.1), (3, 0.5), (3, -0.1)])
def test_no_trimmed_mean(rows, share):
    with pytest.raises(BouquetError, match=f"{rows} models with a share of {share}"):
        trimmed_mean(np.zeros((rows, 2)), share)


PAIRS = np.array([[0.0, 0], [0, 2], [10, 0], [10, 2]])


def test_trimmed_kmeans_without_a_share_is_k_means():
    found = trimmed_kmeans(PAIRS, 2, 0.0, seed=0)
    assert found.assignment.tolist() == [0, 0, 1, 1]
    assert not found.trimmed.any()
    assert found.inertia == pytest.approx(4)  # four rows, each 1 from its center


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("far", [30.0, 1e7])
@pytest.mark.parametrize("place", [0, 4])
def test_an_outlier_takes_no_cluster_for_itself(seed, far, place):
    """Plain k-means gives it one of the two, and the pairs share the other."""
    W = np.insert(PAIRS, place, [far, far], axis=0)
    found = trimmed_kmeans(W, 2, 0.2, seed)
    labels = np.delete(found.assignment, place)
    assert labels[0] == labels[1] != labels[2] == labels[3]
    assert found.trimmed.tolist() == [row == place for row in range(5)]
    assert found.inertia == pytest.approx(4)


def test_fewer_distinct_rows_than_clusters():
    found = trimmed_kmeans(np.ones((5, 2)), 2, 0.2, seed=0)
    assert found.assignment.tolist() == [0] * 5
    assert found.inertia == 0


@pytest.mark.parametrize(("clusters", "share"), [(4, 0.2), (0, 0.2), (2, 1.0), (2, -0.5)])
def test_more_clusters_than_rows_that_count(clusters, share):
    with pytest.raises(BouquetError, match=f"into {clusters} clusters with a share of {share}"):
        trimmed_kmeans(PAIRS, clusters, share, seed=0)
