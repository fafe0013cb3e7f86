import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.strategies.fedtsdp.hopkins import draw_batch, entropy, hopkins_statistic, raise_weights, uniform_weights


def rng(seed=0):
    return np.random.default_rng(seed)


def blobs(dimensions):
    centers = rng(1).normal(size=(4, dimensions)) * 100
    return np.repeat(centers, 10, axis=0) + rng(2).normal(size=(40, dimensions))


def test_uniform_points_have_no_tendency_to_cluster():
    found = hopkins_statistic(rng(1).random((400, 2)), 40, 50, rng())
    assert found.mean == pytest.approx(0.5, abs=0.03)
    assert 0 < found.deviation < 0.1


@pytest.mark.parametrize("dimensions", [2, 640])
def test_blobs_have_one(dimensions):
    assert hopkins_statistic(blobs(dimensions), 10, 20, rng()).mean > 0.9


def test_twins_make_it_one_and_equal_points_one_half():
    twins = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 3.0], [1.0, 3.0]])
    assert hopkins_statistic(twins, 2, 5, rng()) == (1.0, 0.0)
    assert hopkins_statistic(np.ones((5, 3)), 2, 5, rng()) == (0.5, 0.0)


def test_by_hand_with_all_points_drawn_on_a_line():
    """v of 0, 1 and 4 are 1, 1 and 3; the uniform points of the box [0, 4] are the generator's."""
    points = np.array([[0.0], [1.0], [4.0]])
    found = hopkins_statistic(points, 3, 1, rng(5))
    generator = rng(5)
    generator.choice(3, size=3, replace=False)
    z = np.abs(4 * generator.random((3, 1)) - points.T).min(axis=1).sum()
    assert found.mean == pytest.approx(z / (z + 5))
    assert found.deviation == 0


def test_mean_and_deviation_are_over_the_draws():
    points, generator = blobs(2) + 60 * rng(3).random((40, 2)), rng(7)
    single = [hopkins_statistic(points, 5, 1, generator).mean for _ in range(6)]
    together = hopkins_statistic(points, 5, 6, rng(7))
    assert together == (pytest.approx(np.mean(single)), pytest.approx(np.std(single, ddof=1)))


def test_weights_by_hand():
    weights = uniform_weights(4)
    batch = np.array([1, 3])
    # Eq. 7 adds 4 / 2, Eq. 8 divides by 5
    np.testing.assert_allclose(raise_weights(weights, batch), [0.05, 0.45, 0.05, 0.45])
    np.testing.assert_allclose(raise_weights(weights, batch, gain=0.5), [0.125, 0.375, 0.125, 0.375])
    assert weights.tolist() == [0.25] * 4


@given(st.integers(2, 50), st.integers(1, 50), st.integers(0, 99), st.one_of(st.none(), st.floats(1e-3, 10)))
def test_weights_sum_to_one_and_rise_for_the_batch_alone(samples, size, seed, gain):
    weights = rng(seed).dirichlet(np.ones(samples))
    batch = draw_batch(weights, size, rng(seed))
    raised = raise_weights(weights, batch, gain)
    others = np.delete(np.arange(samples), batch)
    assert raised.sum() == pytest.approx(1)
    assert (raised[others] <= weights[others]).all()
    assert (raised[batch] / weights[batch]).min() >= (raised[others] / weights[others]).max(initial=0)


def test_a_batch_has_different_samples_that_the_weights_allow():
    weights = np.array([0.0, 0.5, 0.3, 0.0, 0.2])
    assert draw_batch(weights, 3, rng()).tolist() == [1, 2, 4]
    assert draw_batch(weights, 5, rng()).tolist() == [0, 1, 2, 3, 4]
    drawn = [draw_batch(uniform_weights(100), 10, rng(seed)).tolist() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 10


def test_the_papers_gain_leaves_the_weight_to_one_batch_for_good():
    weights, batch = uniform_weights(1000), np.arange(10)
    assert entropy(weights) == pytest.approx(np.log(1000))
    for round_ in range(200):
        weights = raise_weights(weights, batch)
        assert draw_batch(weights, 10, rng(round_)).sum() < 1000  # at most a stray sample from outside
    assert entropy(weights) == pytest.approx(np.log(10))
    assert entropy(np.array([0.0, 1.0])) == 0
