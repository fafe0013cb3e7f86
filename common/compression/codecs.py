"""Codecs: the values of one tensor as few bytes, and back. NumPy and zlib only, because a device needs them too.

| codec | bytes for m values | what is lost |
| --- | --- | --- |
| ``float32`` | 4 m | nothing |
| ``float16`` | 2 m | all but 11 bits of each value |
| ``int8``, ``int4`` | m, m / 2 | stochastic rounding to 2 · 127 + 1 or 2 · 7 + 1 levels; right on average |
| ``topk`` | k values and positions | all but the k largest values |
| ``ternary`` | k signs and positions, one number | also their size: each becomes ± the mean |

Stochastic quantisation: Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD: Communication-Efficient SGD via Gradient
Quantization and Encoding. NeurIPS 2017, section 3.1, here with the largest value in place of the norm.
Sparse ternary compression (STC) and the coding of positions: Sattler, Wiedemann, Müller, Samek: Robust and
Communication-Efficient Federated Learning From Non-i.i.d. Data. IEEE TNNLS 31, 2020, Algorithm 1, 3 and 4.

A coded tensor says itself how it is coded. One that does not fit its codec (values that are not finite, or too large
for 16 bits) is kept as float32, so that what is wrong with it can be seen at the other end.

Whoever decodes knows how many values there are, and trusts nothing else: every count, length and width that is read is
held against that number before anything is made of it, so that no bytes take more memory than some values for each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bouquet.common.errors import BouquetError

Method = Literal["float32", "float16", "int8", "int4", "ternary", "topk"]
METHODS: tuple[Method, ...] = get_args(Method)
Values = NDArray[np.float32]

_ZERO, _FLOAT32, _FLOAT16, _INT8, _INT4, _TERNARY, _TOPK = range(7)
_LARGEST_HALF = 65504.0
_LEVELS: dict[str, int] = {"int8": 127, "int4": 7}
_GOLDEN = (1 + 5**0.5) / 2


class CodecError(BouquetError):
    """Bytes that are not a coded tensor of the size that is expected."""


@dataclass(frozen=True)
class Codec:
    """A method, and the share of values that the sparse ones keep (of each tensor, at least one value)."""

    method: Method = "float32"
    keep: float = 0.05

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise CodecError(f"Unknown codec {self.method!r}; there are {', '.join(METHODS)}.")
        if not 0 < self.keep <= 1:
            raise CodecError(f"A codec keeps a share above 0, at most 1, of the values, not {self.keep!r}.")

    @property
    def is_exact(self) -> bool:
        """Whether nothing is lost."""
        return self.method == "float32"

    @property
    def feeds_back(self) -> bool:
        """Whether what it leaves out is to be remembered and sent later: the rest of the codecs err by chance only."""
        return self.method in ("ternary", "topk")

    def encode(self, values: Values, rng: np.random.Generator) -> bytes:
        """The values (m,) as bytes; ``rng`` decides the roundings of ``int8`` and ``int4``."""
        if self.method == "float32" or not np.isfinite(values).all():
            return bytes([_FLOAT32]) + values.astype("<f4").tobytes()
        if not values.any():
            return bytes([_ZERO])
        if self.method == "float16":
            return _encode_halves(values)
        if self.method in _LEVELS:
            return _encode_levels(values, self.method, rng)
        return _encode_sparse(values, self)


def decode(content: bytes | memoryview, size: int) -> tuple[Values, int]:
    """The values (``size``,) at the beginning of ``content``, and how many bytes they took.

    Raises `CodecError` for bytes that are cut off, make no sense or are not the ones that `Codec.encode` would have
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


def _encode_levels(values: Values, method: str, rng: np.random.Generator) -> bytes:
    """A scale, and whole multiples of it: v / scale is rounded up with the probability of its fraction."""
    most = _LEVELS[method]
    scale = np.float32(np.abs(values).max() / most)
    if scale == 0:  # the largest value is too small to be divided
        return bytes([_ZERO])
    levels = np.floor(values / scale + rng.random(len(values), dtype=np.float32)).clip(-most, most).astype(np.int8)
    head = struct.pack("<Bf", _INT8 if method == "int8" else _INT4, scale)
    if method == "int8":
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


# --- sparse ----------------------------------------------------------------------------------------------------------


def _encode_sparse(values: Values, codec: Codec) -> bytes:
    """The k = keep · m values of largest magnitude, of equals any (STC, Algorithm 1)."""
    count = max(1, round(codec.keep * len(values)))
    sizes = np.abs(values)
    kept: NDArray[np.int64] = np.sort(np.argpartition(sizes, len(values) - count)[len(values) - count :])
    chosen = values[kept]
    if codec.method == "topk":
        if sizes.max() > _LARGEST_HALF:
            return bytes([_FLOAT32]) + values.astype("<f4").tobytes()
        return bytes([_TOPK]) + encode_positions(kept, len(values)) + _planes(chosen)
    mean = np.float32(np.abs(chosen).mean(dtype=np.float64))
    return struct.pack("<Bf", _TERNARY, mean) + encode_positions(kept, len(values)) + np.packbits(chosen > 0).tobytes()


def _decode_ternary(reader: _Reader, size: int) -> Values:
    (mean,) = reader.unpack("<f")
    kept = _read_positions(reader, size)
    positive = _read_bits(reader, len(kept))
    values = np.zeros(size, dtype=np.float32)
    values[kept] = np.where(positive, np.float32(mean), -np.float32(mean))
    return values


def _decode_topk(reader: _Reader, size: int) -> Values:
    kept = _read_positions(reader, size)
    values = np.zeros(size, dtype=np.float32)
    values[kept] = _from_planes(reader.take(2 * len(kept)))
    return values


def golomb_parameter(share: float) -> int:
    """b* = 1 + ⌊log2( log(φ − 1) / log(1 − p) )⌋, at least 0: bits of a gap's remainder where p of all are kept.

    STC, Algorithm 3, with the golden ratio φ.
    """
    if share >= 1:
        return 0
    return max(0, 1 + int(np.floor(np.log2(np.log(_GOLDEN - 1) / np.log1p(-share)))))


def encode_positions(positions: NDArray[np.int64], size: int) -> bytes:
    """Ascending positions (k,) below ``size`` by Golomb's code of the gaps between them.

    A gap g is ⌊g / 2^b⌋ ones and a zero, and b bits of remainder. All the former come first, then all the latter, so
    that NumPy can read them at once.
    """
    bits = golomb_parameter(len(positions) / size)
    gaps = np.diff(positions, prepend=-1) - 1
    quotients = gaps >> bits
    ends = np.cumsum(quotients + 1)
    unary = np.ones(int(ends[-1]), dtype=np.uint8)
    unary[ends - 1] = 0
    remainders = (gaps[:, None] >> np.arange(bits - 1, -1, -1)) & 1
    coded = np.packbits(unary).tobytes()
    return (
        struct.pack("<IIB", len(positions), len(coded), bits) + coded + np.packbits(remainders.astype(bool)).tobytes()
    )


def _read_positions(reader: _Reader, size: int) -> NDArray[np.int64]:
    """Positions that rise and are below ``size``: gaps are not negative, and what they come to is bounded.

    `golomb_parameter` never gives a b with k · 2^b above the size, and all gaps together are at most size - k.
    """
    count, length, bits = reader.unpack("<IIB")
    if not 0 < count <= size or count << bits > size:
        raise CodecError(f"{count} of {size} values are said to be kept, with {bits} bits for a remainder.")
    if length > (count + (size - count >> bits) + 7) // 8:
        raise CodecError(f"The gaps between {count} of {size} values are said to take {length} bytes.")
    zeros = np.unpackbits(~np.frombuffer(reader.take(length), dtype=np.uint8)).view(np.bool_).nonzero()[0]
    if len(zeros) < count:
        raise CodecError(f"There are {len(zeros)} positions, not {count}.")
    ends = zeros[:count]
    if not len(zeros) - count == 8 * length - ends[-1] - 1 < 8:
        raise CodecError(f"More follows the last of {count} positions.")
    digits = _read_bits(reader, count * bits).reshape(count, bits).astype(np.int64)
    remainders = digits @ (1 << np.arange(bits - 1, -1, -1, dtype=np.int64))
    # Before the i-th end there are i others; all else are the ones of the quotients so far, in a sum.
    order = np.arange(count)
    positions: NDArray[np.int64] = (ends - order << bits) + np.cumsum(remainders) + order
    if positions[-1] >= size:
        raise CodecError(f"Position {positions[-1]} is beyond the {size} values.")
    return positions


# --- reading ---------------------------------------------------------------------------------------------------------


def _read_bits(reader: _Reader, count: int) -> NDArray[np.uint8]:
    """Zeros and ones (``count``,), of whole bytes; what fills up the last one is zero."""
    content = reader.take((count + 7) // 8)
    if count % 8 and content[-1] & 0xFF >> count % 8:
        raise CodecError(f"More follows the last of {count} bits.")
    return np.unpackbits(np.frombuffer(content, dtype=np.uint8), count=count)


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
    _TERNARY: _decode_ternary,
    _TOPK: _decode_topk,
}
