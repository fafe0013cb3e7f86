import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bouquet.common.compression.codecs import METHODS, Codec, CodecError, decode, encode_positions, golomb_parameter

floats = st.floats(-1e4, 1e4, width=32, allow_subnormal=False)
vectors = arrays(np.float32, st.integers(1, 60), elements=floats)


def rng(seed=0):
    return np.random.default_rng(seed)


def there_and_back(codec, values, seed=0):
    values = np.asarray(values, dtype=np.float32)
    content = codec.encode(values, rng(seed))
    decoded, taken = decode(content, len(values))
    assert taken == len(content)
    assert decoded.dtype == np.float32
    return decoded


@given(vectors)
def test_float32_loses_nothing(values):
    assert there_and_back(Codec("float32"), values).tolist() == values.tolist()


@given(vectors)
def test_float16_keeps_eleven_bits(values):
    decoded = there_and_back(Codec("float16"), values)
    assert np.allclose(decoded, values, rtol=2**-11, atol=2**-24)


def test_int8_and_int4_hold_multiples_of_the_largest_value():
    # scale 7 / 7 = 1: whole numbers are levels, nothing is rounded
    assert there_and_back(Codec("int4"), [-7, 3, 0, 1, 7]).tolist() == [-7, 3, 0, 1, 7]
    assert there_and_back(Codec("int8"), [-127, 100, 1]).tolist() == [-127, 100, 1]


@given(vectors, st.sampled_from(["int8", "int4"]), st.integers(0, 9))
def test_a_rounding_is_to_one_of_the_two_levels_beside_it(values, method, seed):
    scale = np.abs(values).max() / {"int8": 127, "int4": 7}[method]
    decoded = there_and_back(Codec(method), values, seed)
    assert (np.abs(decoded - values) <= scale * 1.001 + 1e-30).all()


@pytest.mark.parametrize("method", ["int8", "int4"])
def test_stochastic_rounding_is_right_on_average(method):
    values = np.array([1, 0.31, -0.17, 0.003, -0.92], dtype=np.float32)
    draws = np.stack([there_and_back(Codec(method), values, seed) for seed in range(4000)])
    levels = {"int8": 127, "int4": 7}[method]
    # a rounding has a deviation of at most half a level
    assert np.abs(draws.mean(axis=0) - values).max() < 5 * 0.5 / levels / 4000**0.5
    assert draws.std(axis=0)[1] > 0


def test_the_same_seed_rounds_alike():
    values = rng(1).standard_normal(100)
    assert there_and_back(Codec("int4"), values, 3).tolist() == there_and_back(Codec("int4"), values, 3).tolist()
    assert there_and_back(Codec("int4"), values, 3).tolist() != there_and_back(Codec("int4"), values, 4).tolist()


def test_topk_keeps_the_largest_and_ternary_their_mean():
    values = [0.5, -3, 0.25, 0, 1, -0.125, 0, 0, 0.1, 0.2]
    assert there_and_back(Codec("topk", 0.2), values).tolist() == [0, -3, 0, 0, 1, 0, 0, 0, 0, 0]
    assert there_and_back(Codec("ternary", 0.2), values).tolist() == [0, -2, 0, 0, 2, 0, 0, 0, 0, 0]
    assert there_and_back(Codec("topk", 0.001), values).tolist() == [0, -3, 0, 0, 0, 0, 0, 0, 0, 0]  # one at least


@given(vectors, st.sampled_from(["topk", "ternary"]), st.floats(0.01, 1))
def test_a_sparse_codec_moves_towards_the_values(values, method, keep):
    decoded = there_and_back(Codec(method, keep), values)
    kept = max(1, round(keep * len(values)))
    assert np.count_nonzero(decoded) <= kept
    assert np.linalg.norm(values - decoded) <= np.linalg.norm(values) * (1 + 1e-6)


def test_positions_by_hand():
    # 3 of 16 with b = 2: gaps 1, 0, 9 = 2 · 4 + 1; quotients in unary 0 0 110, remainders 01 00 01
    assert golomb_parameter(3 / 16) == 2
    content = encode_positions(np.array([1, 2, 12]), 16)
    assert content == bytes([3, 0, 0, 0, 1, 0, 0, 0, 2, 0b00110000, 0b01000100])


def test_the_papers_parameter():
    # STC, Eq. 15 and 16: b* + 1 / (1 - (1 - p)^(2^b*)) bits a position; p = 0.01 gives b* = 6
    assert golomb_parameter(0.01) == 6
    bits = 6 + 1 / (1 - 0.99**64)
    positions = np.sort(rng().choice(1_000_000, 10_000, replace=False))
    assert 8 * len(encode_positions(positions, 1_000_000)) / 10_000 == pytest.approx(bits, abs=0.03)


@given(st.sets(st.integers(0, 199), min_size=1))
def test_positions_come_back(chosen):
    values = np.zeros(200, dtype=np.float32)
    values[sorted(chosen)] = 1
    decoded = there_and_back(Codec("topk", len(chosen) / 200), values)
    assert decoded.tolist() == values.tolist()


@pytest.mark.parametrize(
    ("method", "bits"), [("float32", 32), ("float16", 16), ("int8", 8), ("int4", 4), ("topk", 1.09), ("ternary", 0.34)]
)
def test_sizes(method, bits):
    content = Codec(method, 0.05).encode(rng().standard_normal(100_000).astype(np.float32), rng())
    assert 8 * len(content) / 100_000 == pytest.approx(bits, rel=0.02)


@pytest.mark.parametrize("method", METHODS)
def test_no_change_is_one_byte(method):
    assert len(Codec(method).encode(np.zeros(1000, dtype=np.float32), rng())) == (1 if method != "float32" else 4001)
    assert there_and_back(Codec(method), np.zeros(1000)).any() == False  # noqa: E712


@pytest.mark.parametrize("method", METHODS)
def test_what_does_not_fit_a_codec_arrives_as_it_is(method):
    assert np.isnan(there_and_back(Codec(method), [1, np.nan])[1])
    if method in ("float16", "topk"):
        assert there_and_back(Codec(method, 1), [1e9, 1]).tolist() == [1e9, 1]
    assert there_and_back(Codec(method, 1), [1e-45]).tolist() == pytest.approx([0], abs=1e-44)


@pytest.mark.parametrize("method", METHODS)
def test_bytes_that_are_cut_off_are_refused(method):
    content = Codec(method, 0.5).encode(rng().standard_normal(40).astype(np.float32), rng())
    for length in range(len(content)):
        with pytest.raises(CodecError):
            decode(content[:length], 40)


@given(st.binary(max_size=80), st.integers(0, 50))
def test_nonsense_is_refused_or_read_as_some_values(content, size):
    try:
        values, taken = decode(content, size)
    except CodecError:
        return
    assert values.shape == (size,)
    assert taken <= len(content)


def test_a_codec_names_what_it_does_not_know():
    with pytest.raises(CodecError, match="Unknown codec 'zip'; there are float32, float16"):
        Codec("zip")
    with pytest.raises(CodecError, match="above 0, at most 1"):
        Codec("topk", 0)


@pytest.mark.parametrize(("last", "size"), [(15, 16), (16, 16)])
def test_a_position_is_below_the_number_of_values(last, size):
    """Of a tensor of 17 values, read as one of 16."""
    values = np.zeros(17, dtype=np.float32)
    values[last] = 3.0
    content = Codec("topk", keep=0.05).encode(values, rng())
    if last < size:
        assert decode(content, size)[0].tolist() == values[:size].tolist()
    else:
        with pytest.raises(CodecError, match="Position 16 is beyond the 16 values"):
            decode(content, size)
