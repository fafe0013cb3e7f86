"""Distances and similarities of models: hand-computed values, stability, symmetry, scale, order of the rows."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist, squareform

from bouquet.common.errors import BouquetError
from bouquet.strategies.mathematics import aggregation
from bouquet.strategies.mathematics.similarity import (
    cosine_similarity,
    cosine_to,
    distances_to,
    euclidean_distances,
    jensen_shannon_divergence,
    l1_discrepancy,
)

seeds = st.integers(0, 2**32 - 1)


def models(seed: int, n: int = 5, d: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d), dtype=np.float32)


def softmax(seed: int, shape: tuple[int, int, int] = (5, 3, 4)) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(shape[2]), shape[:2])


MEASURES = [euclidean_distances, cosine_similarity, l1_discrepancy, lambda W: l1_discrepancy(W, "own")]


def test_euclidean_by_hand() -> None:
    W = np.array([[0, 0], [3, 4], [3, 0]], dtype=np.float32)
    assert euclidean_distances(W).tolist() == [[0, 5, 3], [5, 0, 4], [3, 4, 0]]
    assert distances_to(W, W[1:]).tolist() == [[5, 3], [0, 4], [4, 0]]


@pytest.mark.parametrize("measure", [euclidean_distances, lambda W: distances_to(W, W)])
def test_small_differences_of_large_models_survive(measure) -> None:
    """Norms of 10⁶ and differences of 1/8: ‖a‖² + ‖b‖² − 2ab in float32 knows nothing of them."""
    W = np.full((4, 100), 1e5, dtype=np.float32)
    W[1, 0] += 0.125
    W[2] += 0.125
    W[3] *= 3
    found = measure(W)
    assert np.allclose(found[0], [0, 0.125, 1.25, 2e6], rtol=1e-7, atol=0)
    assert found[1, 2] == pytest.approx(0.125 * math.sqrt(99), rel=1e-7)


@pytest.mark.parametrize(("common", "difference"), [(1e3, 1.0), (1e4, 1e-3), (1.0, 1e-9)])
def test_close_models_far_from_the_first(common: float, difference: float) -> None:
    """In the Gram matrix the second case has lost most of its digits, the third all of them."""
    random = np.random.default_rng(0)
    W = common * random.standard_normal(50) + difference * random.standard_normal((5, 50))
    W[0] = 0
    W[4] = W[3]
    assert np.allclose(euclidean_distances(W), squareform(pdist(W)), rtol=1e-7, atol=0)


@settings(deadline=None)
@given(seeds)
def test_euclidean_agrees_with_scipy_over_several_blocks(seed: int) -> None:
    W = models(seed, n=4, d=300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bouquet.strategies.mathematics.aggregation._BLOCK_ELEMENTS", 1)
        assert np.allclose(euclidean_distances(W), squareform(pdist(W)), rtol=1e-12)
        assert np.allclose(distances_to(W, W[:2]), squareform(pdist(W))[:, :2], rtol=1e-12)
        assert np.allclose(cosine_similarity(W), 1 - squareform(pdist(W, "cosine")), rtol=0, atol=1e-12)
        assert np.allclose(cosine_to(W, W[:2]), cosine_similarity(W)[:, :2], rtol=0, atol=1e-12)


def test_cosine_by_hand() -> None:
    W = np.array([[2, 0], [0, 3], [-1, 0], [1, 1], [0, 0]], dtype=np.float32)
    half = math.sqrt(0.5)
    expected = [
        [1, 0, -1, half, 0],
        [0, 1, 0, half, 0],
        [-1, 0, 1, -half, 0],
        [half, half, -half, 1, 0],
        [0, 0, 0, 0, 1],
    ]
    assert np.allclose(cosine_similarity(W), expected, rtol=0, atol=1e-15)
    assert np.allclose(cosine_to(W, W[:2]), np.array(expected)[:, :2], rtol=0, atol=1e-15)


def test_cosine_of_updates_takes_the_model_each_client_received() -> None:
    W = np.array([[1, 2], [5, 7]], dtype=np.float32)
    assert cosine_similarity(W, np.array([1, 0], dtype=np.float32))[0, 1] == pytest.approx(7 / math.sqrt(65))
    assert cosine_similarity(W, np.array([[0, 2], [5, 4]], dtype=np.float32))[0, 1] == 0


def test_cosine_to_directions_from_an_origin() -> None:
    W, origin = np.array([[2, 1], [1, 3]], dtype=np.float32), np.array([1, 1], dtype=np.float32)
    assert cosine_to(W, np.array([[1, 5], [1, 1]], dtype=np.float32), origin).tolist() == [[0, 0], [1, 0]]


def test_l1_discrepancy_by_hand() -> None:
    W = np.array([[0, 1, 2, 4], [0, 2, 4, 8], [3, 3, 3, 3]], dtype=np.float32)
    shared = l1_discrepancy(W)
    assert shared[0].tolist() == [0, 7 / 8 / 4, 7 / 8 / 4]
    assert shared[1, 2] == (3 + 1 + 1 + 5) / 8 / 4
    own = l1_discrepancy(W, "own")
    assert own[0].tolist() == [0, 0, (0 + 0.25 + 0.5 + 1) / 4]


def test_l1_discrepancy_agrees_with_scipy_over_several_blocks() -> None:
    W = models(3, n=6, d=2000)
    own = (W - W.min(1, keepdims=True)) / np.ptp(W, axis=1)[:, None]
    assert np.allclose(l1_discrepancy(W, "own"), squareform(pdist(own, "cityblock")) / 2000, rtol=1e-5)
    assert np.allclose(l1_discrepancy(W), squareform(pdist(W, "cityblock")) / np.ptp(W) / 2000, rtol=1e-5)


def test_l1_discrepancy_does_not_depend_on_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for threads in (1, 3, 8):
        monkeypatch.setattr(aggregation, "available_cores", lambda threads=threads: threads)
        found.append(l1_discrepancy(models(5, d=2000)))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_l1_discrepancy_names_the_allowed_scalings() -> None:
    with pytest.raises(BouquetError, match="'model'; it can be 'shared' or 'own'"):
        l1_discrepancy(models(0), "model")  # type: ignore[arg-type]


@pytest.mark.parametrize("measure", MEASURES)
@settings(deadline=None)
@given(seed=seeds, order=st.permutations(range(5)))
def test_the_order_of_the_clients_orders_the_matrix(measure, seed: int, order: list[int]) -> None:
    found = measure(models(seed))
    assert np.array_equal(found, found.T)
    assert np.allclose(measure(models(seed)[order]), found[np.ix_(order, order)], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("measure", MEASURES)
def test_one_client_and_equal_clients(measure) -> None:
    diagonal = 1.0 if measure is cosine_similarity else 0.0
    assert measure(models(0, n=1)).tolist() == [[diagonal]]
    assert np.allclose(measure(np.tile(models(0, n=1), (3, 1))), diagonal, rtol=0, atol=1e-15)


def test_jensen_shannon_by_hand() -> None:
    """Certain of different classes: ln 2. Certain against even: H(3/4, 1/4) − ln 2 / 2. Mean over two samples."""
    p = np.array([[[1, 0], [1, 0]], [[0, 1], [1, 0]], [[1, 0], [0.5, 0.5]]])
    found = jensen_shannon_divergence(p)
    mixed = -0.75 * math.log(0.75) - 0.25 * math.log(0.25) - 0.5 * math.log(2)
    assert found[0, 1] == pytest.approx(math.log(2) / 2)
    assert found[0, 2] == pytest.approx(mixed / 2)
    assert found[1, 2] == pytest.approx((math.log(2) + mixed) / 2)


@settings(deadline=None)
@given(seeds)
def test_jensen_shannon_of_near_equal_models_is_not_negative(seed: int) -> None:
    p = softmax(seed)
    p[1:] = p[0] * (1 + 1e-9 * softmax(seed + 1)[1:])
    assert (jensen_shannon_divergence(p) >= 0).all()


@pytest.mark.parametrize("bad", [np.nan, -0.5, 2.0])
def test_jensen_shannon_names_the_model_whose_outputs_are_no_probabilities(bad: float) -> None:
    p = softmax(1)
    p[3, 1, 2] = bad
    with pytest.raises(BouquetError, match="model 3 of 5"):
        jensen_shannon_divergence(p)
