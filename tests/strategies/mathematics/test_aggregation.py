"""Means of client models: hand-computed values, exactness, empty clusters, refusals."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from bouquet.common.errors import BouquetError
from bouquet.strategies.mathematics import aggregation
from bouquet.strategies.mathematics.aggregation import cluster_means, column_blocks, weighted_mean

W = np.array([[1, 2], [3, 6], [11, 1]], dtype=np.float32)


def test_plain_and_weighted_mean() -> None:
    assert weighted_mean(W).tolist() == [5, 3]
    assert weighted_mean(W, [1, 3, 0]).tolist() == [2.5, 5]
    assert weighted_mean(W).dtype == np.float32


def test_the_mean_is_accumulated_in_float64() -> None:
    """In float32, 2²⁴ + 1 is 2²⁴, and the mean would be 2²⁴ / 3."""
    column = np.array([[2**24], [1], [1]], dtype=np.float32)
    assert weighted_mean(column)[0] == np.float32((2**24 + 2) / 3)


def test_blocks_cover_all_columns_once() -> None:
    """With 4,096 rows a block has 256 columns, so that 600 columns take three."""
    wide = np.arange(600, dtype=np.float32)[None].repeat(4096, axis=0)
    blocks = [block for _, block in column_blocks(wide)]
    assert [block.shape[1] for block in blocks] == [256, 256, 88]
    assert all(block.dtype == np.float64 for block in blocks)
    assert np.array_equal(np.concatenate(blocks, axis=1), wide)
    assert np.array_equal(weighted_mean(wide), wide[0])


def test_all_clusters_at_once() -> None:
    assert cluster_means(W, [1, 0, 1], 2).tolist() == [[3, 6], [6, 1.5]]
    assert cluster_means(W, [1, 0, 1], 2, weights=[1, 5, 4]).tolist() == [[3, 6], [9, pytest.approx(1.2)]]


@pytest.mark.parametrize("threads", [1, 2, 64])
def test_the_mean_holds_little_beside_the_models_however_many_threads(threads: int, monkeypatch: Any) -> None:
    W = np.ones((60, 150_000), dtype=np.float32)
    monkeypatch.setattr(aggregation, "available_cores", lambda: threads)
    tracemalloc.start()
    try:
        mean = weighted_mean(W)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.4 * W.nbytes  # a quarter in float64, the mean, and the threads' own
    assert np.array_equal(mean, W[0])


def test_an_empty_cluster_keeps_its_center() -> None:
    previous = np.array([[7, 7], [8, 8], [9, 9]], dtype=np.float32)
    assert cluster_means(W, [0, 0, 2], 3, previous=previous).tolist() == [[2, 4], [8, 8], [11, 1]]
    assert cluster_means(W, [0, 0, 2], 3, [1, 1, 0], previous).tolist() == [[2, 4], [8, 8], [9, 9]]
    assert previous.tolist() == [[7, 7], [8, 8], [9, 9]]


def test_an_empty_cluster_without_a_center_is_refused() -> None:
    with pytest.raises(BouquetError, match="Cluster 1 of 3 has no members"):
        cluster_means(W, [0, 0, 2], 3)


@pytest.mark.parametrize("assignment", [[0, 1], [0, 1, 2], [0, -1, 1]])
def test_an_assignment_that_does_not_fit_is_refused(assignment: list[int]) -> None:
    with pytest.raises(BouquetError, match="from 0 to 1 for each of 3 models"):
        cluster_means(W, assignment, 2)


@pytest.mark.parametrize(
    ("weights", "message"),
    [([1, 2], "3 weights"), ([1, -2, 1], r"-2\.0"), ([1, float("nan"), 1], "nan"), ([0, 0, 0], "at least one")],
)
def test_bad_weights_are_refused(weights: list[float], message: str) -> None:
    with pytest.raises(BouquetError, match=message):
        weighted_mean(W, weights)


def test_no_model_at_all_is_refused() -> None:
    with pytest.raises(BouquetError, match="No mean of 0 models"):
        weighted_mean(W[:0])
