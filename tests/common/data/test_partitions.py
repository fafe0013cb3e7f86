"""Partitions: no sample in two clients, exact small cases, groups, shares, divergence, and every error."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bouquet.common.data import partition_rules
from bouquet.common.data.heterogeneity import draw_at_level, heterogeneity_of_counts, label_counts, label_kld_matrix
from bouquet.common.data.partition_rules import apportion, label_permutations, systematic
from bouquet.common.data.partitions import (
    PARTITIONS,
    part_in_round,
    partition,
    split_train_test,
)
from bouquet.common.errors import BouquetError

LABELS = np.random.default_rng(0).permutation(np.arange(600) % 10)
OWNERS = np.arange(600) % 15


def counts_of(parts) -> np.ndarray:
    return label_counts([LABELS[part.indices] for part in parts], 10)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PARTITIONS), st.integers(4, 12), st.integers(0, 10_000), st.sampled_from([None, 20]))
def test_no_sample_is_in_two_clients_and_the_seed_decides(name: str, clients: int, seed: int, cap: int | None) -> None:
    first, second = (
        partition(name, LABELS, clients, seed, owners=OWNERS, minimum=5, samples_per_client=cap) for _ in range(2)
    )
    together = np.concatenate([part.indices for part in first])
    assert len(first) == clients
    assert len(np.unique(together)) == len(together)
    assert all((np.diff(part.indices) > 0).all() for part in first)
    assert all(5 <= len(part.indices) <= (cap or 600) for part in first)
    assert all(np.array_equal(a.indices, b.indices) for a, b in zip(first, second, strict=True))
    assert [a.label_permutation for a in first] == [b.label_permutation for b in second]


@pytest.mark.parametrize("name", ["iid", "dirichlet", "pathological", "dominant", "class-groups"])
def test_another_seed_gives_other_parts(name: str) -> None:
    first, second = (partition(name, LABELS, 5, seed)[0].indices for seed in (0, 1))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("name", ["iid", "dirichlet", "pathological", "class-groups", "rotated", "label-permuted"])
def test_every_sample_is_used(name: str) -> None:
    assert sum(len(part.indices) for part in partition(name, LABELS, 10, 0, minimum=1)) == 600


def test_what_is_dealt_is_drawn_from_all_of_a_class() -> None:
    """Else a client would have the first of each class, where a data set is sorted by who wrote it."""
    labels, counts = np.zeros(100, dtype=np.int64), np.array([[50], [50]])
    first, second = partition_rules.deal(labels, counts, np.random.default_rng(0))
    assert first.max() > 90
    assert second.min() < 10


def test_a_cap_draws_from_the_whole_part() -> None:
    """The first so many of a part would be of its first classes, where a data set is sorted."""
    labels = np.repeat(np.arange(10), 60)
    owners = np.repeat([0, 1], 300)
    parts = {
        seed: partition("natural", labels, 2, seed, owners=owners, samples_per_client=50)[0].indices for seed in (0, 1)
    }
    assert [len(part) for part in parts.values()] == [50, 50]
    assert all(set(labels[part]) == set(labels[part[0] // 300 * 300 :][:300]) for part in parts.values())
    assert set(parts[0]) != set(parts[1])


def test_iid_parts_differ_by_at_most_one_sample() -> None:
    assert sorted(len(part.indices) for part in partition("iid", LABELS, 7, 0)) == [85] * 2 + [86] * 5


def test_dirichlet_grows_more_even_with_beta_and_keeps_the_minimum() -> None:
    uneven, even = (partition("dirichlet", LABELS, 20, 3, beta=beta, minimum=12) for beta in (0.05, 1000.0))
    assert heterogeneity_of_counts(counts_of(uneven)) > 10 * heterogeneity_of_counts(counts_of(even))
    assert min(len(part.indices) for part in uneven) == 12
    assert [len(part.indices) for part in partition("dirichlet", LABELS, 20, 3, beta=0.05, minimum=30)] == [30] * 20
    assert np.abs(counts_of(even) - 3).max() <= 1


def test_pathological_clients_hold_exactly_their_classes_evenly_shared() -> None:
    counts = counts_of(partition("pathological", LABELS, 20, 0, classes_per_client=2))
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert set(counts[counts > 0]) == {15}  # each class of 60 has 20 · 2 / 10 = 4 holders


def test_pathological_groups_share_their_classes() -> None:
    parts = partition("pathological", LABELS, 10, 0, classes_per_client=3, groups=4)
    held = [tuple(np.flatnonzero(row)) for row in counts_of(parts)]
    assert [held[i] for i in range(10)] == [held[i % 4] for i in range(10)]
    assert len(set(held)) == 4
    assert [part.group for part in parts] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_dominant_shares_are_the_ranges_and_sizes_are_equal() -> None:
    parts = partition("dominant", LABELS, 8, 0, samples_per_client=30)
    counts = np.sort(counts_of(parts), axis=1)
    assert (counts.sum(axis=1) == 30).all()
    assert ((counts[:, -1] >= 12) & (counts[:, -1] <= 18)).all()
    assert ((counts[:, -2] >= 6) & (counts[:, -2] <= 12)).all()
    assert (counts[:, 7] - counts[:, 0] <= 1).all()
    assert [part.group for part in parts] == [None] * 8


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 20))
def test_dominant_sizes_are_equal_however_scarce_a_class_is(seed: int, clients: int) -> None:
    assert len({len(part.indices) for part in partition("dominant", LABELS, clients, seed, minimum=1)}) == 1


def test_dominant_with_fixed_shares_by_hand(monkeypatch) -> None:
    monkeypatch.setattr(partition_rules, "PRIMARY_SHARE", (0.5, 0.5))
    monkeypatch.setattr(partition_rules, "SECONDARY_SHARE", (0.3, 0.3))
    parts = partition("dominant", LABELS, 4, 0, samples_per_client=40)
    assert np.sort(counts_of(parts), axis=1).tolist() == [[1] * 8 + [12, 20]] * 4


def test_dominant_groups_have_one_distribution_and_a_pair_of_classes_each() -> None:
    labels = np.arange(600) % 4  # four classes have six pairs
    parts = partition("dominant", labels, 12, 1, groups=6, samples_per_client=20)
    counts = label_counts([labels[part.indices] for part in parts], 4)
    assert (counts == counts[np.arange(12) % 6]).all()
    assert len({frozenset(np.argsort(row)[-2:].tolist()) for row in counts[:6]}) == 6


def test_dominant_takes_no_more_than_a_class_has(monkeypatch) -> None:
    monkeypatch.setattr(partition_rules, "PRIMARY_SHARE", (0.6, 0.6))
    monkeypatch.setattr(partition_rules, "SECONDARY_SHARE", (0.4, 0.4))
    labels = np.arange(60) % 2
    parts = partition("dominant", labels, 2, 0, groups=1)
    assert sorted(np.bincount(labels[parts[0].indices]).tolist()) == [10, 15]  # 2 · 15 is all of the primary class


def test_dominant_levels_are_thirds_of_the_range_of_heterogeneity() -> None:
    by_level = {}
    for level in ("low", "mid", "high"):
        parts = partition("dominant", LABELS, 6, 0, heterogeneity=level, samples_per_client=40)
        by_level[level] = heterogeneity_of_counts(label_counts([LABELS[part.indices] for part in parts], 10))
    assert by_level["low"] < by_level["mid"] < by_level["high"]


def test_class_groups_see_eight_of_ten_classes_and_any_two_share_six() -> None:
    parts = partition("class-groups", LABELS, 12, 0, groups=4)
    seen = [frozenset(np.flatnonzero(counts_of(parts)[[i, i + 4, i + 8]].sum(axis=0))) for i in range(4)]
    assert [len(classes) for classes in seen] == [8, 8, 8, 8]
    assert len(set(seen)) == 4
    assert all(len(a & b) >= 6 for a, b in combinations(seen, 2))
    for group in range(4):
        sizes = [len(parts[i].indices) for i in range(12) if i % 4 == group]
        assert max(sizes) - min(sizes) <= 1


def test_class_groups_of_unequal_size_share_a_class_by_their_clients() -> None:
    parts = partition("class-groups", np.zeros(90, dtype=int), 3, 0, groups=1, classes_per_group=1)
    assert [len(part.indices) for part in parts] == [30, 30, 30]
    both = partition("class-groups", np.arange(90) % 2, 3, 0, groups=2, classes_per_group=1)
    assert [len(part.indices) for part in both] == [23, 45, 22]
    labels = np.arange(90) % 3  # two groups of two classes share one: clients 0 and 2 get 20 of its 30 samples
    overlapping = partition("class-groups", labels, 3, 0, groups=2, classes_per_group=2)
    assert sorted(np.bincount(labels[overlapping[1].indices], minlength=3).tolist()) == [0, 10, 30]


def test_rotated_groups_turn_by_equal_steps() -> None:
    parts = partition("rotated", LABELS, 6, 0, groups=4)
    assert [part.rotation_degrees for part in parts] == [0, 90, 180, 270, 0, 90]
    assert [part.group for part in parts] == [0, 1, 2, 3, 0, 1]


def test_label_permuted_groups_each_have_their_own_permutation() -> None:
    parts = partition("label-permuted", LABELS, 6, 0, groups=3)
    permutations = [part.label_permutation for part in parts]
    assert permutations[:3] == permutations[3:]
    assert len(set(permutations)) == 3
    assert all(sorted(p) == list(range(10)) for p in permutations)
    assert sorted(label_permutations(3, 6, seed=0)) == sorted(
        [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    )


def test_mixed_groups_differ_in_rotation_or_labels_and_devices_in_their_classes() -> None:
    parts = partition("mixed", LABELS, 8, 0, groups=4, beta=0.5, minimum=1)
    kinds = [(part.rotation_degrees, part.label_permutation) for part in parts]
    assert kinds[:4] == kinds[4:]
    assert [part.group for part in parts[:4]] == [0, 1, 2, 3]
    assert len(set(kinds)) == 4
    assert [rotation for rotation, _ in kinds[:4]] == [0, 180, 0, 180]
    assert kinds[0][1] == kinds[1][1] != kinds[2][1] == kinds[3][1]
    alone = partition("dirichlet", LABELS, 8, 0, beta=0.5, minimum=1)
    assert all(np.array_equal(one.indices, other.indices) for one, other in zip(parts, alone, strict=True))


def test_natural_clients_are_owners_with_enough_samples_and_their_real_groups() -> None:
    owners = np.repeat([7, 3, 9, 5], [10, 4, 12, 11])
    groups = np.where(owners == 9, 4, 0)
    parts = partition("natural", np.zeros(37, dtype=int), 3, 0, owners=owners, owner_groups=groups)
    assert [(part.owner, part.group, len(part.indices)) for part in parts] == [(5, 0, 11), (7, 0, 10), (9, 1, 12)]
    assert all((owners[part.indices] == part.owner).all() for part in parts)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("uniform", {}, "Unknown partition 'uniform'; there are iid, dirichlet"),
        ("iid", {"num_clients": 61}, "61 clients of at least 10 samples need 610 samples, the data set has 600"),
        ("iid", {"samples_per_client": 5}, "samples_per_client is 5; minimum is 10"),
        ("iid", {"groups": 2}, "Partition 'iid' has no groups to set"),
        ("rotated", {"groups": 6}, "groups is 6; with 5 clients 1 to 5 are allowed"),
        ("rotated", {"groups": 0}, "groups is 0"),
        ("pathological", {"classes_per_client": 11}, "classes_per_client is 11; the data allow 1 to 10"),
        ("pathological", {"classes_per_client": 10, "groups": 2}, "no 2 different sets of 10 out of 10 classes"),
        ("class-groups", {"classes_per_group": 11}, "classes_per_group is 11; the data allow 1 to 10"),
        ("class-groups", {"classes_per_group": 10, "groups": 2}, "only 1 sets of 10 out of 10"),
        ("natural", {}, "this data set has no owners"),
        ("natural", {"owners": np.arange(600) // 150}, "5 clients, but only 4 of 4 owners"),
    ],
)
def test_what_the_data_do_not_allow_is_refused(name: str, options: dict, said: str) -> None:
    with pytest.raises(BouquetError, match=said):
        partition(**{"name": name, "labels": LABELS, "num_clients": 5, "seed": 0, **options})


@pytest.mark.parametrize(
    ("name", "labels", "clients", "options", "said"),
    [
        ("label-permuted", np.arange(60) % 2, 3, {"groups": 3}, "2 labels have 2 permutations"),
        ("dominant", np.zeros(60, dtype=int), 3, {}, "needs at least 2 classes"),
        ("dominant", np.arange(60) % 2, 3, {"groups": 2}, "2 classes have only 1 pairs"),
        (
            "dominant",
            np.repeat([0, 1, 2], [50, 50, 1]),
            5,
            {},
            "leaves client 0 with 0 samples, fewer than the minimum",
        ),
    ],
)
def test_too_little_data_for_a_rule_is_refused(name, labels, clients, options, said) -> None:
    with pytest.raises(BouquetError, match=said):
        partition(name, labels, clients, 0, **options)


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=8), st.integers(0, 1000))
def test_apportioned_numbers_add_up_and_are_nearest(shares: list[float], total: int) -> None:
    counts = apportion(np.array(shares), total)
    assert counts.sum() == total
    assert (np.abs(counts - np.array(shares) / sum(shares) * total) < 1 + 1e-9).all()


def test_divergence_by_hand() -> None:
    # With one added to each count the shares are (3/4, 1/4) and (1/4, 3/4): KL = ¾ ln 3 − ¼ ln 3 either way.
    assert label_kld_matrix(np.array([[2, 0], [0, 2]]))[0, 1] == pytest.approx(math.log(3) / 2)
    # A third client that equals the first: pairs (½ ln 3, 0, ½ ln 3).
    counts = np.array([[2, 0], [0, 2], [2, 0]])
    assert heterogeneity_of_counts(counts) == pytest.approx(math.log(3) / 3)
    assert label_kld_matrix(counts)[0].tolist() == pytest.approx([0, math.log(3) / 2, 0])
    # Shares (½, ½) and (¼, ¾): ½ [½ ln 2 + ½ ln ⅔ + ¼ ln ½ + ¾ ln 3/2] = ⅛ ln 3.
    assert label_kld_matrix(np.array([[1, 1], [0, 2]]))[0, 1] == pytest.approx(math.log(3) / 8)
    assert heterogeneity_of_counts(np.array([[1, 1]])) == 0


@given(st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=2, max_size=6))
def test_divergence_is_symmetric_and_zero_on_the_diagonal_alone(rows: list[list[int]]) -> None:
    divergence = label_kld_matrix(np.array(rows))
    assert np.allclose(divergence, divergence.T)
    assert np.allclose(np.diag(divergence), 0)
    different = np.array([[a != b for b in rows] for a in rows])
    shares = np.array(rows) + 1.0
    shares /= shares.sum(axis=1, keepdims=True)
    apart = np.abs(shares[:, None] - shares[None]).sum(axis=2) > 1e-3
    assert (divergence[different & apart] > 0).all()


def test_levels_are_equal_thirds_of_the_range() -> None:
    assert [draw_at_level([0, 1, 2.2, 3.5, 9], level) for level in ("low", "mid", "high")] == [1, 3, 4]
    assert draw_at_level([2, 2], "high") == 0
    with pytest.raises(BouquetError, match="None of 2 draws has 'mid' heterogeneity"):
        draw_at_level([0, 9], "mid")


def test_a_split_is_that_of_its_seed() -> None:
    labels = np.array([0] * 10 + [1] * 5 + [2] * 100)
    train, test = split_train_test(np.arange(15), labels, seed=0)
    assert sorted([*train, *test]) == list(range(15))
    assert split_train_test(np.arange(15), labels, seed=0)[1].tolist() == test.tolist()
    assert any(split_train_test(np.arange(15), labels, seed)[1].tolist() != test.tolist() for seed in range(1, 9))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any), st.integers(1, 40))
def test_systematic_numbers_are_the_shares_over_all_starts_and_next_to_them_at_each(sizes, total) -> None:
    n, every = sum(sizes), [systematic(np.array(sizes), total, start) for start in range(sum(sizes))]
    assert all(counts.sum() == total for counts in every)
    assert sum(every).tolist() == [size * total for size in sizes]  # n times the share: on average it is the share
    for counts in every:
        shares = zip(counts, [size * total for size in sizes], strict=True)
        assert all(share // n <= count <= -(-share // n) for count, share in shares)


def test_every_sample_and_every_two_are_as_likely_to_be_tested_whatever_their_labels() -> None:
    seeds, samples = 4000, np.random.default_rng(1).permutation(np.repeat([3, 0, 7, 5, 9], [7, 6, 3, 3, 1]))
    tests = [split_train_test(np.arange(20), samples, seed)[1] for seed in range(seeds)]
    assert {len(test) for test in tests} == {4}
    chosen = np.stack([np.isin(np.arange(20), test) for test in tests]).astype(float)
    together = chosen.T @ chosen / seeds
    # Within 5 standard errors of 4/20, and of 4/20 · 3/19 for two of them: by chance one of 210 is not in 1 of 8,000.
    for found, share in ((together.diagonal(), 1 / 5), (together[np.triu_indices(20, 1)], 3 / 95)):
        assert np.abs(found - share).max() < 5 * math.sqrt(share * (1 - share) / seeds)
    # So a label's number among the tested is hypergeometric: mean and variance of 7 of 20, four drawn.
    sevens = (chosen * (samples == 3)).sum(axis=1)
    assert abs(sevens.mean() - 1.4) < 5 * math.sqrt(0.766 / seeds)
    assert sevens.var() == pytest.approx(4 * 0.35 * 0.65 * 16 / 19, rel=0.12)


@given(st.lists(st.integers(0, 4), min_size=2, max_size=60), st.floats(0.05, 0.95), st.integers(0, 99))
def test_a_split_has_both_sides_and_loses_nothing(labels: list[int], fraction: float, seed: int) -> None:
    indices = np.arange(len(labels)) * 3
    all_labels = np.repeat(labels, 3)
    train, test = split_train_test(indices, all_labels, seed, test_fraction=fraction)
    assert len(train) >= 1
    assert len(test) == min(max(round(fraction * len(labels)), 1), len(labels) - 1)
    assert sorted([*train, *test]) == indices.tolist()


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2)), min_size=2, max_size=20), st.integers(0, 99))
def test_a_segment_is_never_split(runs: list[tuple[int, int]], seed: int) -> None:
    segments = np.repeat(np.arange(len(runs)), [length for length, _ in runs])
    labels = np.repeat([label for _, label in runs], [length for length, _ in runs])
    train, test = split_train_test(np.arange(len(labels)), labels, seed, segments=segments)
    assert len(train) > 0
    assert len(test) > 0
    assert not set(segments[train]) & set(segments[test])
    assert set(labels[train]) | set(labels[test]) == set(labels)


def test_segments_are_shared_out_by_label() -> None:
    segments = np.repeat(np.arange(20), 10)
    labels = np.repeat(np.arange(20) % 2, 10)
    _, test = split_train_test(np.arange(200), labels, seed=0, segments=segments)
    assert np.bincount(labels[test]).tolist() == [20, 20]
    train, _ = split_train_test(np.arange(200), labels, seed=0, test_fraction=0.97, segments=segments)
    assert np.bincount(labels[train]).tolist() == [10, 10]  # every label keeps a segment to train on


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"indices": np.arange(1)}, "1 samples cannot be split"),
        ({"segments": np.zeros(9, dtype=int)}, "at least 2 contiguous segments are needed"),
    ],
)
def test_a_split_that_cannot_be_is_refused(options: dict, said: str) -> None:
    with pytest.raises(BouquetError, match=said):
        split_train_test(**{"indices": np.arange(9), "labels": np.zeros(9, dtype=int), "seed": 0, **options})


def test_where_data_drift_the_first_devices_have_each_others_parts() -> None:
    drift = [(3, 0.5), (5, 1.0), (6, 0.0)]
    dealt = {round_: [part_in_round(round_, part, 6, drift) for part in range(6)] for round_ in (1, 3, 4, 5, 6, 9)}
    assert dealt[1] == dealt[6] == dealt[9] == [0, 1, 2, 3, 4, 5]
    assert dealt[3] == dealt[4] == [1, 2, 0, 3, 4, 5]
    assert dealt[5] == [1, 2, 3, 4, 5, 0]
