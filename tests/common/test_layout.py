import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from common.layout import LayoutError, ParameterLayout

MODEL = {
    "conv.weight": np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2),
    "norm.weight": np.array([5.0], dtype=np.float32),
    "norm.num_batches_tracked": np.array(7, dtype=np.int64),
    "scale": np.array([[1.0, 2.0]], dtype=np.float64),
}


def test_layers_are_modules_in_order_and_a_name_without_a_dot_is_its_own():
    layout = ParameterLayout.of(MODEL)
    assert layout.dim == 8
    assert layout.layers == ("conv", "norm", "scale")
    assert layout.columns(["scale", "conv"]).tolist() == [0, 1, 2, 3, 6, 7]
    assert layout.names(["norm"]) == ("norm.weight", "norm.num_batches_tracked")
    assert layout.integer_columns.tolist() == [False] * 5 + [True] + [False] * 2


def test_flatten_and_unflatten_are_inverse_and_keep_dtypes():
    layout = ParameterLayout.of(MODEL)
    vector = layout.flatten(MODEL)
    assert vector.tolist() == [0, 1, 2, 3, 5, 7, 1, 2]
    back = layout.unflatten(vector)
    for name, array in MODEL.items():
        assert back[name].dtype == array.dtype
        assert back[name].shape == array.shape
        np.testing.assert_array_equal(back[name], array)


def test_integers_are_rounded_not_cut():
    layout = ParameterLayout.of(MODEL)
    vector = layout.flatten(MODEL)
    vector[5] = 7.6  # the mean of counters need not be whole
    assert layout.unflatten(vector)["norm.num_batches_tracked"] == 8


def test_some_layers_only():
    layout = ParameterLayout.of(MODEL)
    some = {name: MODEL[name] for name in layout.names(["norm"])}
    assert layout.flatten(some, ["norm"]).tolist() == [0, 0, 0, 0, 5, 7, 0, 0]
    assert set(layout.unflatten(layout.flatten(MODEL), ["scale"])) == {"scale"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": None}, "Tensor 'scale' is missing"),
        ({"other": np.zeros(1)}, "Tensor 'other' was not asked for"),
        ({"scale": np.zeros((2, 1))}, r"Tensor 'scale' has shape \(2, 1\), expected \(1, 2\)"),
        ({"norm.weight": np.array([np.nan])}, "Tensor 'norm.weight' holds values that are not finite"),
        ({"norm.weight": np.array([1e300])}, "Tensor 'norm.weight' holds values that are not finite"),
        ({"norm.weight": np.array(["x"])}, "Tensor 'norm.weight' holds <U1, not numbers"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    arrays_ = {name: array for name, array in {**MODEL, **change}.items() if array is not None}
    with pytest.raises(LayoutError, match=message):
        ParameterLayout.of(MODEL).flatten(arrays_)


def test_unknown_layer_empty_model_and_wrong_vector():
    layout = ParameterLayout.of(MODEL)
    with pytest.raises(LayoutError, match="Unknown layer 'fc'; the model has conv, norm, scale"):
        layout.columns(["fc"])
    with pytest.raises(LayoutError, match="no tensors"):
        ParameterLayout.of({})
    with pytest.raises(LayoutError, match="does not fit a layout of 8"):
        layout.unflatten(np.zeros(7, dtype=np.float32))


def test_json_round_trip():
    layout = ParameterLayout.of(MODEL)
    assert ParameterLayout.from_json(layout.to_json()) == layout


@given(st.data())
def test_any_float_model_survives_the_way_there_and_back(data):
    shapes = data.draw(st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=4))
    floats = st.floats(-1e6, 1e6, width=32)
    model = {f"layer{i}.weight": data.draw(arrays(np.float32, tuple(s), elements=floats)) for i, s in enumerate(shapes)}
    layout = ParameterLayout.of(model)
    back = layout.unflatten(layout.flatten(model))
    assert all(np.array_equal(back[name], model[name]) for name in model)
