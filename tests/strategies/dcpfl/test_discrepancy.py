from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import pdist, squareform

from bouquet.strategies.dcpfl.grouping import groups_of_at_least, model_discrepancy, next_split, sampled_columns
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


@pytest.mark.parametrize("kind", ["l1", "l1-own", "cosine"])
def test_on_a_sample_of_coordinates(kind):
    """All coordinates give the exact value; the models' own range counts even where it is not in the sample."""
    np.testing.assert_allclose(
        model_discrepancy(W, ORIGIN, kind, np.arange(3)), model_discrepancy(W, ORIGIN, kind), atol=1e-12
    )
    if kind == "l1-own":
        np.testing.assert_allclose(model_discrepancy(W, ORIGIN, kind, np.array([1]))[0], [0, 1, 0])


def test_the_sample_is_fixed_by_the_seed():
    assert sampled_columns(10, None, 0) is None
    assert sampled_columns(10, 10, 0) is None
    first = sampled_columns(100, 20, seed=3)
    assert len(set(first.tolist())) == 20
    assert first.tolist() == sorted(first.tolist()) == sampled_columns(100, 20, seed=3).tolist()
    assert first.tolist() != sampled_columns(100, 20, seed=4).tolist()


def test_the_error_of_the_sample_is_as_its_docstring_says():
    """L1: relative standard error c / √m · √(1 − m/d). Cosine: at most (1 + |cos|) · √(κ/m)."""
    generator = np.random.default_rng(0)
    models = generator.standard_normal((2, 20_000)) ** 3  # heavy tails
    models[1] += models[0]
    d, m, zero = models.shape[1], 2_000, np.zeros(20_000)
    exact = {kind: model_discrepancy(models, zero, kind)[0, 1] for kind in ("l1", "cosine")}
    found = {
        kind: [model_discrepancy(models, zero, kind, sampled_columns(d, m, seed))[0, 1] for seed in range(150)]
        for kind in ("l1", "cosine")
    }
    difference = np.abs(models[0] - models[1])
    expected = difference.std() / difference.mean() / m**0.5 * (1 - m / d) ** 0.5
    assert np.std(found["l1"]) / exact["l1"] == pytest.approx(expected, rel=0.2)
    assert np.mean(found["l1"]) == pytest.approx(exact["l1"], rel=4 * expected / 150**0.5)
    kurtosis = max(d * (u**4).sum() / (u**2).sum() ** 2 for u in models)
    assert 0 < np.std(found["cosine"]) <= (1 + abs(1 - exact["cosine"])) * (kurtosis / m) ** 0.5


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


@given(st.integers(2, 12), st.integers(0, 1000), st.floats(0.05, 1))
def test_each_split_refines_the_one_before_and_the_last_leaves_everybody_alone(n, seed, step):
    points = np.random.default_rng(seed).normal(size=(n, 2))
    linkage = linkage_matrix(squareform(pdist(points)))
    gamma, groups = 1.0, groups_at(linkage, 1.0)
    while (found := next_split(partial(groups_at, linkage), gamma, step)) is not None:
        assert found[0] < gamma
        parts = {(part, group) for part, group in zip(found[1].tolist(), groups.tolist(), strict=True)}
        assert len(parts) == found[1].max() + 1 > groups.max() + 1
        gamma, groups = found
    assert groups.tolist() == list(range(n))


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
