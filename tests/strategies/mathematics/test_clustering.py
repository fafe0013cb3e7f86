"""Groupings of client models: hand-computed cases, canonical numbering, degenerate inputs, nesting."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist, squareform

from bouquet.common.errors import BouquetError
from bouquet.strategies.mathematics.clustering import (
    assign_to_nearest,
    canonical_labels,
    groups_at,
    hierarchical_clusters,
    kmeans,
    linkage_matrix,
    silhouette_by_k,
)

GROUPS = np.array([0, 1, 0, 2, 1, 2, 0, 1, 2, 0])


def grouped_models(d: int, noise: float = 0.1, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    centers = 5 * random.standard_normal((3, d))
    return (centers[GROUPS] + noise * random.standard_normal((len(GROUPS), d))).astype(np.float32)


def test_canonical_labels() -> None:
    assert canonical_labels([7, 2, 7, -1, 2]).tolist() == [0, 1, 0, 2, 1]


def test_kmeans_by_hand() -> None:
    W = np.array([[10, 0], [0, 0], [12, 0], [0, 4]], dtype=np.float32)
    found = kmeans(W, 2, seed=0)
    assert found.assignment.tolist() == [0, 1, 0, 1]
    assert found.centers.tolist() == [[11, 0], [0, 2]]
    assert found.centers.dtype == np.float32
    assert found.inertia == pytest.approx(1 + 1 + 4 + 4)


@pytest.mark.parametrize("d", [4, 2000])
def test_kmeans_finds_the_groups_with_fewer_or_more_parameters_than_clients(d: int) -> None:
    W = grouped_models(d)
    labels, centers, inertia = kmeans(W, 3, seed=1)
    assert labels.tolist() == GROUPS.tolist()
    assert np.allclose(centers, [W[k == GROUPS].mean(axis=0) for k in range(3)], atol=1e-6)
    assert inertia == pytest.approx(np.sum((W - centers[labels]).astype(np.float64) ** 2), rel=1e-5)


def test_the_best_of_all_restarts_is_kept() -> None:
    W = grouped_models(50, noise=20)
    assert kmeans(W, 4, seed=0, restarts=20).inertia < kmeans(W, 4, seed=0, restarts=1).inertia


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
def test_every_client_is_nearest_to_its_own_center(seed: int) -> None:
    W = np.random.default_rng(seed).standard_normal((200, 2), dtype=np.float32)
    labels, centers, _ = kmeans(W, 5, seed, restarts=1)
    assert np.array_equal(assign_to_nearest(W, centers), labels)


def test_kmeans_with_as_many_clusters_as_clients() -> None:
    W = grouped_models(50)
    labels, centers, inertia = kmeans(W, 10, seed=0)
    assert labels.tolist() == list(range(10))
    assert np.array_equal(centers, W)
    assert inertia == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("d", [2, 40])
def test_surplus_clusters_of_equal_clients_stay_empty(d: int) -> None:
    W = np.repeat(np.array([[1.0], [4.0]], dtype=np.float32), [3, 1], axis=0) * np.ones(d, dtype=np.float32)
    labels, centers, inertia = kmeans(W, 3, seed=0)
    assert labels.tolist() == [0, 0, 0, 1]
    assert centers[:, 0].tolist() == [1, 4, 1.75]
    assert inertia == pytest.approx(0, abs=1e-12)


def test_fewer_clients_than_clusters_are_refused() -> None:
    with pytest.raises(BouquetError, match=r"2 client models cannot form 3 clusters.*num_clusters"):
        kmeans(np.eye(2, dtype=np.float32), 3, seed=0)
    with pytest.raises(BouquetError, match="num_clusters is 0"):
        kmeans(np.eye(2, dtype=np.float32), 0, seed=0)


def test_the_nearest_center_and_the_lower_one_in_a_tie() -> None:
    centers = np.array([[0, 0], [2, 0], [0, 2]], dtype=np.float32)
    W = np.array([[1, 0], [1, 1], [1.5, 0.5], [0, 1.01]], dtype=np.float32)
    assert assign_to_nearest(W, centers).tolist() == [0, 0, 1, 2]


def test_silhouette_by_hand() -> None:
    """Points 0, 1 and 10 in two clusters: (1 − 1/10 + 1 − 1/9 + 0) / 3. Two is the only candidate that has one."""
    scores = silhouette_by_k(np.array([[0.0], [1.0], [10.0]]), [1, 2, 3, 4], seed=0)
    assert scores == {2: pytest.approx((9 / 10 + 8 / 9) / 3)}


def test_silhouette_of_directions() -> None:
    """Lengths differ tenfold, directions make two tight groups."""
    W = np.array([[1, 0], [10, 0], [100, 1], [0, 1], [0, 10], [1, 100], [0, 0]], dtype=np.float32)[:6]
    assert silhouette_by_k(W, [2], seed=0, unit_length=True)[2] > 0.98
    assert silhouette_by_k(W, [2], seed=0)[2] < 0.8


def test_silhouette_needs_distinct_clients() -> None:
    assert silhouette_by_k(np.ones((5, 9), dtype=np.float32), [2, 3], seed=0) == {}
    assert list(silhouette_by_k(np.eye(5, dtype=np.float32)[[0, 0, 1, 1, 0]], [2, 3], seed=0)) == [2]


# Clients at 0, 1, 4 and 12: merges at 1, then (4 + 3) / 2 = 3.5, then (12 + 11 + 8) / 3 = 31 / 3.
LINE = squareform(pdist(np.array([[12.0], [0.0], [1.0], [4.0]])))


def test_merge_heights_by_hand() -> None:
    linkage = linkage_matrix(LINE)
    assert linkage[:, 2].tolist() == pytest.approx([1, 3.5, 31 / 3])


@pytest.mark.parametrize(
    ("fraction", "groups"),
    [
        (0, [0, 1, 2, 3]),
        (0.09, [0, 1, 2, 3]),
        (0.1, [0, 1, 1, 2]),
        (0.34, [0, 1, 1, 1]),
        (0.999, [0, 1, 1, 1]),
        (1, [0, 0, 0, 0]),
    ],
)
def test_groups_by_hand(fraction: float, groups: list[int]) -> None:
    assert groups_at(linkage_matrix(LINE), fraction).tolist() == groups


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_groups_nest(seed: int, n: int, fractions: list[float]) -> None:
    points = np.random.default_rng(seed).integers(0, 4, (n, 2)).astype(float)
    linkage = linkage_matrix(squareform(pdist(points)) if n > 1 else np.zeros((1, 1)))
    fine, coarse = (groups_at(linkage, fraction) for fraction in sorted(fractions))
    assert all(len(set(coarse[fine == group])) == 1 for group in set(fine))
    assert groups_at(linkage, 1).tolist() == [0] * n
    assert groups_at(linkage, 0).tolist() == list(range(n))


def test_equal_clients_and_a_single_one() -> None:
    linkage = linkage_matrix(np.zeros((3, 3)))
    assert groups_at(linkage, 0).tolist() == [0, 1, 2]
    assert groups_at(linkage, 0.2).tolist() == [0, 0, 0]
    assert groups_at(linkage_matrix(np.zeros((1, 1))), 0.5).tolist() == [0]


def test_distances_that_are_unknown_or_not_symmetric_are_refused() -> None:
    unknown, crooked = LINE.copy(), LINE.copy()
    unknown[1, 3] = unknown[3, 1] = np.nan
    crooked[1, 3] += 1
    with pytest.raises(BouquetError, match="clients 1 and 3 is not known"):
        linkage_matrix(unknown)
    with pytest.raises(BouquetError, match="not symmetric"):
        linkage_matrix(crooked)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_a_threshold_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(BouquetError, match="from 0 to 1"):
        groups_at(linkage_matrix(LINE), fraction)


# Points at 0, 2, 3 and 7 on a line: {2, 3} at 1, then 0 joins at 2 (single), 2.5 (average) or 3 (complete).
STEPS = np.abs(np.subtract.outer([0.0, 2, 3, 7], [0.0, 2, 3, 7]))


@pytest.mark.parametrize(
    ("linkage", "heights"),
    [
        ("single", [1, 2, 4]),
        ("average", [1, 2.5, 16 / 3]),
        ("complete", [1, 3, 7]),
        # Ward: sqrt(2 · |A| |B| / (|A| + |B|)) · ‖mean A − mean B‖.
        ("ward", [1, np.sqrt(4 / 3) * 2.5, np.sqrt(6 / 4) * (7 - 5 / 3)]),
    ],
)
def test_linkages_by_hand(linkage: str, heights: list[float]) -> None:
    assert linkage_matrix(STEPS, linkage)[:, 2].tolist() == pytest.approx(heights)
    assert hierarchical_clusters(STEPS, linkage=linkage, num_clusters=2).tolist() == [0, 0, 0, 1]
    assert hierarchical_clusters(STEPS, linkage=linkage, num_clusters=3).tolist() == [0, 1, 1, 2]
    for joined, height in enumerate(heights):
        assert len(set(hierarchical_clusters(STEPS, linkage=linkage, threshold=height + 1e-9))) == 3 - joined
        assert len(set(hierarchical_clusters(STEPS, linkage=linkage, threshold=height - 1e-9))) == 4 - joined


@pytest.mark.parametrize("linkage", ["single", "average", "complete", "ward"])
def test_as_many_clusters_as_are_asked_for_even_of_equal_clients(linkage: str) -> None:
    for k in (1, 2, 3, 4):
        assert len(set(hierarchical_clusters(np.zeros((4, 4)), linkage=linkage, num_clusters=k))) == k
    assert hierarchical_clusters(np.zeros((4, 4)), linkage=linkage, threshold=0).tolist() == [0, 0, 0, 0]
    assert hierarchical_clusters(np.zeros((1, 1)), linkage=linkage, num_clusters=1).tolist() == [0]
    assert hierarchical_clusters(np.zeros((1, 1)), linkage=linkage, threshold=0.5).tolist() == [0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_clusters": 2, "linkage": "median"}, "linkage is 'median'; allowed are average, single, complete, ward"),
        ({}, "either their number"),
        ({"num_clusters": 2, "threshold": 1.0}, "either their number"),
        ({"threshold": -1.0}, "at least 0"),
        ({"threshold": float("nan")}, "at least 0"),
        ({"num_clusters": 5}, "4 client models cannot form 5 clusters"),
        ({"num_clusters": 0}, "at least 1 cluster"),
    ],
)
def test_hierarchical_clusters_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(BouquetError, match=message):
        hierarchical_clusters(STEPS, **wrong)
