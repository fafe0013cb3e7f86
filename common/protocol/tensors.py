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

from bouquet.common.parameters.layout import contiguous

_NUMPY, _NPY_1_0 = "numpy.ndarray", b"\x93NUMPY\x01\x00"  # flwr.app.message's SType.NUMPY; magic and version
_LONGEST_HEADER = 1024  # magic and version included: of 32 dimensions it takes 704


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


def decode(array: Array, copy: bool = True) -> NDArray[Any]:
    """An array that may be written to, or without ``copy`` may not.

    Of exactly the bytes that its header says, of which nothing is made before: `numpy.load` would also open archives,
    and allocate whatever a header claims. Raises `ValueError`, and whatever NumPy does for a header that is none.
    """
    data = array.data
    if array.stype != _NUMPY:
        raise ValueError(f"it is of the kind {array.stype[:80]!r}")
    end = 10 + int.from_bytes(data[8:10], "little")
    if data[:8] != _NPY_1_0 or end > _LONGEST_HEADER:
        raise ValueError("there is no array where one should begin")
    shape, is_fortran, dtype = _read_header(data[8:end])
    if len(data) - end != dtype.itemsize * math.prod(shape):
        raise ValueError(f"{len(data) - end} bytes follow the header of {dtype} {shape}")
    values = np.frombuffer(memoryview(data)[end:], dtype)
    return (values.copy() if copy else values).reshape(shape, order="F" if is_fortran else "C")


@lru_cache(maxsize=1024)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Magic, version and header of an array in C order."""
    written = BytesIO()
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(written, about)
    return written.getvalue()


@lru_cache(maxsize=1024)
def _read_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype. Raises `ValueError` for what is no header, or not one of numbers."""
    fields: tuple[tuple[int, ...], bool, np.dtype[Any]] = np.lib.format.read_array_header_1_0(BytesIO(header))
    if fields[2].hasobject or not fields[2].itemsize or min(fields[0], default=0) < 0:
        raise ValueError("a header is of no array of numbers")
    return fields
