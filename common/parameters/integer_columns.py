"""Integers in a vector of float32, which holds whole numbers only up to 2^24: written as digits to the base 2^22.

Digits are linear in the number, so that the mean of two rows stands for the mean of the numbers; and they are small
enough that products with numbers of samples stay exact in float64, so that the mean of equal rows is that row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BITS = 22
_DIGITS = {1: 1, 2: 1, 4: 2, 8: 3}  # bytes of an integer → digits that hold it


def num_digits(dtype: np.dtype[Any]) -> int:
    """Digits that hold any integer (or truth value) of this dtype: 1 up to 16 bits, 2 for 32, 3 for 64."""
    return _DIGITS[dtype.itemsize]


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Whether the dtype is one of integers or truth values."""
    return dtype.kind in "iub"


def fits(values: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether all of these numbers, rounded, are within the range of an integer dtype."""
    if not values.size or values.dtype == dtype:
        return True
    low, high = _limits(dtype)
    # Python's numbers compare exactly, where NumPy's would first become floats of 53 bits.
    least, most = (int(np.rint(v)) if values.dtype.kind == "f" else int(v) for v in (values.min(), values.max()))
    return low <= least and most <= high


def to_digits(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[np.float32]:
    """Numbers (n,) that fit the dtype as digits (k · n,): the lowest one of every number first.

    All digits of a number have its sign, so that small numbers have small digits, and the means of these small errors.
    """
    wide = np.uint64 if dtype == np.uint64 else np.int64
    rest = (np.rint(values) if values.dtype.kind == "f" else values).astype(wide)
    count = num_digits(dtype)
    digits = []
    for _ in range(count - 1):
        digits.append(np.fmod(rest, wide(2**_BITS)))
        rest = (rest - digits[-1]) // wide(2**_BITS)
    return np.concatenate([*digits, rest]).astype(np.float32)


def from_digits(digits: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The numbers (…, n) that digits (…, k · n) stand for, rounded, and no further than the dtype reaches.

    Digits that are means need not be whole.
    """
    count = num_digits(dtype)
    wide = np.uint64 if dtype == np.uint64 else np.int64
    parts = np.moveaxis(digits.reshape(*digits.shape[:-1], count, -1), -2, 0).astype(np.float64)
    # The whole numbers among the higher digits add up as integers: float64 has 53 bits, and a number may have 64.
    whole = np.trunc(parts)
    whole[0] = 0.0
    scale = 2.0 ** (_BITS * np.arange(count)).reshape(-1, *[1] * (parts.ndim - 1))
    numbers = np.rint(((parts - whole) * scale).sum(axis=0)).astype(np.int64).astype(wide)
    for place in range(1, count):
        numbers = numbers + whole[place].astype(np.int64).astype(wide) * wide(2 ** (_BITS * place))
    if dtype.itemsize < 8:
        numbers = np.clip(numbers, *_limits(dtype))
    return numbers.astype(dtype)


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    if dtype.kind == "b":
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)
