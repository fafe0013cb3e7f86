"""The accountant, by hand-computed values."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_ndtr

from bouquet.common.privacy_accounting import _log_normal_cdf, delta_at, epsilon_spent


def test_delta_of_one_release_by_hand():
    """μ = 1, ε = 1: Φ(−.5) − e Φ(−1.5) = .3085375 − 2.7182818 · .0668072; ε = 0: 2 Φ(.5) − 1."""
    assert delta_at(1.0, mu=1.0) == pytest.approx(0.3085375387 - 2.7182818285 * 0.0668072013, abs=1e-9)
    assert delta_at(0.0, mu=1.0) == pytest.approx(2 * 0.6914624613 - 1, abs=1e-9)


def test_four_releases_are_one_with_half_of_the_noise():
    """μ composes by its squares: with z = 4, Δ = 2 C and T = 4, μ = √4 · 2 / 4 = 1."""
    delta = delta_at(1.0, mu=1.0)
    assert epsilon_spent(4, noise_multiplier=4.0, delta=delta) == pytest.approx(1.0, rel=1e-6)
    assert epsilon_spent(1, noise_multiplier=2.0, delta=delta) == pytest.approx(1.0, rel=1e-6)


def test_nothing_sent_costs_nothing_and_no_noise_protects_nothing():
    assert epsilon_spent(0, 1.0, 1e-5) == 0
    assert epsilon_spent(1, 0.0, 1e-5) == math.inf
    assert epsilon_spent(1, 1e7, 1e-5) == 0  # δ alone covers it


@given(st.integers(1, 1000), st.floats(0.001, 100), st.floats(1e-9, 0.1))
def test_it_is_below_the_bound_by_concentrated_privacy_and_as_far_as_delta_allows(releases, noise, delta):
    found = epsilon_spent(releases, noise, delta)
    rho = releases * 2 / noise**2  # T Δ² / (2 σ²) with Δ = 2 C, σ = z C
    assert 0 <= found <= rho + 2 * math.sqrt(rho * math.log(1 / delta)) + 1e-9
    mu = 2 * math.sqrt(releases) / noise
    assert delta_at(found, mu) <= delta * 1.001
    if found > 0:
        assert delta_at(found * 0.999, mu) > delta * 0.999


def test_far_out_the_series_goes_on_where_the_function_ends():
    for x in (-19.99, -20.01, -200.0):
        assert _log_normal_cdf(x) == pytest.approx(log_ndtr(x), rel=1e-9)
    # μ²/2 + 4.26 μ or so: the loss is nearly normal with mean μ²/2 and deviation μ.
    assert epsilon_spent(10, 0.01, 1e-5) == pytest.approx(632.4555**2 / 2 + 4.26 * 632.4555, rel=1e-3)
