import math

import numpy as np
import pytest

from bouquet.common.metrics import adjusted_rand_index
from bouquet.strategies.mathematics import groups
from bouquet.strategies.mathematics.groups import (
    LOG_LEVEL,
    WIDTH,
    deviations,
    find_groups,
    levelled,
    log_probability,
    sketch,
)


def cloud(n, p, generator, power=0.0):
    """One Gaussian cloud whose covariance falls like 1/j^(2 · power)."""
    return (generator.standard_normal((n, p)) / np.arange(1, p + 1) ** power).astype(np.float32)


def grouped(n, groups, generator, apart=1.0, p=300):
    means = apart * generator.standard_normal((groups, p))
    return (means[np.arange(n) % groups] + generator.standard_normal((n, p))).astype(np.float32)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("n", [8, 20, 60, 71])  # the null of 71 is that of 68
def test_one_cloud_of_any_covariance_shows_no_groups(n, power):
    """40 clouds: the least of five p-values is below .0005 in about one of 400, were the bound the probability."""
    generator = np.random.default_rng(n)
    found = [find_groups([cloud(n, 200, generator, power)], seed) for seed in range(40)]
    assert not any(one.log_p < LOG_LEVEL for one in found)
    assert np.median([one.log_p for one in found]) > math.log(0.03)


@pytest.mark.parametrize(("n", "groups"), [(6, 2), (12, 2), (12, 3), (20, 5), (40, 6), (60, 4)])
def test_clear_groups_are_found(n, groups):
    generator = np.random.default_rng(7)
    found = find_groups([grouped(n, groups, generator, apart=3)], 0)
    assert found.log_p < LOG_LEVEL
    assert found.labels.tolist() == [i % groups for i in range(n)]


def test_of_two_groups_of_few_clients_the_larger_one_is_not_all_alone():
    generator = np.random.default_rng(4)
    for seed in range(10):
        means = 4 * generator.standard_normal((2, 300))
        rows = means[[0, 0, 0, 0, 1, 1, 1]] + generator.standard_normal((7, 300))
        found = find_groups([rows.astype(np.float32)], seed)
        assert found.is_seen
        assert np.sum(np.bincount(found.labels) == 1) < 3
        assert not {*found.labels[:4].tolist()} & {*found.labels[4:].tolist()}


def test_groups_of_one_layer_are_found_beside_a_layer_that_is_all_noise():
    generator = np.random.default_rng(3)
    noise, quiet = 30 * cloud(20, 300, generator, 0.5), grouped(20, 4, generator)
    apart = find_groups([noise, quiet], 0)
    assert apart.log_p < LOG_LEVEL
    assert apart.labels.tolist() == [i % 4 for i in range(20)]
    assert find_groups([np.hstack([noise, quiet])], 0).log_p >= LOG_LEVEL


def test_a_layer_that_nobody_moves_shows_nothing():
    assert find_groups([np.zeros((10, 50), dtype=np.float32)], 0).log_p == 0
    alike = np.tile(np.arange(5, dtype=np.float32), (10, 1))
    assert find_groups([alike], 0).log_p >= LOG_LEVEL


def test_the_scale_and_the_order_of_clients_do_not_matter():
    generator = np.random.default_rng(5)
    rows, order = grouped(18, 3, generator), np.random.default_rng(0).permutation(18)
    plain, scaled = find_groups([rows], 0), find_groups([1000 * rows], 0)
    assert plain.labels.tolist() == scaled.labels.tolist()
    assert adjusted_rand_index(find_groups([rows[order]], 0).labels, plain.labels[order]) == 1


@pytest.mark.parametrize("factor", [10.0, 1e6])
def test_one_client_that_is_far_off_does_not_move_the_others_groups(factor):
    generator = np.random.default_rng(9)
    rows = grouped(20, 4, generator)
    rows[0] = factor * generator.standard_normal(300)
    others = find_groups([rows], 0).labels[1:]
    assert adjusted_rand_index(others, np.arange(1, 20) % 4) == 1


def test_one_client_that_is_far_off_makes_no_groups_of_one_cloud():
    """It can come into a group of its own; the others stay together."""
    generator = np.random.default_rng(9)
    for _ in range(10):
        rows = cloud(20, 300, generator, 0.5)
        rows[0] *= 1e6
        found = find_groups([rows], 0)
        assert found.log_p >= LOG_LEVEL or len({*found.labels[1:].tolist()}) == 1


def test_one_client_that_is_far_off_makes_groups_of_the_others_no_clearer():
    several = []
    for seed in range(60):
        generator = np.random.default_rng(seed)
        others = cloud(12, 200, generator, 1.0)
        far = 5 * generator.standard_normal((1, 200)).astype(np.float32)
        found, alone = find_groups([np.vstack([far, others])], seed), find_groups([others], seed)
        if alone.is_seen and np.sum(found.labels == found.labels[0]) == 1:
            several.append(found.log_p >= alone.log_p)
    assert several
    assert all(several)


def test_deviations_are_at_most_twice_as_long_as_the_median():
    rows = np.array([[-1.0], [0.0], [1.0], [2.0], [1e6]], dtype=np.float32)
    found = deviations(rows).ravel()
    assert np.abs(found).max() == 2
    assert np.median(np.abs(found)) == pytest.approx(1)
    assert found[4] == 2
    assert np.abs(found[:4]).max() < 2
    assert deviations(np.zeros((3, 2), dtype=np.float32)).tolist() == [[0, 0]] * 3


def test_lengths_are_brought_within_what_chance_makes_of_few_clients():
    """Four rows at right angles about the center: cosines are 0 but for two of -1 in each pair, so m is 4 of 12."""
    found = levelled(np.array([[3, 0], [-3, 0], [0, 1], [0, -1]], dtype=np.float32))
    width = (4 / groups.MANY) ** 2 * math.sqrt(1 / 6)  # 0.0255; the median is 2
    assert np.linalg.norm(found, axis=1) == pytest.approx([1 + width, 1 + width, 1 - width, 1 - width])
    tiny = levelled(np.array([[3, 0], [-3, 0], [0, 0.5], [0, -0.5]], dtype=np.float32))  # 0.286 of the median of 1.75
    assert np.linalg.norm(tiny, axis=1)[2:] == pytest.approx(2 * 0.5 / 1.75)


def test_of_many_clients_lengths_stay_as_they_are():
    rows = deviations(cloud(60, 200, np.random.default_rng(1), 1.0))
    assert np.linalg.norm(levelled(rows), axis=1).std() == pytest.approx(np.linalg.norm(rows, axis=1).std(), rel=0.2)


def test_groups_are_found_beside_clients_whose_directions_are_short():
    """Two of eight went a third of the way."""
    generator = np.random.default_rng(2)
    rows = grouped(8, 3, generator, apart=1.5)
    rows -= rows.mean(axis=0)
    rows[6:] /= 3
    assert find_groups([rows], 0).labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]


def test_alike_clients_of_different_lengths_are_no_groups():
    """The longest six times as long as the shortest; without levelling, all twenty look like groups."""
    generator = np.random.default_rng(4)
    lengths = np.array([[1], [1], [1], [1], [1], [3], [3], [3], [0.5], [0.5]], dtype=np.float32)
    assert not any(find_groups([lengths * cloud(10, 300, generator)], seed).log_p < LOG_LEVEL for seed in range(20))


def test_the_probability_falls_with_what_is_left_and_never_leaves_its_bounds():
    values = [log_probability(12, 3, left) for left in (1.0, 0.3, 0.1, 0.01, 0.0)]
    assert values[0] == 0
    assert values == sorted(values, reverse=True)
    assert values[-1] > -math.inf


@pytest.mark.parametrize(("n", "k"), [(33, 2), (40, 4), (71, 2), (117, 6), (300, 2), (300, 4)])
def test_the_null_of_a_number_off_the_grid_says_no_more_than_its_own(n, k):
    """It lies lower, up to the chance of 200 draws."""
    own, null = groups._drawn(n, k), groups._null(n, k)
    assert null.mean <= own.mean() + 4 * own.std() / np.sqrt(100)
    assert null.percentile <= np.quantile(own, 0.01) + own.std()
    assert null.deviation >= 0.8 * own.std()


def test_a_changing_number_of_clients_draws_nothing_new():
    groups._null(80, 2)
    before = groups._drawn.cache_info().misses
    for n in range(76, 82):
        groups._null(n, 2)
    for n in (1000, 1003, 1100):
        groups._null(n, 3)
    assert groups._drawn.cache_info().misses == before + 1


def test_a_sketch_keeps_inner_products():
    generator = np.random.default_rng(2)
    short = generator.standard_normal(WIDTH).astype(np.float32)
    assert sketch(short).tolist() == short.tolist()
    a, b = generator.standard_normal((2, 5 * WIDTH + 3)).astype(np.float32)
    b += a
    small = sketch(a), sketch(b)
    assert len(small[0]) == WIDTH
    cosine = float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    assert float(small[0] @ small[1] / np.linalg.norm(small[0]) / np.linalg.norm(small[1])) == pytest.approx(
        cosine, abs=0.05
    )
