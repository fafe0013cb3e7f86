"""Codecs: the values of one tensor as few bytes, and back. NumPy and zlib only, because a device needs them too.

| codec | bytes for m values | what is lost |
| --- | --- | --- |
| ``float32`` | 4 m | nothing |
| ``float16`` | 2 m | all but 11 bits of each value |
| ``int8``, ``int4`` | m, m / 2 | stochastic rounding to 2 · 127 + 1 or 2 · 7 + 1 levels; right on average |

Stochastic quantisation: Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD: Communication-Efficient SGD via Gradient
Quantization and Encoding. NeurIPS 2017, section 3.1, here with the largest value in place of the norm.

A coded tensor says itself how it is coded. One that does not fit its codec (values that are not finite, or too large
for 16 bits) is kept as float32, so that what is wrong with it can be seen at the other end.

Whoever decodes knows how many values there are, and trusts nothing else: every count, length and width that is read is
held against that number before anything is made of it, so that no bytes take more memory than some values for each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bouquet.common.errors import BouquetError

Codec = Literal["float32", "float16", "int8", "int4"]
CODECS: tuple[Codec, ...] = get_args(Codec)
Values = NDArray[np.float32]

_ZERO, _FLOAT32, _FLOAT16, _INT8, _INT4 = range(5)
_LARGEST_HALF = 65504.0
_LEVELS: dict[str, int] = {"int8": 127, "int4": 7}


class CodecError(BouquetError):
    """Bytes that are not a coded tensor of the size that is expected."""


def encode(codec: Codec, values: Values, rng: np.random.Generator) -> bytes:
    """The values (m,) as bytes; ``rng`` decides the roundings of ``int8`` and ``int4``."""
    if codec == "float32" or not np.isfinite(values).all():
        return bytes([_FLOAT32]) + values.astype("<f4").tobytes()
    if not values.any():
        return bytes([_ZERO])
    return _encode_halves(values) if codec == "float16" else _encode_levels(values, codec, rng)


def decode(content: bytes | memoryview, size: int) -> tuple[Values, int]:
    """The values (``size``,) at the beginning of ``content``, and how many bytes they took.

    Raises `CodecError` for bytes that are cut off, make no sense or are not the ones that `encode` would have
    given for these positions. The values may be infinite or no numbers.
    """
    reader = _Reader(memoryview(content))
    tag = reader.take(1)[0]
    if tag == _ZERO:
        return np.zeros(size, dtype=np.float32), reader.position
    if tag not in _DECODERS:
        raise CodecError(f"{tag} is the mark of no codec.")
    with np.errstate(over="ignore", invalid="ignore"):
        values = _DECODERS[tag](reader, size)
    return values.astype(np.float32, copy=False), reader.position


# --- float16 ---------------------------------------------------------------------------------------------------------


def _encode_halves(values: Values) -> bytes:
    """High bytes first, then low bytes: the high ones resemble each other, which deflate uses."""
    if np.abs(values).max() > _LARGEST_HALF:
        return bytes([_FLOAT32]) + values.astype("<f4").tobytes()
    return bytes([_FLOAT16]) + _planes(values)


def _planes(values: NDArray[np.floating]) -> bytes:
    return values.astype(">f2").view(np.uint8).reshape(-1, 2).T.tobytes()


def _from_planes(content: memoryview) -> Values:
    planes = np.frombuffer(content, dtype=np.uint8).reshape(2, -1)
    return np.ascontiguousarray(planes.T).view(">f2").reshape(-1).astype(np.float32)


# --- int8 and int4 ---------------------------------------------------------------------------------------------------


def _encode_levels(values: Values, codec: Codec, rng: np.random.Generator) -> bytes:
    """A scale, and whole multiples of it: v / scale is rounded up with the probability of its fraction."""
    most = _LEVELS[codec]
    scale = np.float32(np.abs(values).max() / most)
    if scale == 0:  # the largest value is too small to be divided
        return bytes([_ZERO])
    levels = np.floor(values / scale + rng.random(len(values), dtype=np.float32)).clip(-most, most).astype(np.int8)
    head = struct.pack("<Bf", _INT8 if codec == "int8" else _INT4, scale)
    if codec == "int8":
        return head + levels.tobytes()
    nibbles = (levels + most).astype(np.uint8)
    if len(nibbles) % 2:
        nibbles = np.append(nibbles, np.uint8(most))
    return head + (nibbles[0::2] << 4 | nibbles[1::2]).tobytes()


def _decode_int8(reader: _Reader, size: int) -> Values:
    (scale,) = reader.unpack("<f")
    return np.frombuffer(reader.take(size), dtype=np.int8).astype(np.float32) * np.float32(scale)


def _decode_int4(reader: _Reader, size: int) -> Values:
    (scale,) = reader.unpack("<f")
    pairs = np.frombuffer(reader.take((size + 1) // 2), dtype=np.uint8)
    if size % 2 and pairs[-1] & 15 != _LEVELS["int4"]:
        raise CodecError("The value that fills up the last byte is not 0.")
    nibbles = np.stack([pairs >> 4, pairs & 15], axis=1).reshape(-1)[:size]
    return (nibbles.astype(np.float32) - np.float32(_LEVELS["int4"])) * np.float32(scale)


# --- reading ---------------------------------------------------------------------------------------------------------


class _Reader:
    """Takes bytes from the front; too few of them are an error."""

    def __init__(self, content: memoryview) -> None:
        self.content = content
        self.position = 0

    def take(self, count: int) -> memoryview:
        taken = self.content[self.position : self.position + count]
        if len(taken) < count:
            raise CodecError(f"The coded values end after {len(self.content)} bytes.")
        self.position += count
        return taken

    def unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self.take(struct.calcsize(form)))


_DECODERS: dict[int, Callable[[_Reader, int], Values]] = {
    _FLOAT32: lambda reader, size: np.frombuffer(reader.take(4 * size), dtype="<f4").astype(np.float32),
    _FLOAT16: lambda reader, size: _from_planes(reader.take(2 * size)),
    _INT8: _decode_int8,
    _INT4: _decode_int4,
}
