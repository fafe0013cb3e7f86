"""Arrays as Flower sends them: NumPy's own format, one array of bytes each.

To the byte what `flwr.app.Array` writes and reads. It makes and parses the same header anew for each array of each
message, which takes longer than the numbers of a small model; here each header is made and parsed once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from common.layout import contiguous

_NUMPY, _NPY_1_0 = "numpy.ndarray", b"\x93NUMPY\x01\x00"  # flwr.app.message's SType.NUMPY; magic and version


def record_of(arrays: Mapping[str, Array]) -> ArrayRecord:
    """An ArrayRecord of these arrays themselves; its constructor would make each of them once more."""
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = array
    return record


def encode(array: NDArray[Any]) -> Array:
    """The array as Flower sends it."""
    array = contiguous(array)
    data = b"".join((_header(array.dtype, array.shape), array.data))
    return Array(str(array.dtype), array.shape, _NUMPY, data)


def decode(array: Array) -> NDArray[Any]:
    """An array that may be written to. Raises whatever NumPy does for spoiled bytes."""
    data = array.data
    end = 10 + int.from_bytes(data[8:10], "little")
    if array.stype == _NUMPY and data[:8] == _NPY_1_0 and len(data) > end:
        shape, is_fortran, dtype = _read_header(data[8:end])
        if not dtype.hasobject and len(data) - end == dtype.itemsize * math.prod(shape):
            values = np.frombuffer(data, dtype, offset=end).copy()
            return values.reshape(shape, order="F" if is_fortran else "C")
    return array.numpy()


class HeldArray(Array):
    """An array for Flower's code in this process, which is never sent: the numbers themselves, and no bytes."""

    def __init__(self, values: NDArray[Any]) -> None:
        super().__init__(str(values.dtype), values.shape, _NUMPY, b"")
        self.__dict__["_values"] = values

    def numpy(self) -> NDArray[Any]:
        """The array that was given, not a copy."""
        values: NDArray[Any] = self.__dict__["_values"]
        return values


@lru_cache(maxsize=1024)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Magic, version and header of an array in C order."""
    written = BytesIO()
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(written, about)
    return written.getvalue()


@lru_cache(maxsize=1024)
def _read_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype. Raises `ValueError` for what is no header."""
    found: tuple[tuple[int, ...], bool, np.dtype[Any]] = np.lib.format.read_array_header_1_0(BytesIO(header))
    return found
