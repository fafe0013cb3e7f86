"""The rule by which a device chooses what it keeps, by hand."""

import math

import numpy as np
import pytest

from bouquet.common import model_selection
from bouquet.common.model_selection import Difference, Posterior, Prior, choose, pool, posterior


def test_errors_are_of_the_class_with_the_largest_output():
    outputs = np.array([[3.0, 0.0, -1.0], [0.0, 1.0, 0.0], [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]])
    np.testing.assert_array_equal(model_selection.errors(outputs, np.array([0, 0, 0, 1])), [0.0, 1.0, 0.0, 0.0])


def test_a_difference_is_paired():
    found = model_selection.difference(np.array([0.1, 0.5, 0.3]), np.array([0.2, 0.4, 0.6]))
    # −.1, .1, −.3: mean −.1, deviations 0, .2, −.2
    assert found == pytest.approx((-0.1, 0.04))
    assert model_selection.difference(np.array([0.1]), np.array([0.2])).variance == 0.0


def test_the_fleet_is_pooled_by_the_moments_of_a_random_effect():
    means = [-0.3, -0.1, -0.3, -0.1]
    reports = [(5, {"received": Difference(mean, 0.05)}) for mean in means]
    prior = pool(reports)["received"]
    # variance of the means .04 / 3; of sampling .05 / 5 = .01
    assert prior == pytest.approx((-0.2, 0.04 / 3 / 4, 0.04 / 3 - 0.01, 0.05))
    assert pool(reports[:3]) == {}
    alike = pool([(5, {"trained": Difference(-0.2, 0.05)})] * 4)["trained"]
    # means that are equal by chance are known no better than their samples allow: .01 / 4
    assert alike == pytest.approx((-0.2, 0.0025, 0.0, 0.05))


def test_few_samples_believe_the_fleet_and_many_themselves():
    prior = Prior(mean=-0.2, squared_error=0.0, between=0.01, within=0.04)
    own = Difference(0.2, 0.9)
    # σ²/n = .01 = τ²: half and half; the error is √(½ · .01)
    assert posterior(own, 4, prior) == pytest.approx((0.0, math.sqrt(0.005)))
    # σ²/n = .0001
    assert posterior(own, 400, prior).mean == pytest.approx((0.2 * 0.01 - 0.2 * 0.0001) / 0.0101)
    nobody_differs = Prior(-0.2, 0.0009, 0.0, 0.04)
    assert posterior(own, 4, nobody_differs) == pytest.approx((-0.2, 0.03))


def test_without_a_fleet_a_device_goes_by_its_own_error():
    # three degrees of freedom of its own and four of a variance of .1
    assert posterior(Difference(-0.2, 0.03), 4, None) == pytest.approx((-0.2, math.sqrt((0.09 + 0.4) / 7 / 4)))
    assert posterior(Difference(-0.3, 0.0), 1, None).error == pytest.approx(math.sqrt(0.1))


def test_another_model_must_be_better_by_the_margin(monkeypatch):
    beliefs = {"received": Posterior(-0.05, 0.06), "personal": Posterior(-0.04, 0.03)}
    for margin, chosen in ((1.0, "personal"), (0.0, "received"), (2.0, model_selection.REFERENCE)):
        monkeypatch.setattr(model_selection, "MARGIN", margin)
        assert choose(beliefs) == chosen
    assert choose({}) == model_selection.REFERENCE


def test_what_was_kept_stays_only_where_it_is_better_than_what_is_new_by_the_margin(monkeypatch):
    new = np.full(100, 0.5)
    better = new - 0.1  # of no variance: (4 · .1) / 103 / 100, an error of .006
    assert model_selection.stays(better, new)
    assert not model_selection.stays(new, new)
    assert not model_selection.stays(better[:3], new[:3])  # an error of .15
    monkeypatch.setattr(model_selection, "MARGIN", 20.0)
    assert not model_selection.stays(better, new)


def test_what_is_reported_comes_back_and_nonsense_counts_for_nothing():
    differences = {"received": Difference(-0.25, 0.5), "personal": Difference(0.5, 0.0)}
    report = model_selection.to_report(7, differences)
    assert model_selection.from_report(report) == (7, differences)
    priors = {"trained": Prior(-0.25, 0.125, 0.0, 0.5)}
    assert model_selection.from_prior(model_selection.to_prior(priors)) == priors
    for wrong in (None, "x", report[:-1], [float("nan"), *report[1:]], [0.5, *report[1:]], [7.0, -5.0, *report[2:]]):
        assert model_selection.from_report(wrong) is None
    assert model_selection.from_prior(None) == {}


@pytest.mark.parametrize("kinds", [["alone", "received", "trained", "personal"], ["received", "trained"], ["alone"]])
def test_what_a_mixture_holds_comes_back(kinds):
    left_out = "alone" not in kinds
    bits = float(model_selection.mixed_bits(kinds, left_out))
    found = model_selection.served({"chosen": 4.0, "mixed": bits})
    assert found == {"kept": "mixture", "mixed": kinds} | ({"alone_left_out": 1} if left_out else {})
    assert model_selection.served_text(found) == " + ".join(kinds) + (", without alone" if left_out else "")


@pytest.mark.parametrize("bits", [0.0, -1.0, 32.0, math.nan, math.inf])
def test_of_a_mixture_that_cannot_be_nothing_is_said(bits):
    assert model_selection.served({"chosen": 4.0, "mixed": bits}) == {"kept": "mixture"}


@pytest.mark.parametrize("place", [-1.0, 5.0, math.nan, math.inf])
def test_what_nobody_can_serve_is_not_recorded(place):
    assert model_selection.served({"chosen": place, "mixed": 1.0}) == {}


def test_what_serves_the_methods_own_model_says_nothing():
    assert model_selection.served({}) == {}
    assert model_selection.served_text({}) == ""
    assert model_selection.served_text(model_selection.served({"chosen": 1.0})) == "received"
