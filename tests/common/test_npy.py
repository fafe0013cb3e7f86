"""Arrays are to the byte what Flower makes of them."""

import numpy as np
import pytest
from flwr.app import Array

from common.npy import HeldArray, decode, encode, record_of

ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array(3, dtype=np.int64),
    np.zeros((0, 4), dtype=np.float16),
    np.array([True, False]),
    np.arange(6, dtype=np.float64).reshape(2, 3)[:, ::2],
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_an_array_has_the_bytes_that_flower_gives_it(array):
    coded, flowers = encode(array), Array(np.asarray(array, order="C"))
    assert (coded.data, coded.dtype, coded.shape, coded.stype) == (
        flowers.data, flowers.dtype, flowers.shape, flowers.stype,
    )  # fmt: skip
    back = decode(coded)
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype
    assert back.flags.writeable


def test_a_record_holds_the_arrays_that_it_was_given():
    values = np.arange(3, dtype=np.float32)
    assert np.shares_memory(record_of({"a": HeldArray(values)})["a"].numpy(), values)
