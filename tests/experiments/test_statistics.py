"""What a comparison may claim, by hand."""

import math

import pytest

from experiments.statistics import paired_difference, ranks


def test_a_difference_is_paired_by_client_and_averaged_over_seeds():
    row = {0: {"a": 0.9, "b": 0.8}, 1: {"a": 0.7, "b": 0.9, "only": 0.1}}
    other = {0: {"a": 0.8, "b": 0.5}, 1: {"a": 0.6, "b": 0.8}, 2: {"a": 0.0, "b": 0.0}}
    found = paired_difference(row, other)
    # seed 0: .1, .3, mean .2, variance .02, of the mean .01; seed 1: .1, .1
    assert found.mean == pytest.approx(0.15)
    assert (found.seeds, found.ahead, found.pairs) == (2, 2, 4)
    # variance .01 / 4; all of it from one stratum of one degree of freedom, whose t is 12.706
    assert found.high - found.mean == pytest.approx(12.7062 * 0.05, rel=1e-4)
    assert found.is_noise


def test_a_difference_that_all_seeds_and_clients_show_is_none_of_noise():
    row = {seed: {str(i): 0.8 + 0.01 * (i % 3) for i in range(20)} for seed in range(3)}
    other = {seed: {str(i): 0.75 for i in range(20)} for seed in range(3)}
    assert not paired_difference(row, other).is_noise
    one_seed_disagrees = {**row, 2: {str(i): 0.7 + 0.001 * i for i in range(20)}}
    found = paired_difference(one_seed_disagrees, other)
    assert (found.ahead, found.is_noise) == (2, True)
    assert paired_difference({0: {"a": 1.0}}, {0: {"a": 0.5}}) is None


def test_where_nothing_varies_nothing_is_known_of_noise():
    other = {0: {"a": 0.25, "b": 0.5, "c": 0.75}}
    found = paired_difference({0: {client: value + 1 / 12 for client, value in other[0].items()}}, other)
    assert (found.mean, found.is_noise) == (pytest.approx(1 / 12), True)


def test_a_seed_with_one_client_does_not_count():
    row = {0: {"a": 0.9}, 1: {"a": 0.6, "b": 0.5, "c": 0.6}}
    other = {0: {"a": 0.1}, 1: {"a": 0.5, "b": 0.5, "c": 0.5}}
    found = paired_difference(row, other)
    assert (found.mean, found.seeds, found.pairs) == (pytest.approx(0.2 / 3), 1, 3)


def test_ranks_are_means_over_blocks_with_nemenyis_critical_difference():
    blocks = [{"a": 0.9, "b": 0.8, "c": 0.8}, {"a": 0.9, "b": 0.95, "c": 0.5}]
    found = ranks(blocks)
    assert found.mean == pytest.approx({"a": 1.5, "b": 1.75, "c": 2.75})
    assert list(found.mean) == ["a", "b", "c"]
    # Demšar's table 5: q for three rows is 2.343
    assert found.critical_difference == pytest.approx(2.343 * math.sqrt(3 * 4 / 12), abs=2e-3)
    assert ranks(blocks[:1]) is None
    assert set(ranks([blocks[0], {"a": 0.1, "c": 0.2}]).mean) == {"a", "c"}  # b is not in every block
