"""When a cluster falls apart, by hand: steps in two dimensions, whose distance is 1 − cosine."""

import numpy as np
import pytest

from bouquet.strategies.gradient_loss.division import Apart, Division, clearest, compare_steps, divide

CENTERS = np.array([[0, 0], [5, 5]], dtype=np.float32)
NOTHING = Apart(None, None, [])


def seen(*rounds):
    """What is known after rounds in which devices of cluster 0 made steps: ``{"a": (1, 0)}``."""
    apart = NOTHING
    for steps in rounds:
        apart = compare_steps(apart, dict.fromkeys(steps, 0), np.array(list(steps.values()), dtype=np.float32), CENTERS)
    return apart


def test_the_silhouette_of_three_devices():
    """Distances: a–b .2, a–c 1, b–c .4. So (1 − .2) / 1 of a, (.4 − .2) / .4 of b, and 0 of c, which is alone."""
    apart = seen({"a": (1, 0), "b": (8, 6), "c": (0, 3)})
    division = divide(apart, ["a", "b", "c"])
    assert (division.larger, division.smaller, division.meetings) == (["a", "b"], ["c"], 1)
    assert division.silhouette == pytest.approx((0.8 + 0.5 + 0) / 3, abs=1e-6)


def test_the_mean_over_rounds_counts():
    """a and b are 0 and 1 apart, b and c 1 and 0, a and c always 1: that is .5, .5 and 1."""
    apart = seen({"a": (1, 0), "b": (1, 0), "c": (0, 1)}, {"a": (1, 0), "b": (0, 1), "c": (0, 1)})
    a, b, c = (apart.clients.index(client) for client in "abc")
    assert (apart.total[a, b], apart.total[a, c], apart.meetings[b, c]) == (1, 2, 2)
    assert divide(apart, ["a", "b", "c"]).silhouette == pytest.approx(0.5 / 3)  # a: (1 − .5) / 1; b: 0, as near to c


def test_only_devices_that_trained_the_same_model_are_compared():
    models = np.array([[1, 0], [6, 5], [0, 1]], dtype=np.float32)
    apart = compare_steps(NOTHING, {"a": 0, "b": 1, "c": 0}, models, CENTERS)
    a, b, c = (apart.clients.index(client) for client in "abc")
    assert (apart.meetings[a, c], apart.meetings[a, b], apart.total[a, c]) == (1, 0, 1)


TWO = {"a": (1, 0), "b": (0, 1), "c": (2, 0), "d": (0, 2), "e": (3, 0)}


def test_two_groups_are_believed_after_three_rounds():
    division = divide(seen(TWO, TWO), list("abcde"))
    assert (division.silhouette, division.clear) == (1, False)
    division = divide(seen(TWO, TWO, TWO), list("abcde"))
    assert (division.larger, division.smaller, division.clear) == (["a", "c", "e"], ["b", "d"], True)


def test_devices_that_are_all_as_far_from_each_other_are_one_group():
    corners = {"a": (2, 0), "b": (-1, 3**0.5), "c": (-1, -(3**0.5))}
    division = divide(seen(corners, corners, corners), list("abc"))
    assert division.silhouette == pytest.approx(0, abs=1e-6)
    assert not division.clear


def test_steps_that_are_all_alike_or_none_are_one_group():
    for step in ((1, 2), (0, 0)):
        alike = dict.fromkeys("abcd", step)
        assert not divide(seen(alike, alike, alike), list("abcd")).clear


def test_fewer_than_three_devices_are_not_divided():
    assert divide(seen({"a": (1, 0), "b": (0, 1)}), ["a", "b"]) is None
    assert divide(NOTHING, []) is None


@pytest.mark.parametrize(("devices", "least"), [(4, 0.325), (8, 0.2625), (10, 0.25), (40, 0.25)])
def test_few_devices_have_to_be_further_apart(devices, least):
    halves = [list(range(devices - 2)), [1, 2]]
    assert Division(*halves, least + 1e-9, 3.0).clear
    assert not Division(*halves, least - 1e-9, 3.0).clear


def test_the_cluster_with_the_larger_smaller_half_is_divided_first():
    def division(smaller, silhouette, meetings=3.0):
        return Division(list("abcdef"), list("uvwxyz"[:smaller]), silhouette, meetings)

    found = {
        0: division(1, 0.9),
        1: division(3, 0.3),
        2: division(3, 0.4),
        3: division(6, 0.2),
        4: None,
        5: division(6, 0.9, 2),
    }
    assert [cluster for cluster, _ in clearest(found)] == [2, 1, 0]
