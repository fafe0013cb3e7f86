import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bouquet.common.parameters.layout import ParameterLayout
from bouquet.strategies.mathematics.initialisation import random_models


@settings(max_examples=30)
@given(st.lists(st.floats(-1, 1, width=32), min_size=6, max_size=6), st.integers(0, 1000))
def test_without_a_builder_every_tensor_is_shuffled_within_itself(weights, seed):
    layout = ParameterLayout.of({"a.weight": np.zeros(6), "a.bias": np.zeros(2), "n.count": np.zeros(1, dtype=int)})
    initial = np.array([*weights, 0, 0, 5], dtype=np.float32)
    models = random_models(initial, layout, 3, seed)
    np.testing.assert_array_equal(models[0], initial)
    for model in models[1:]:
        assert sorted(model[:6]) == sorted(initial[:6])
        assert model[6:].tolist() == [0, 0, 5]
    np.testing.assert_array_equal(models, random_models(initial, layout, 3, seed))


def test_shuffled_models_differ():
    layout = ParameterLayout.of({"a.weight": np.zeros(50)})
    models = random_models(np.arange(50, dtype=np.float32), layout, 4, 0)
    assert len(np.unique(models, axis=0)) == 4
