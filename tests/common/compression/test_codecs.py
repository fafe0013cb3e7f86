import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bouquet.common.compression.codecs import CODECS, CodecError, decode, encode

floats = st.floats(-1e4, 1e4, width=32, allow_subnormal=False)
vectors = arrays(np.float32, st.integers(1, 60), elements=floats)


def rng(seed=0):
    return np.random.default_rng(seed)


def there_and_back(codec, values, seed=0):
    values = np.asarray(values, dtype=np.float32)
    content = encode(codec, values, rng(seed))
    decoded, taken = decode(content, len(values))
    assert taken == len(content)
    assert decoded.dtype == np.float32
    return decoded


@given(vectors)
def test_float32_loses_nothing(values):
    assert there_and_back("float32", values).tolist() == values.tolist()


@given(vectors)
def test_float16_keeps_eleven_bits(values):
    decoded = there_and_back("float16", values)
    assert np.allclose(decoded, values, rtol=2**-11, atol=2**-24)


def test_int8_and_int4_hold_multiples_of_the_largest_value():
    # scale 7 / 7 = 1: whole numbers are levels, nothing is rounded
    assert there_and_back("int4", [-7, 3, 0, 1, 7]).tolist() == [-7, 3, 0, 1, 7]
    assert there_and_back("int8", [-127, 100, 1]).tolist() == [-127, 100, 1]


@given(vectors, st.sampled_from(["int8", "int4"]), st.integers(0, 9))
def test_a_rounding_is_to_one_of_the_two_levels_beside_it(values, method, seed):
    scale = np.abs(values).max() / {"int8": 127, "int4": 7}[method]
    decoded = there_and_back(method, values, seed)
    assert (np.abs(decoded - values) <= scale * 1.001 + 1e-30).all()


@pytest.mark.parametrize("method", ["int8", "int4"])
def test_stochastic_rounding_is_right_on_average(method):
    values = np.array([1, 0.31, -0.17, 0.003, -0.92], dtype=np.float32)
    draws = np.stack([there_and_back(method, values, seed) for seed in range(4000)])
    levels = {"int8": 127, "int4": 7}[method]
    # a rounding has a deviation of at most half a level
    assert np.abs(draws.mean(axis=0) - values).max() < 5 * 0.5 / levels / 4000**0.5
    assert draws.std(axis=0)[1] > 0


@pytest.mark.parametrize(("method", "bits"), [("float32", 32), ("float16", 16), ("int8", 8), ("int4", 4)])
def test_sizes(method, bits):
    content = encode(method, rng().standard_normal(100_000).astype(np.float32), rng())
    assert 8 * len(content) / 100_000 == pytest.approx(bits, rel=0.02)


@pytest.mark.parametrize("method", CODECS)
def test_no_change_is_one_byte(method):
    assert len(encode(method, np.zeros(1000, dtype=np.float32), rng())) == (1 if method != "float32" else 4001)
    assert there_and_back(method, np.zeros(1000)).any() == False  # noqa: E712


@pytest.mark.parametrize("method", CODECS)
def test_what_does_not_fit_a_codec_arrives_as_it_is(method):
    assert np.isnan(there_and_back(method, [1, np.nan])[1])
    if method == "float16":
        assert there_and_back(method, [1e9, 1]).tolist() == [1e9, 1]
    assert there_and_back(method, [1e-45]).tolist() == pytest.approx([0], abs=1e-44)


@pytest.mark.parametrize("method", CODECS)
def test_bytes_that_are_cut_off_are_refused(method):
    content = encode(method, rng().standard_normal(40).astype(np.float32), rng())
    for length in range(len(content)):
        with pytest.raises(CodecError):
            decode(content[:length], 40)


def test_an_odd_number_of_int4_values_has_one_coding():
    content = encode("int4", np.ones(15, dtype=np.float32), rng())
    with pytest.raises(CodecError, match="fills up the last byte is not 0"):
        decode(content[:-1] + bytes([content[-1] & 0xF0]), 15)
