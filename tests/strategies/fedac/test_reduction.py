import numpy as np
import pytest
from sklearn.decomposition import PCA

from bouquet.strategies.fedac.reduction import Remembered, fit_map, most_similar


def models(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def test_three_models_on_a_line_by_hand():
    low_rank, mean = fit_map(np.array([[1, 0, 5], [1, 3, 9], [1, 6, 13]], dtype=np.float32), 10)
    assert mean.tolist() == [1, 3, 9]
    # the only direction ±(0, 3, 4) / 5, and the outer models are 5 away
    np.testing.assert_allclose(np.abs(low_rank.directions), [[0, 0.6, 0.8]], atol=1e-6)
    sign = np.sign(low_rank.directions[0, 1])
    np.testing.assert_allclose(low_rank.offset * sign, [9.0])
    reduced = low_rank.reduce(np.array([[1, 0, 5], [1, 6, 13], [9, 3, 9]], dtype=np.float32))
    np.testing.assert_allclose(reduced * sign, [[-5], [5], [0]], atol=1e-6)


def test_with_fewer_clients_than_dimensions_it_is_scikit_learns_pca():
    W = models(7, 400) + 3
    low_rank, _ = fit_map(W, 4)
    ours, theirs = low_rank.reduce(W), PCA(4, svd_solver="full").fit_transform(W.astype(np.float64))
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(low_rank.directions @ low_rank.directions.T, np.eye(4), atol=1e-5)


def test_there_are_at_most_n_minus_1_directions_and_they_lose_nothing():
    W = models(4, 50)
    low_rank, _ = fit_map(W, 10)
    assert low_rank.directions.shape == (3, 50)
    reduced = low_rank.reduce(W)
    np.testing.assert_allclose(np.linalg.norm(reduced[0] - reduced[1]), np.linalg.norm(W[0] - W[1]), rtol=1e-5)


def test_models_wider_than_a_block_of_columns():
    W = models(3, 400_000)
    low_rank, _ = fit_map(W, 2)
    centred = W.astype(np.float64) - W.mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(
        np.abs(low_rank.reduce(W)), np.abs(centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T), rtol=1e-3
    )


def test_remembered_models_are_further_rows():
    W = models(6, 300)
    old, mean = fit_map(W[:4], 3)
    remembered = Remembered(old.reduce(W[:4]), old.directions, mean)  # 4 models in 3 dimensions: nothing is lost
    np.testing.assert_allclose(remembered.block(slice(10, 20)), W[:4, 10:20], atol=1e-5)
    again, mean = fit_map(W[4:], 3, remembered=remembered)
    whole, expected = fit_map(W, 3)
    np.testing.assert_allclose(mean, expected, atol=1e-5)
    np.testing.assert_allclose(np.abs(again.reduce(W)), np.abs(whole.reduce(W)), atol=1e-3)


def test_ignored_columns_take_no_part():
    W = np.array([[0, 1000], [2, 0], [4, -3000]], dtype=np.float32)
    low_rank, _ = fit_map(W, 2, np.array([False, True]))
    assert np.abs(low_rank.directions).tolist() == [[1, 0]]
    assert np.abs(low_rank.reduce(W)).ravel().tolist() == [2, 0, 2]


@pytest.mark.parametrize("rows", [[[1.5, 0.3]], [[1.5, 0.3]] * 3])
def test_equal_models_have_no_direction(rows):
    assert fit_map(np.array(rows, dtype=np.float32), 2) is None


def test_the_most_similar_center_is_not_always_the_nearest():
    centers = np.array([[1.0, 0.0], [8.0, 6.0]])
    rows = np.array([[10.0, 1.0], [0.1, 0.1], [0.0, 0.0]])
    # cosines: 10/√101 = .995 and 86/√10100 = .856; then √½ = .707 and 1.4/√2 = .990; zero is like no center
    assert most_similar(rows, centers).tolist() == [0, 1, 0]
