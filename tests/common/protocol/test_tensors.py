"""Arrays are to the byte what Flower makes of them."""

import numpy as np
import pytest
from flwr.app import Array

from bouquet.common.protocol.tensors import decode, encode

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


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda data: data[:-1], "23 bytes follow the header"),
        (lambda data: data + b"x", "25 bytes follow the header"),
        (lambda data: b"\x00" + data[1:], "no array where one should begin"),
        (lambda data: data[:8] + b"\xff\xff" + data[10:] + bytes(2**16), "no array where one should begin"),
        (lambda data: data.replace(b"(2, 3)", b"(9**9)"), "Shape|shape|malformed|header"),
        (lambda data: data.replace(b"(2, 3)", b"(2,-3)"), "no array of numbers"),
        (lambda data: data.replace(b"'<f4'", b"'|O4'"), "descr|numbers|data type"),
    ],
)
def test_bytes_that_are_no_array_are_refused(spoil, reason):
    data = spoil(encode(ARRAYS[0]).data)
    with pytest.raises(ValueError, match=reason):
        decode(Array("float32", (2, 3), "numpy.ndarray", data))
