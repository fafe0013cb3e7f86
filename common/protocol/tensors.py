"""Arrays as Flower sends them: NumPy's own format, one array of bytes each.

To the byte what `flwr.app.Array` writes and reads. It makes and parses the same header anew for each array of each
message, which takes longer than the numbers of a small model; here each header is made and parsed once.

Flower's own processes move each array as two objects, each by calls of its own. Between Bouquet's
own apps the arrays of a record are therefore joined: one array, whose bytes are theirs one after another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from bouquet.common.parameters.layout import contiguous

_JOINED, _BETWEEN = "bouquet.joined", ","  # the kind of an array that holds others, and what is between their names
_NUMPY, _NPY_1_0 = "numpy.ndarray", b"\x93NUMPY\x01\x00"  # flwr.app.message's SType.NUMPY; magic and version
# A header, magic and version included: NumPy fills it up to a multiple of 64, and of 32 dimensions it takes 704.
_SHORTEST_HEADER, _LONGEST_HEADER = 64, 1024


def record_of(arrays: Mapping[str, Array | Part]) -> ArrayRecord:
    """An ArrayRecord of these arrays themselves; its constructor would make each of them once more."""
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = array.alone() if isinstance(array, Part) else array
    return record


class Part(NamedTuple):
    """One of the arrays that are joined to one; to make an `Array` of each takes longer than to copy a small one."""

    stype: str
    data: bytes | memoryview

    def alone(self) -> Array:
        """By itself, of the same bytes; `decode` needs neither data type nor shape."""
        return Array("", (), self.stype, bytes(self.data))


def joined(arrays: Mapping[str, Array | Part]) -> ArrayRecord:
    """A record in which these arrays are one, their names its name."""
    data = b"".join(array.data for array in arrays.values())
    return record_of({_BETWEEN.join(arrays): Array("uint8", (len(data),), _JOINED, data)})


def arrays_of(record: Mapping[str, Array]) -> Iterator[tuple[str, Array | Part]]:
    """Name and array of all in a record, those that are joined one by one; raises what `sizes_of` does."""
    for name, array in record.items():
        if array.stype != _JOINED:
            yield name, array
            continue
        data = memoryview(array.data)
        for part, start, end in _spans(name, array.data):
            yield part, Part(_NUMPY, data[start:end])


def sizes_of(record: Mapping[str, Array]) -> Iterator[tuple[str, int]]:
    """Name and bytes of all arrays in a record, those that are joined one by one.

    Raises `ValueError` for joined bytes that do not hold as many arrays as there are names, each whole; for a header
    that is none whatever NumPy raises, which parses it as Python. What is made is bounded by the bytes that there are.
    """
    for name, array in record.items():
        if array.stype != _JOINED:
            yield name, len(array.data)
            continue
        for part, start, end in _spans(name, array.data):
            yield part, end - start


def _spans(names: str, data: bytes) -> Iterator[tuple[str, int, int]]:
    """Where each of the joined arrays begins and ends."""
    at = 0
    if (count := names.count(_BETWEEN) + 1) * _SHORTEST_HEADER > len(data):
        raise ValueError(f"there is no array where one should begin: {len(data)} bytes are said to hold {count}")
    for name in names.split(_BETWEEN):
        end = at + _length(data, at)
        yield name, at, end
        at = end
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes follow the last of the arrays {names!r}")


def _length(data: bytes, at: int) -> int:
    """Bytes of the array that begins there, its header included."""
    start = _header_end(data, at)
    size = _bytes_after(data[at:start])
    if size > len(data) - start:
        raise ValueError("an array is cut off")
    return start - at + size


def _header_end(data: bytes | memoryview, at: int = 0) -> int:
    """Where the header of the array that begins there ends."""
    end = at + 10 + int.from_bytes(data[at + 8 : at + 10], "little")
    if data[at : at + 8] != _NPY_1_0 or end - at > _LONGEST_HEADER:
        raise ValueError("there is no array where one should begin")
    return end


@lru_cache(maxsize=1024)
def _bytes_after(header: bytes) -> int:
    """Bytes of the numbers that follow a header, magic and version included."""
    shape, _, dtype = _read_header(header[8:])
    return dtype.itemsize * math.prod(shape)


def encode(array: NDArray[Any]) -> Array:
    """The array as Flower sends it."""
    return Array(str(array.dtype), array.shape, _NUMPY, _encoded(array))


def encode_part(array: NDArray[Any]) -> Part:
    """The array as it is `joined`."""
    return Part(_NUMPY, _encoded(array))


def decode(array: Array | Part, copy: bool = True) -> NDArray[Any]:
    """An array that may be written to, or without ``copy`` may not.

    Of exactly the bytes that its header says, of which nothing is made before: `numpy.load` would also open archives,
    and allocate whatever a header claims. Raises `ValueError`, and whatever NumPy does for a header that is none.
    """
    data = array.data
    if array.stype != _NUMPY:
        raise ValueError(f"it is of the kind {array.stype[:80]!r}")
    end = _header_end(data)
    shape, is_fortran, dtype = _read_header(bytes(data[8:end]))
    if len(data) - end != dtype.itemsize * math.prod(shape):
        raise ValueError(f"{len(data) - end} bytes follow the header of {dtype} {shape}")
    values = np.frombuffer(memoryview(data)[end:], dtype)
    return (values.copy() if copy else values).reshape(shape, order="F" if is_fortran else "C")


def _encoded(array: NDArray[Any]) -> bytes:
    array = contiguous(array)
    return b"".join((_header(array.dtype, array.shape), array.data))


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
    found: tuple[tuple[int, ...], bool, np.dtype[Any]] = np.lib.format.read_array_header_1_0(BytesIO(header))
    if found[2].hasobject or not found[2].itemsize or min(found[0], default=0) < 0:
        raise ValueError("a header is of no array of numbers")
    return found
