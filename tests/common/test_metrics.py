"""Metrics: hand-computed values, agreement with scikit-learn, and what is not known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from bouquet.common.errors import BouquetError
from bouquet.common.metrics import (
    accuracy,
    adjusted_rand_index,
    deviation,
    macro,
    macro_f1,
    micro,
    purity,
    worst_decile,
    written,
)
from bouquet.common.task.score import Score

labels = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30)


def test_a_loss_that_blew_up_is_written_short() -> None:
    assert [written(x) for x in (0.12345, 123456.7, 1.3017e28, -2e9)] == ["0.123", "123456.700", "1.3e+28", "-2e+09"]


def test_accuracy() -> None:
    assert accuracy([0, 1, 2, 2], [0, 2, 2, 2]) == 0.75
    assert accuracy([], []) is None


def test_macro_f1_by_hand() -> None:
    """Class 0: 1. Class 1: 0. Class 2: 2·2 / (2·2 + 1). Classes 3 and 4 do not occur."""
    assert macro_f1([0, 1, 2, 2], [0, 2, 2, 2], 5) == pytest.approx((1 + 0 + 0.8) / 3)
    assert macro_f1([], [], 5) is None


@settings(deadline=None)
@given(labels)
def test_macro_f1_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    true, predicted = zip(*pairs, strict=True)
    assert macro_f1(true, predicted, 5) == pytest.approx(f1_score(true, predicted, average="macro", zero_division=0))


@pytest.mark.parametrize(("true", "predicted"), [([0, 3], [0, 1]), ([0, 1], [0, -1])])
def test_labels_that_are_no_classes_are_refused(true: list[int], predicted: list[int]) -> None:
    with pytest.raises(BouquetError, match="3 classes"):
        macro_f1(true, predicted, 3)


def test_lists_of_different_length_are_refused() -> None:
    for metric in (accuracy, micro):
        with pytest.raises(BouquetError, match=r"\(2,\) and \(3,\)"):
            metric([0, 1], [0, 1, 1])
    with pytest.raises(BouquetError, match=r"\(2,\) and \(3,\)"):
        macro_f1([0, 1], [0, 1, 1], 2)


def test_over_clients_by_hand() -> None:
    values = [0.5, 1.0, 0.0, 0.5]
    assert micro(values, [10, 30, 0, 0]) == 0.875
    assert macro(values) == 0.5
    assert deviation(values) == pytest.approx(math.sqrt(0.125))


def test_what_is_not_known_is_left_out() -> None:
    values = [0.5, None, 1.0, float("nan")]
    assert micro(values, [1, 100, 3, 100]) == 0.875
    assert macro(values) == 0.75
    assert deviation(values) == 0.25
    assert worst_decile(values) == 0.5


@pytest.mark.parametrize("values", [[], [None], [None, float("nan")]])
def test_nothing_known_is_none(values: list[float | None]) -> None:
    assert micro(values, [1] * len(values)) is None
    assert micro([0.5], [0]) is None
    assert macro(values) is None
    assert deviation(values) is None
    assert worst_decile(values) is None


@pytest.mark.parametrize(("clients", "counted"), [(1, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_the_worst_decile_is_rounded_up(clients: int, counted: int) -> None:
    values = [float(value) for value in np.random.default_rng(0).permutation(clients)]
    assert worst_decile(values) == (counted - 1) / 2


def test_purity_by_hand() -> None:
    """Cluster 0 holds groups a, a, b; cluster 1 holds b, c: (2 + 1) / 5."""
    assert purity(["a", "a", "b", "b", "c"], [0, 0, 0, 1, 1]) == 0.6
    assert purity([0, 0, 1, 1], [5, 5, 5, 5]) == 0.5
    assert purity([0, 0, 1, 1], [0, 1, 2, 3]) == 1


def test_adjusted_rand_index_by_hand() -> None:
    """Of six pairs, two are together by group, one by cluster, one by both: (1 − 2/6) / (3/2 − 2/6)."""
    assert adjusted_rand_index([0, 0, 1, 1], [7, 7, 3, 3]) == 1
    assert adjusted_rand_index([0, 0, 1, 1], [0, 0, 1, 2]) == pytest.approx((1 - 2 / 6) / (1.5 - 2 / 6))


def test_unknown_groups_have_no_metrics() -> None:
    for metric in (purity, adjusted_rand_index):
        assert metric(None, [0, 1]) is None
        assert metric([], []) is None


@settings(deadline=None)
@given(labels, st.permutations(range(5)))
def test_names_of_clusters_do_not_matter(pairs: list[tuple[int, int]], names: list[int]) -> None:
    true, found = zip(*pairs, strict=True)
    renamed = [names[label] for label in found]
    assert purity(true, renamed) == purity(true, found)
    assert adjusted_rand_index(true, renamed) == pytest.approx(adjusted_rand_index(true, found))
    assert purity(true, true) == adjusted_rand_index(true, true) == 1


def test_a_score_in_a_unit_has_all_digits_before_the_point():
    mae = Score("mae", "MAE", "µg/m³", higher_is_better=False)
    assert [mae.text(x) for x in (0.012345, 12.4, 1234.56, 123456.7)] == [
        "0.01235 µg/m³",
        "12.4 µg/m³",
        "1235 µg/m³",
        "123457 µg/m³",
    ]
