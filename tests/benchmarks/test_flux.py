"""FLUX's steps, as the benchmark of what devices say of their data has them, on cases computed by hand."""

from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def root_on_path(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)


def test_a_device_describes_its_samples_in_all_and_by_class():
    from benchmarks.flux import description

    samples = np.array([[0.0, 2.0], [4.0, 2.0], [2.0, 8.0]])
    found = description(samples, np.array([1, 1, 0]), classes=3)  # one of class 0, none of class 2
    means, deviations = [[-1, -1], [2, 2], [-1, -1]], [[-1, -1], [2, 0], [-1, -1]]
    assert found == pytest.approx(np.array([[2, 4], [np.sqrt(8 / 3), np.sqrt(8)], *means, *deviations]))


def test_each_block_is_scaled_by_the_least_and_the_most_of_all_devices():
    from benchmarks.flux import scaled

    known = np.array([[[0.0, 4.0], [1.0, 1.0]], [[2.0, 8.0], [1.0, 1.0]]])
    assert scaled(known).tolist() == [[0, 0.5, 0, 0], [0.25, 1, 0, 0]]
    assert scaled(np.array([[[16.0, 8.0], [1.0, 2.0]]]), known).tolist() == [[2, 1, 0, 1]]


def test_the_elbow_is_where_the_curve_bends():
    from benchmarks.flux import elbow

    assert elbow(np.array([1.0, 1.25, 1.5, 2.0, 10.0])) == 2
    assert elbow(np.array([1.0, 2.0, 3.0])) is None
    assert elbow(np.array([1.0, 1.0, 1.0])) is None


def test_a_device_near_nobody_has_a_cluster_of_its_own():
    from benchmarks.flux import clusters

    found = clusters(np.array([[0.0], [10.0], [1.0], [40.0], [11.0], [90.0]]))
    assert found[0] == found[2] != found[1] == found[4]
    assert len(set(found)) == 4


def test_a_device_without_labels_comes_to_the_nearest_mean_of_the_others():
    from benchmarks.flux import placed

    near = np.array([[[value], [1.0]] for value in (0.0, 9.0, 0.1, 9.1, 0.2, 9.2, 0.3, 9.3, 0.4, 9.4)])
    assert placed(near, np.array([0, 1] * 5), seed=1) == (10, 10)
    assert placed(near, np.array([0, 1] * 4 + [0, 2]), seed=1) == (9, 9)  # one is the only one of its group
