from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import pdist, squareform

from bouquet.strategies.dcpfl.grouping import groups_of_at_least, model_discrepancy, next_split
from bouquet.strategies.mathematics.clustering import groups_at, linkage_matrix

W = np.array([[0, 4, 2], [4, 0, 2], [0, 2, 1]], dtype=np.float32)
ORIGIN = np.zeros(3, dtype=np.float32)


def test_eq_3_by_hand():
    """One scale for all (0 to 4): |(0, 1, .5) − (1, 0, .5)| = 2. With its own, the third model is the first one."""
    shared = model_discrepancy(W, ORIGIN, "l1")
    np.testing.assert_allclose(shared * 3, [[0, 2, 0.75], [2, 0, 1.75], [0.75, 1.75, 0]])
    own = model_discrepancy(W, ORIGIN, "l1-own")
    np.testing.assert_allclose(own * 3, [[0, 2, 0], [2, 0, 2], [0, 2, 0]])


def test_the_cosine_is_that_of_the_updates():
    origin = np.array([0, 0, 2], dtype=np.float32)
    # updates (0, 4, 0), (4, 0, 0) and (0, 2, −1)
    expected = 1 - np.array([[1, 0, 2 / 5**0.5], [0, 1, 0], [2 / 5**0.5, 0, 1]])
    np.testing.assert_allclose(model_discrepancy(W, origin, "cosine"), expected, atol=1e-12)


def test_gamma_is_lowered_until_the_groups_differ():
    """Merges at 1 (a and b), 2 (c) and 10 (d), that is at 0.1, 0.2 and 1 of γ_global."""
    points = np.array([[0.0], [1], [2.5], [11.5]])
    linkage = linkage_matrix(squareform(pdist(points)))
    assert linkage[:, 2] == pytest.approx([1, 2, 31 / 3])
    gamma, groups = next_split(partial(groups_at, linkage), 1.0, 0.2)
    assert (gamma, groups.tolist()) == (0.8, [0, 0, 0, 1])
    gamma, groups = next_split(partial(groups_at, linkage), gamma, 0.2)
    assert (gamma, groups.tolist()) == (0.0, [0, 1, 2, 3])  # 0.6, 0.4 and 0.2 part nobody
    assert next_split(partial(groups_at, linkage), gamma, 0.2) is None


# Two pairs of clients, 1 apart within and 5 between, and one far from both, which is nearer to the second pair.
FAR = squareform(pdist(np.array([[0.0], [1], [6], [7], [30]])))


@pytest.mark.parametrize(
    ("samples", "least", "fraction", "groups"),
    [
        ([10] * 5, 0, 0.5, [0, 0, 0, 0, 1]),
        ([10] * 5, 20, 0.5, [0, 0, 0, 0, 0]),  # it cannot be alone, and does not keep the pairs together either:
        ([10] * 5, 20, 0.1, [0, 0, 1, 1, 1]),
        ([10] * 5, 20, 0.0, [0, 0, 1, 1, 1]),  # each half of a pair has too few
        ([20, 20, 10, 10, 20], 20, 0.0, [0, 1, 2, 2, 3]),
        ([10] * 5, 21, 0.0, [0, 0, 0, 0, 0]),
        ([1] * 5, 100, 0.0, [0, 0, 0, 0, 0]),  # all together have too few
    ],
)
def test_a_group_has_the_least_number_of_samples(samples, least, fraction, groups):
    found = groups_of_at_least(linkage_matrix(FAR), fraction, FAR, np.array(samples), least)
    assert found.tolist() == groups


@given(st.integers(2, 12), st.integers(0, 1000), st.integers(0, 60))
def test_groups_of_enough_samples_are_parts_of_those_at_a_higher_threshold(n, seed, least):
    generator = np.random.default_rng(seed)
    distances = squareform(pdist(generator.normal(size=(n, 2))))
    samples = generator.integers(1, 30, size=n)
    at = partial(groups_of_at_least, linkage_matrix(distances), distances=distances, samples=samples, least=least)
    before = at(1.0)
    for fraction in (0.8, 0.5, 0.2, 0.0):
        groups = at(fraction)
        assert len({*zip(groups.tolist(), before.tolist(), strict=True)}) == groups.max() + 1
        assert not groups.max() or np.bincount(groups, weights=samples).min() >= least
        before = groups
