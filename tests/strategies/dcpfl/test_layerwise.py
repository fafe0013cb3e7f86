import numpy as np

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import ClientReply
from bouquet.strategies.base.replies import Replies
from bouquet.strategies.dcpfl.layerwise import group_means, layer_discrepancies, slow_layers
from bouquet.strategies.dcpfl.state import DCPFLState, Group
from bouquet.strategies.dcpfl.trial import proposed_models
from bouquet.strategies.mathematics.robust import Aggregation

LAYOUT = ParameterLayout.of({"a.weight": np.zeros(2, dtype=np.float32), "b.weight": np.zeros(2, dtype=np.float32)})


def test_one_scale_for_the_whole_model_by_hand():
    """w^g = (0, 2 | 1, 4) has the range 4; the members are 1 off in each entry of a, and 2 off in the last of b."""
    W = np.array([[1, 3, 1, 2], [-1, 1, 1, 6]], dtype=np.float32)
    found = layer_discrepancies(W, W.mean(axis=0), LAYOUT, "model")
    assert found == {"a": 1 / 4, "b": (0 + 2) / 2 / 4}


def test_each_layer_by_itself_by_hand():
    """Scaled by itself, layer a of all three is (0, 1): a shift of a layer does not count. b is (0, 1), and (1, 0)."""
    W = np.array([[1, 3, 0, 1], [5, 9, 3, 1]], dtype=np.float32)
    average = np.array([3, 6, 0, 2], dtype=np.float32)
    assert layer_discrepancies(W, average, LAYOUT, "layer") == {"a": 0.0, "b": (0 + 1) / 2}


def test_a_layer_without_a_range_is_all_zero():
    W = np.array([[2, 2, 0, 1], [2, 2, 0, 1]], dtype=np.float32)
    for scaling in ("model", "layer"):
        assert layer_discrepancies(W, W[0], LAYOUT, scaling) == {"a": 0.0, "b": 0.0}
        assert layer_discrepancies(np.ones_like(W), np.ones(4, np.float32), LAYOUT, scaling) == {"a": 0.0, "b": 0.0}


def test_counters_take_no_part():
    layout = ParameterLayout.of({"n.weight": np.zeros(2, dtype=np.float32), "n.count": np.zeros(1, dtype=np.int64)})
    W = np.array([[0, 3, 1000], [0, 1, 3000]], dtype=np.float32)
    assert layer_discrepancies(W, W.mean(axis=0), layout, "model") == {"n": 0.5 / 2}


def test_slow_layers_by_hand():
    """Eq. 6: the mean of the three is 2; 0.9 is below 0.5 · 2 and 1 is not."""
    found = {"a": 0.9, "b": 4.1, "c": 1.0}
    once = dict.fromkeys("abc", 1)
    assert slow_layers(found, 0.5, once) == ["a"]
    assert slow_layers(found, 0.1, once) == []
    assert slow_layers(dict.fromkeys("abc", 0.0), 0.5, once) == []


def test_a_layer_that_stayed_away_is_judged_by_its_drift_in_a_round():
    found = {"a": 1.8, "b": 1.7, "c": 2.5}
    assert slow_layers(found, 0.5, {"a": 3, "b": 1, "c": 1}) == ["a"]
    assert slow_layers(found, 0.5, {"a": 1, "b": 1, "c": 1}) == []


def test_a_device_with_more_samples_weighs_more_in_its_groups_model_and_in_a_trials():
    """Of 1 and 3 samples, at 0 and 4: the mean is 3. The other group's devices have as many."""
    given = {"a": (0.0, 1), "b": (4.0, 3), "c": (8.0, 5), "d": (10.0, 5)}
    usable = Replies(
        LAYOUT,
        tuple(
            ClientReply(name, node, np.full(4, value, dtype=np.float32), LAYOUT.layers, samples, {}, {})
            for node, (name, (value, samples)) in enumerate(given.items())
        ),
    )
    apart, together = {"a": 0, "b": 0, "c": 1, "d": 1}, dict.fromkeys("abcd", 0)
    divided = DCPFLState([*LAYOUT.layers], np.zeros((2, 4), np.float32), [Group(), Group()], apart, gamma=0.5)
    centers, whole = group_means(divided, usable, Aggregation())
    assert centers.tolist() == [[3.0] * 4, [9.0] * 4]
    assert whole == {0: [0, 1], 1: [2, 3]}
    whole_fleet = DCPFLState([*LAYOUT.layers], np.zeros((1, 4), np.float32), [Group()], together)
    assert proposed_models(whole_fleet, apart, usable, Aggregation()).tolist() == [[3.0] * 4, [9.0] * 4]
