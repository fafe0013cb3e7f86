"""Arrays are to the byte what Flower makes of them."""

import numpy as np
import pytest
from flwr.app import Array

from bouquet.common.protocol.tensors import arrays_of, decode, encode, joined, record_of

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


def test_joined_arrays_are_read_one_by_one_again():
    arrays = {f"layer.{number}": encode(array) for number, array in enumerate(ARRAYS)}
    record = joined(arrays)
    assert list(record) == [",".join(arrays)]
    back = dict(arrays_of(record))
    assert list(back) == list(arrays)
    assert [array.data for array in back.values()] == [array.data for array in arrays.values()]
    for (name, part), array in zip(back.items(), arrays.values(), strict=True):
        np.testing.assert_array_equal(decode(part), decode(array))
        assert record_of({name: part})[name].data == array.data
    # One that is not joined is passed on as it is.
    assert dict(arrays_of(record_of(arrays))) == arrays


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda name, data: (name, data[:-1]), "cut off"),
        (lambda name, data: (name, data + b"x"), "1 bytes follow the last"),
        (lambda name, data: (name + ",more", data), "no array where one should begin"),
        (lambda name, data: ("a", data), "bytes follow the last"),
        (lambda name, data: (name, b"\x00" + data[1:]), "no array where one should begin"),
        (lambda name, data: (name, data.replace(b"(2, 3)", b"(9**9)")), ""),
        (lambda name, data: (name, data.replace(b"(2, 3)", b"(2,-3)")), "no array of numbers"),
        (lambda name, data: (name, data.replace(b"'<f4'", b"'|O4'")), ""),
    ],
)
def test_joined_bytes_that_do_not_hold_the_arrays_are_refused(spoil, reason):
    whole = joined({"a": encode(ARRAYS[0]), "b": encode(ARRAYS[1])})
    name, data = spoil("a,b", whole["a,b"].data)
    spoiled = record_of({name: Array("uint8", (len(data),), whole["a,b"].stype, data)})
    with pytest.raises(ValueError, match=reason):
        dict(arrays_of(spoiled))
