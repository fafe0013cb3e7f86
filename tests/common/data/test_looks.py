"""What samples look like, and whose look alike, by hand."""

import numpy as np
import pytest

from bouquet.common.data.looks import Looks, from_bytes, look_of, projected, to_bytes
from bouquet.common.errors import BouquetError

SAMPLES = np.random.default_rng(7).normal(size=(12, 1, 4, 4)).astype(np.float32)
BRIGHT, DARK = np.full(64, 1.0), np.full(64, -1.0)


def test_a_look_is_the_means_and_deviations_of_fixed_projections():
    look = look_of(projected(SAMPLES))
    axes = np.random.default_rng(0).standard_normal((16, 32), dtype=np.float32) / 4
    by_hand = SAMPLES.reshape(12, 16) @ axes
    np.testing.assert_allclose(look, [*by_hand.mean(axis=0), *by_hand.std(axis=0)], rtol=1e-4, atol=1e-6)
    assert (look.dtype, look.shape) == (np.float32, (64,))
    in_parts = look_of(np.concatenate([projected(part) for part in np.split(SAMPLES, 3)]))
    np.testing.assert_allclose(look, in_parts, rtol=1e-4, atol=1e-6)
    assert not look_of(projected(SAMPLES[:1]))[32:].any()  # of one sample


def test_a_look_travels_as_256_bytes_and_nothing_else_is_one():
    look = look_of(projected(SAMPLES))
    assert len(to_bytes(look)) == 256
    np.testing.assert_array_equal(from_bytes(to_bytes(look)), look)
    for nonsense in (None, 1, "look", to_bytes(look)[:-1], to_bytes(look) * 2, to_bytes(np.full(64, np.nan))):
        assert from_bytes(nonsense) is None


def test_a_device_goes_where_looks_are_alike():
    looks = {"a": BRIGHT, "b": BRIGHT * 0.9, "c": DARK, "d": DARK * 0.9}
    known = Looks.known(looks, {"a": 0, "b": 0, "c": 1, "d": 1})
    assert (known.right, known.of) == (4, 4)
    assert (known.nearest(BRIGHT * 2), known.nearest(DARK * 0.1)) == (0, 1)
    again = Looks.from_json(known.to_json())
    assert (again.right, again.of, again.nearest(DARK)) == (4, 4, 1)
    np.testing.assert_array_equal(again.means[0], known.means[0])


def test_who_is_left_out_and_goes_elsewhere_is_counted():
    looks = {"a": BRIGHT, "b": DARK, "c": BRIGHT, "d": DARK}
    known = Looks.known(looks, {"a": 0, "b": 0, "c": 1, "d": 1})  # what is alike is in different clusters
    assert (known.right, known.of) == (0, 4)
    alone = Looks.known({"a": BRIGHT, "b": BRIGHT, "c": DARK}, {"a": 0, "b": 0, "c": 1})
    assert (alone.right, alone.of) == (2, 3)


def test_halves_are_scaled_by_themselves():
    """Deviations a hundred times as small as means decide as much."""
    one, other = np.r_[np.full(16, 0.4), np.full(16, 0.6), np.full(32, 0.01)], np.r_[np.full(32, 0.5), np.zeros(32)]
    known = Looks.known({"a": one, "b": other}, {"a": 0, "b": 1})
    assert known.nearest(np.r_[np.full(32, 0.5), np.full(32, 0.008)]) == 0


def test_what_is_not_known_of_each_cluster_is_not_known():
    assert Looks.known({}, {}) is None
    assert Looks.known({"a": BRIGHT, "b": DARK}, {"a": 0, "b": 0}) is None
    assert Looks.known({"a": BRIGHT, "b": DARK}, {"a": 0, "b": 1, "c": 2}) is None
    assert Looks.known({"a": BRIGHT, "b": DARK, "left": DARK}, {"a": 0, "b": 1, "c": 1}).of == 2


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"means": {}, "low": [0, 0], "high": [1, 1], "right": 0, "of": 0}'])
def test_what_is_no_such_file_is_refused(text):
    with pytest.raises(BouquetError):
        Looks.from_json(text)
