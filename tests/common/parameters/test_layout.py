import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bouquet.common.parameters.layout import LayoutError, ParameterLayout
from bouquet.strategies.mathematics.aggregation import cluster_means

MODEL = {
    "conv.weight": np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2),
    "norm.weight": np.array([5.0], dtype=np.float32),
    "norm.num_batches_tracked": np.array(7, dtype=np.int64),
    "scale": np.array([[1.0, 2.0]], dtype=np.float64),
}


def test_layers_are_modules_in_order_and_a_name_without_a_dot_is_its_own():
    layout = ParameterLayout.of(MODEL)
    assert layout.dim == 10
    assert layout.layers == ("conv", "norm", "scale")
    assert layout.columns(["scale", "conv"]).tolist() == [0, 1, 2, 3, 8, 9]
    assert layout.names(["norm"]) == ("norm.weight", "norm.num_batches_tracked")
    assert layout.parameter_columns.tolist() == [True] * 5 + [False] * 3 + [True] * 2


def test_flatten_and_unflatten_are_inverse_and_keep_dtypes():
    layout = ParameterLayout.of(MODEL)
    vector = layout.flatten(MODEL)
    assert vector.tolist() == [0, 1, 2, 3, 5, 7, 0, 0, 1, 2]
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
    assert layout.flatten(some, ["norm"]).tolist() == [0, 0, 0, 0, 5, 7, 0, 0, 0, 0]
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
    with pytest.raises(LayoutError, match="does not fit a layout of 10"):
        layout.unflatten(np.zeros(7, dtype=np.float32))


@given(st.data())
def test_any_float_model_survives_the_way_there_and_back(data):
    shapes = data.draw(st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=4))
    floats = st.floats(-1e6, 1e6, width=32)
    model = {f"layer{i}.weight": data.draw(arrays(np.float32, tuple(s), elements=floats)) for i, s in enumerate(shapes)}
    layout = ParameterLayout.of(model)
    back = layout.unflatten(layout.flatten(model))
    assert all(np.array_equal(back[name], model[name]) for name in model)


def test_parameters_buffers_and_counters_are_told_apart_by_their_names():
    model = {
        "conv.weight": np.zeros((2, 1), dtype=np.float32),
        "norm.running_mean": np.zeros(2, dtype=np.float32),
        "norm.running_var": np.ones(2, dtype=np.float32),
        "norm.num_batches_tracked": np.array(0),
        "scale": np.zeros(1, dtype=np.float32),
        "odd.running_mean": np.zeros(1, dtype=np.float32),  # alone, it may be anything
        "mask": np.zeros(1, dtype=bool),
    }
    kinds = ["parameter", "buffer", "buffer", "counter", "parameter", "parameter", "counter"]
    inferred = ParameterLayout.of(model)
    assert [spec.kind for spec in inferred.tensors] == kinds
    exact = ParameterLayout.of(model, {"conv.weight", "odd.running_mean", "mask"})
    assert [spec.kind for spec in exact.tensors] == [*kinds[:4], "buffer", *kinds[5:]]
    assert ParameterLayout.from_json(exact.to_json()) == exact


def test_what_a_method_compares():
    layout = ParameterLayout.of(MODEL)
    W = np.arange(20, dtype=np.float32).reshape(2, 10)
    assert layout.parameters_of(W).tolist() == [[0, 1, 2, 3, 4, 8, 9], [10, 11, 12, 13, 14, 18, 19]]
    assert layout.parameters_of(W[0]).tolist() == [0, 1, 2, 3, 4, 8, 9]
    plain = ParameterLayout.of({"fc.weight": np.zeros((2, 5), dtype=np.float32)})
    assert plain.parameters_of(W) is W


BIG = [
    0,
    1,
    -1,
    2**22 - 1,
    2**22,
    -(2**22),
    2**24 + 1,
    -(2**24) - 1,
    2**31 - 1,
    -(2**31),
    2**44 + 3,
    2**63 - 1,
    -(2**63),
]


@pytest.mark.parametrize(
    "dtype", [np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
)
def test_integers_come_back_exactly_also_as_the_mean_of_equal_rows(dtype):
    low, high = (0, 1) if dtype is np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    values = np.array([low, high, *(n for n in BIG if low <= n <= high)], dtype=dtype)
    model = {"n.table": values, "n.one": values[1].reshape(())}
    layout = ParameterLayout.of(model)
    row = layout.flatten(model)
    mean = cluster_means(np.stack([row] * 3), [0, 0, 0], 1, [7, 60_000, 123])[0]
    for vector in (row, mean):
        assert vector.dtype == np.float32
        back = layout.unflatten(vector)
        assert all(back[name].dtype == dtype and back[name].shape == a.shape for name, a in model.items())
        assert all((back[name] == array).all() for name, array in model.items())


def test_a_mean_of_integers_is_rounded_once():
    """The digits of 2^22 − 1 and of 2^22 + 1 have nothing in common; the mean is 2^22."""
    layout = ParameterLayout.of({"n": np.zeros(2, dtype=np.int32)})
    rows = [layout.flatten({"n": np.array(pair, dtype=np.int32)}) for pair in ([2**22 - 1, -3], [2**22 + 1, 8])]
    assert layout.unflatten(np.mean(rows, axis=0))["n"].tolist() == [2**22, 2]


@given(st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=6))
def test_means_of_digits_are_means_of_integers(numbers):
    """To the accuracy that a mean in float32 has."""
    layout = ParameterLayout.of({"n": np.array(0)})
    rows = np.stack([layout.flatten({"n": np.array(number)}) for number in numbers])
    mean = int(layout.unflatten(cluster_means(rows, [0] * len(rows), 1)[0])["n"])
    exact = sum(numbers) / len(numbers)
    assert abs(mean - exact) <= 1 + max(map(abs, numbers)) * 2.0**-22


def test_what_an_integer_cannot_be_is_refused_and_what_it_can_be_is_not():
    layout = ParameterLayout.of({"n": np.zeros(1, dtype=np.int16)})
    assert layout.flatten({"n": np.array([300.0])}).tolist() == [300]
    for wrong in (np.array([70_000]), np.array([np.nan]), np.array([1e300])):
        with pytest.raises(LayoutError, match="Tensor 'n' holds values that are no int16"):
            layout.flatten({"n": wrong})
    # An extrapolation, which no mean is, ends where the dtype does.
    assert layout.unflatten(np.array([-40_000], dtype=np.float32))["n"].tolist() == [-32_768]


def test_half_and_double_precision_pass_through_float32():
    model = {"a": np.array([1 / 3, 65504], dtype=np.float16), "b": np.array([1 / 3], dtype=np.float64)}
    layout = ParameterLayout.of(model)
    back = layout.unflatten(layout.flatten(model))
    assert back["a"].dtype == np.float16
    np.testing.assert_array_equal(back["a"], model["a"])
    assert back["b"].dtype == np.float64
    assert back["b"].tolist() == [float(np.float32(1 / 3))]


def test_complex_tensors_are_refused_in_a_layout_and_in_what_arrives():
    with pytest.raises(LayoutError, match="Tensor 'wave' holds complex64, not numbers that can be sent"):
        ParameterLayout.of({"wave": np.zeros(1, dtype=np.complex64)})
    with pytest.raises(LayoutError, match="Tensor 'fc' holds complex128"):
        ParameterLayout.of({"fc": np.zeros(1)}).flatten({"fc": np.zeros(1, dtype=complex)})
