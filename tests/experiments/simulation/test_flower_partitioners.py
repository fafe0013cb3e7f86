"""Partitioners of Flower Datasets in place of ours; skipped where flwr-datasets is not installed."""

import numpy as np
import pytest

from bouquet.common.data.partitions import partition
from bouquet.common.errors import BouquetError

pytest.importorskip("flwr_datasets")
LABELS = np.arange(6000) % 10
THEIRS = "bouquet.experiments.simulation.flower_partitioners:"


def statistics(name: str, beta: float) -> np.ndarray:
    """Over 30 seeds: mean and spread of a client's samples, and of the square of a class's share at a client."""
    found = []
    for seed in range(30):
        parts = partition(name, LABELS, 8, seed, beta=beta, minimum=1)
        counts = np.stack([np.bincount(LABELS[part.indices], minlength=10) for part in parts])
        assert counts.sum() == 6000
        shares = counts / 600
        found.append([counts.sum(axis=1).mean(), counts.sum(axis=1).std() / 750, (shares**2).mean()])
    return np.mean(found, axis=0)


@pytest.mark.parametrize("beta", [0.3, 1.0, 10.0])
def test_both_draw_the_same_dirichlet_distribution(beta: float) -> None:
    ours, theirs = statistics("dirichlet", beta), statistics(THEIRS + "DirichletPartitioner", beta)
    assert ours == pytest.approx(theirs, rel=0.06)
    # A share of Dir(β) over n clients: its mean square is (1/n) (1 + β) / (1 + nβ).
    assert ours[2] == pytest.approx((1 + beta) / 8 / (1 + 8 * beta), rel=0.05)


def test_the_seed_decides_and_iid_is_shuffled() -> None:
    first, again, other = (partition(THEIRS + "IidPartitioner", LABELS, 6, seed) for seed in (1, 1, 2))
    assert np.array_equal(first[0].indices, again[0].indices)
    assert not np.array_equal(first[0].indices, other[0].indices)
    assert first[0].indices.max() > 5000  # not the first thousand


def test_classes_per_client_reach_it() -> None:
    parts = partition(THEIRS + "PathologicalPartitioner", LABELS, 10, 0, classes_per_client=3)
    assert [len(np.unique(LABELS[part.indices])) for part in parts] == [3] * 10


def test_what_no_setting_gives_is_named() -> None:
    with pytest.raises(BouquetError, match="SizePartitioner needs partition_sizes"):
        partition(THEIRS + "SizePartitioner", LABELS, 4, 0)


def test_an_unknown_one_is_named() -> None:
    with pytest.raises(BouquetError, match="NoSuchPartitioner"):
        partition(THEIRS + "NoSuchPartitioner", LABELS, 4, 0)
