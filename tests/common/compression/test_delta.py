import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.common.compression.codecs import CODECS
from bouquet.common.compression.delta import (
    Copy,
    LostCopyError,
    PackedModel,
    PackingError,
    from_bytes,
    nearest,
    pack_model,
    to_bytes,
    unpack_model,
)
from bouquet.common.parameters.layout import ParameterLayout

LAYOUT = ParameterLayout.of(
    {
        "first.weight": np.zeros((20, 5), dtype=np.float32),
        "norm.count": np.zeros((), dtype=np.int16),
        "last.weight": np.zeros((4, 10), dtype=np.float32),
    }
)
ALL = LAYOUT.layers


def vector(seed=0, scale=1.0):
    values = (np.random.default_rng(seed).standard_normal(LAYOUT.dim) * scale).astype(np.float32)
    values[100] = seed + 1000  # the counter
    return values


def there_and_back(values, layers, base, codec, seed=0):
    packed, copy = pack_model(LAYOUT, values, layers, base, codec, np.random.default_rng(seed))
    block = to_bytes({"arrays": packed}, LAYOUT)
    read = from_bytes(block, LAYOUT)
    decoded, found = unpack_model(LAYOUT, read["arrays"], lambda digest: base if base.digest == digest else None)
    assert found.digest == copy.digest
    assert found.layers == copy.layers
    return decoded, copy, block


@pytest.mark.parametrize("method", CODECS)
def test_both_ends_have_the_same_copy(method):
    base = Copy(vector(0), ALL)
    decoded, copy, _ = there_and_back(vector(0) + vector(1, 0.01), ALL, base, method)
    assert decoded.tolist() == copy.vector.tolist()
    assert np.abs(decoded - vector(0))[:100].max() < 0.1


@pytest.mark.parametrize("method", CODECS)
def test_a_counter_arrives_exactly(method):
    decoded, _, _ = there_and_back(vector(7), ALL, Copy(vector(3), ALL), method)
    assert decoded[100] == 1007


@pytest.mark.parametrize("method", CODECS)
def test_without_a_copy_a_model_travels_whole_in_16_bits_or_exactly(method):
    packed, copy = pack_model(LAYOUT, vector(), ALL, None, method, np.random.default_rng(0))
    assert packed.base == ""
    assert np.allclose(copy.vector, vector(), rtol=0 if method == "float32" else 2**-11, atol=1e-7)


def test_layers_that_do_not_travel_stay_as_they_were():
    base = Copy(vector(0), ALL)
    decoded, copy, _ = there_and_back(vector(1), ("last",), base, "float32")
    assert not decoded[:101].any()
    assert copy.layers == ALL
    assert copy.vector[:101].tolist() == vector(0)[:101].tolist()
    assert copy.vector[101:].tolist() == vector(1)[101:].tolist()


def test_a_layer_that_the_copy_lacks_travels_whole_beside_differences():
    first = np.where(np.arange(LAYOUT.dim) < 100, vector(0), 0).astype(np.float32)
    decoded, copy, _ = there_and_back(vector(0), ALL, Copy(first, ("first",)), "int4")
    assert decoded[:100].tolist() == first[:100].tolist()  # no difference: nothing to lose
    assert np.allclose(decoded[101:], vector(0)[101:], rtol=2**-11)
    assert copy.layers == ALL


@given(st.sampled_from(["int4", "int8"]), st.integers(0, 5))
def test_what_is_lost_is_in_the_next_difference(method, seed):
    """Sent again and again, the same model arrives: each difference holds all errors so far."""
    target, copy = vector(seed), Copy(vector(seed + 1), ALL)
    errors = []
    for step in range(30):
        _, copy = pack_model(LAYOUT, target, ALL, copy, method, np.random.default_rng(step))
        errors.append(float(np.linalg.norm(target - copy.vector)))
    assert errors[-1] < 0.05 * errors[0]


def test_a_difference_to_a_copy_that_is_lost_is_refused():
    base = Copy(vector(0), ALL)
    packed, _ = pack_model(LAYOUT, vector(1), ALL, base, "int8", np.random.default_rng(0))
    with pytest.raises(LostCopyError, match=f"difference to {base.digest}, which this end does not hold"):
        unpack_model(LAYOUT, packed, lambda digest: None)


def test_values_that_are_not_finite_are_named():
    spoiled = vector(0)
    spoiled[130] = np.inf
    packed, _ = raw(spoiled)
    with pytest.raises(PackingError, match=r"Tensor 'last\.weight' holds values that are not finite"):
        unpack_model(LAYOUT, packed, lambda digest: None)


def raw(values):
    """As a sender would that does not look at what it sends."""
    packed, copy = pack_model(LAYOUT, np.zeros(LAYOUT.dim, np.float32), ALL, None, "float32", np.random.default_rng(0))
    layers = dict(packed.layers)
    layers["last"] = b"\x00\x01" + values[101:].astype("<f4").tobytes()
    return PackedModel("", layers), copy


def test_bytes_that_make_no_sense_are_named():
    packed, _ = pack_model(LAYOUT, vector(), ALL, None, "float16", np.random.default_rng(0))

    def changed(content):
        return PackedModel(packed.base, {**packed.layers, "first": content})

    for content, message in (
        (b"\x00\x63", r"Tensor 'first\.weight' cannot be decoded: 99 is the mark of no codec"),
        (b"\x00\x82" + bytes(200), r"Tensor 'first\.weight' is a difference, and there is no copy"),
        (b"\x00\x02" + bytes(201), "Layer 'first' has 1 bytes too many"),
        (b"\x01\xff\xff", "Layer 'first' cannot be inflated"),
        (b"\x07" + packed.layers["first"][1:], "Layer 'first' (cannot be inflated|is cut off)"),
        (b"", "Layer 'first' is cut off"),
    ):
        with pytest.raises(PackingError, match=message):
            unpack_model(LAYOUT, changed(content), lambda digest: None)


def test_the_nearest_copy_is_the_one_at_the_least_distance():
    copies = [Copy(vector(1), ALL), Copy(vector(2), ALL)]
    columns = LAYOUT.columns(["last"])
    assert nearest(copies, vector(2), columns) is copies[1]
    assert nearest([], vector(2), columns) is None
    # equal in the columns that count
    other = vector(2)
    other[:101] = 50
    assert nearest([Copy(other, ALL), copies[0]], vector(2), columns).digest == Copy(other, ALL).digest


def test_deflate_is_taken_where_it_pays():
    flat = np.ones(LAYOUT.dim, dtype=np.float32)
    packed, _ = pack_model(LAYOUT, flat, ALL, None, "float16", np.random.default_rng(0))
    assert len(packed.layers["first"]) < 60  # of 200
    noisy, _ = pack_model(LAYOUT, vector(), ("last",), None, "float16", np.random.default_rng(0))
    assert len(noisy.layers["last"]) <= 82  # two a value and two to say what they are
