"""What a comparison may claim, by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bouquet.experiments.comparison import claims
from bouquet.experiments.comparison.claims import difference_text
from bouquet.experiments.comparison.significance import holm, paired_difference, ranks


def test_a_difference_is_paired_by_client_and_its_interval_is_over_seeds():
    row = {0: {"a": 0.9, "b": 0.8}, 1: {"a": 0.7, "b": 0.9, "only": 0.1}}
    other = {0: {"a": 0.8, "b": 0.5}, 1: {"a": 0.6, "b": 0.8}, 2: {"a": 0.0, "b": 0.0}}
    found = paired_difference(row, other)
    # seed 0: .1, .3, mean .2; seed 1: .1, .1, mean .1; deviation .0707, of their mean .05, t of one degree 12.706
    assert found.mean == pytest.approx(0.15)
    assert found.high - found.mean == pytest.approx(12.7062 * 0.05, rel=1e-4)
    # p: 2 (1/2 − arctan(3) / π), Cauchy's distribution at t = .15 / .05
    assert found.p_value == pytest.approx(1 - 2 * math.atan(3) / math.pi)
    assert found.is_noise
    assert [replace(found, p_value=p).is_noise for p in (0.049, 0.051)] == [False, True]


def test_rows_that_are_all_equal_have_no_p_value():
    assert ranks([{"a": 0.5, "b": 0.5, "c": 0.5}] * 3).p_value is None


def test_a_measure_of_all_clients_takes_the_place_of_their_mean():
    row = {0: {"a": 0.9, "b": 0.8}, 1: {"a": 0.7, "b": 0.9}}
    other = {0: {"a": 0.8, "b": 0.5}, 1: {"a": 0.6, "b": 0.8}}
    found = paired_difference(row, other, min)
    assert found.mean == pytest.approx((0.8 - 0.5 + 0.7 - 0.6) / 2)


def test_seeds_that_agree_are_a_claim_and_ones_that_do_not_are_none():
    row = {seed: {str(i): 0.8 + 0.01 * (i % 3) + 0.001 * seed for i in range(20)} for seed in range(3)}
    other = {seed: {str(i): 0.75 for i in range(20)} for seed in range(3)}
    assert not paired_difference(row, other).is_noise
    one_seed_disagrees = {**row, 2: {str(i): 0.7 + 0.001 * i for i in range(20)}}
    found = paired_difference(one_seed_disagrees, other)
    assert found.is_noise


@pytest.mark.parametrize("seeds", [1, 3])
def test_where_seeds_do_not_vary_nothing_is_known_of_noise(seeds):
    other = {seed: {"a": 0.25, "b": 0.5, "c": 0.75} for seed in range(seeds)}
    found = paired_difference({seed: {c: v + 1 / 12 for c, v in one.items()} for seed, one in other.items()}, other)
    assert (found.mean, found.low, found.p_value, found.is_noise) == (pytest.approx(1 / 12), None, None, True)
    assert paired_difference({0: {"a": 1.0}}, {0: {"b": 0.5}}) is None


def test_holms_p_values_by_hand():
    one = paired_difference({0: {"a": 0.9}, 1: {"a": 0.7}}, {0: {"a": 0.8}, 1: {"a": 0.5}})
    found = holm({name: replace(one, p_value=p) for name, p in {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}.items()})
    # Holm's own example: 4 · .005, 3 · .01, 2 · .03, then .04, which may not be less than the one before
    assert {name: d.p_value for name, d in found.items()} == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    unknown = {
        "a": None,
        "b": replace(one, p_value=None),
        "c": replace(one, p_value=0.2),
        "d": replace(one, p_value=0.25),
    }
    found = holm(unknown)  # what is not known, because it is to come or came out equal, is one of four all the same
    assert (found["a"], found["b"].p_value) == (None, None)
    assert [found[name].p_value for name in "cd"] == pytest.approx([4 * 0.2, 4 * 0.2])
    assert holm({"c": unknown["c"]})["c"].p_value == 0.2


@pytest.mark.parametrize(("higher_is_better", "worth"), [(True, 0.25), (False, -0.25)])
def test_of_an_error_less_is_worth_more(monkeypatch, higher_is_better, worth):
    monkeypatch.setattr(claims, "by_seed", lambda *_: {0: {"a": 0.25}})
    table = SimpleNamespace(score=SimpleNamespace(higher_is_better=higher_is_better))
    assert claims.worth_by_seed(SimpleNamespace(table=table), "row", "data") == {0: {"a": worth}}


def test_the_worst_tenth_is_the_lowest():
    assert claims.worst_tenth(np.arange(20)[::-1] / 20) == pytest.approx((0 + 0.05) / 2)


def test_ranks_are_means_over_blocks_with_nemenyis_critical_difference():
    blocks = [{"a": 0.9, "b": 0.8, "c": 0.8}, {"a": 0.9, "b": 0.95, "c": 0.5}]
    found = ranks(blocks)
    assert found.mean == pytest.approx({"a": 1.5, "b": 1.75, "c": 2.75})
    assert list(found.mean) == ["a", "b", "c"]
    # Demšar's table 5: q for three rows is 2.343
    assert found.critical_difference == pytest.approx(2.343 * math.sqrt(3 * 4 / 12), abs=2e-3)
    assert ranks(blocks[:1]) is None
    assert set(ranks([blocks[0], {"a": 0.1, "c": 0.2}]).mean) == {"a", "c"}  # b is not in every block


def test_a_seed_in_which_a_row_has_no_score_is_no_part_of_its_rank(monkeypatch):
    scores = {"x": {0: {"a": 0.9}, 1: {"a": 0.1}}, "y": {0: {"a": 0.5}, 1: {}}}
    monkeypatch.setattr(claims, "by_seed", lambda results, row, data: scores[row])
    rows = [SimpleNamespace(label=label) for label in scores]
    table = SimpleNamespace(rows=rows, data=["one", "two"], score=SimpleNamespace(higher_is_better=True))
    found = claims.row_ranks(SimpleNamespace(table=table))
    assert (found.mean, found.blocks) == ({"x": 1.0, "y": 2.0}, 2)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.548, "+.548"), (-0.0004, "−.000"), (10.286, "+10.286"), (-20.5, "−20.500"), (7.004, "+7.004")],
)
def test_a_difference_is_written_whole(value, text):
    same = paired_difference({0: {"a": value}, 1: {"a": value}}, {0: {"a": 0.0}, 1: {"a": 0.0}})
    assert difference_text(same).removeprefix("≈ ").partition(" ")[0] == text
