"""Models as one block of bytes: coded, as differences to what the other end holds where it holds something.

Both ends keep a `Copy` of each model that one of them sent: not the model itself, but what the receiver made of the
bytes. The sender decodes its own bytes to know it. The next difference is to that copy, so that whatever a codec lost
is in it again, and no error grows.

Buffers that count (integers, BatchNorm's) travel as they are. A layer that the other end has no copy of travels whole,
in 16 bits where the codec is not exact: the codecs of few bits are for differences.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bouquet.common.compression.codecs import Codec, CodecError, decode, encode
from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout, TensorSpec, Vector

_WHOLE: Codec = "float16"
_DIFFERENCE = 0x80  # of a tensor's first byte: add to the copy
_DEFLATED, _PLAIN = 1, 0
_MOST_EXTRA_BYTES = 64  # a coded tensor is at most so much larger than its float32 values
MOST_MODELS = 1024  # in one message
# What a block says of one model, before the models themselves, and of each of its layers.
_MOST_HEAD_BYTES, _MOST_LAYER_BYTES = 256, 32


class PackingError(BouquetError):
    """A block of bytes that is not what was agreed."""


class LostCopyError(PackingError):
    """A difference to a copy that this end does not have."""


@dataclass(frozen=True)
class Copy:
    """A model (d,), or some of its layers, as both ends hold it; columns of other layers are zero."""

    vector: Vector
    layers: tuple[str, ...]

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits: copies with the same are the same."""
        digest = hashlib.blake2b(",".join(self.layers).encode(), digest_size=8)
        digest.update(self.vector.astype("<f4").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class PackedModel:
    """A coded model: the digest of the copy that it is a difference to ('' for none), and each layer's bytes.

    Of a model that is ``not_kept`` neither end keeps a copy.
    """

    base: str
    layers: Mapping[str, bytes]
    not_kept: bool = False


Find = Callable[[str], Copy | None]  # a copy by its digest


def pack_model(
    layout: ParameterLayout,
    vector: Vector,
    layers: Iterable[str],
    base: Copy | None,
    codec: Codec,
    rng: np.random.Generator,
) -> tuple[PackedModel, Copy]:
    """Some layers of a model (d,) as bytes, and the copy that the other end will make of them."""
    chosen = layout.check_layers(layers)
    coded: dict[str, list[bytes]] = {layer: [] for layer in chosen}
    for spec in layout.tensors:
        if spec.layer in coded:
            coded[spec.layer].append(_pack_tensor(spec, vector, base, codec, rng))
    packed = PackedModel(base.digest if base else "", {layer: _deflated(b"".join(coded[layer])) for layer in chosen})
    return packed, unpack_model(layout, packed, lambda _: base)[1]


def unpack_model(layout: ParameterLayout, packed: PackedModel, find: Find) -> tuple[Vector, Copy]:
    """The layers that were sent, in a vector (d,) with zeros elsewhere, and the copy to keep of them.

    Raises `LostCopyError` when the copy that they are a difference to is not there, and `PackingError`, which names
    the tensor, for bytes that cannot be read and values that are not finite.
    """
    base = find(packed.base) if packed.base else None
    if packed.base and base is None:
        raise LostCopyError(f"The model came as a difference to {packed.base}, which this end does not hold.")
    layers = layout.check_layers(packed.layers)
    vector = np.zeros(layout.dim, dtype=np.float32)
    specs = layout.tensors
    for layer in layers:
        own = [spec for spec in specs if spec.layer == layer]
        inflated = _inflated(packed.layers[layer], sum(4 * s.width + _MOST_EXTRA_BYTES for s in own), layer)
        content = memoryview(bytearray(inflated))
        for spec in own:
            content = content[_unpack_tensor(spec, content, base, vector) :]
        if content:
            raise PackingError(f"Layer {layer!r} has {len(content)} bytes too many.")
    if base is None or set(base.layers) <= set(layers):
        return vector, Copy(vector, layers)
    merged = base.vector.copy()
    columns = layout.columns(layers)
    merged[columns] = vector[columns]
    return vector, Copy(merged, layout.check_layers({*base.layers, *layers}))


def nearest(copies: Iterable[Copy], vector: Vector, columns: NDArray[np.int64]) -> Copy | None:
    """Of the copies the one at the least Euclidean distance over the columns; the first of equals."""
    own = vector[columns]
    return min(copies, key=lambda copy: float(np.linalg.norm(own - copy.vector[columns])), default=None)


def to_bytes(models: Mapping[str, PackedModel], layout: ParameterLayout) -> bytes:
    """Packed models by the names of their records as one block."""
    place = {layer: i for i, layer in enumerate(layout.layers)}
    head = [
        [
            name,
            packed.base,
            [place[x] for x in packed.layers],
            [len(b) for b in packed.layers.values()],
            int(packed.not_kept),
        ]
        for name, packed in models.items()
    ]
    text = json.dumps(head, separators=(",", ":")).encode()
    return struct.pack("<I", len(text)) + text + b"".join(b for p in models.values() for b in p.layers.values())


def from_bytes(content: bytes, layout: ParameterLayout, most: int = MOST_MODELS) -> dict[str, PackedModel]:
    """The inverse of `to_bytes`, of at most so many models. Raises `PackingError` when it is none of its blocks."""
    try:
        (length,) = struct.unpack_from("<I", content)
        if length > (limit := most * (_MOST_HEAD_BYTES + _MOST_LAYER_BYTES * len(layout.layers))):
            raise ValueError(f"what they are takes {length} bytes, and at most {limit} for {most}")
        models: dict[str, PackedModel] = {}
        position = 4 + length
        for name, base, places, lengths, not_kept in json.loads(content[4:position]):
            layers: dict[str, bytes] = {}
            for place, size in zip(places, lengths, strict=True):
                if not (0 <= place < len(layout.layers) and 0 <= size <= len(content) - position):
                    raise ValueError(f"layer {place} of {size} bytes")
                layers[layout.layers[place]] = content[position : position + size]
                position += size
            if len(layers) != len(places) or str(name) in models or len(models) == most:
                raise ValueError(f"more than {most}, or one of them twice")
            models[str(name)] = PackedModel(str(base), layers, bool(not_kept))
        if position != len(content):
            raise ValueError(f"{len(content) - position} bytes follow the last")
    except (struct.error, ValueError, TypeError, RecursionError) as error:
        raise PackingError(f"The packed models cannot be read: {error}.") from None
    return models


def _pack_tensor(spec: TensorSpec, vector: Vector, base: Copy | None, codec: Codec, rng: np.random.Generator) -> bytes:
    values = vector[spec.columns]
    if codec == "float32" or not np.issubdtype(np.dtype(spec.dtype), np.floating):
        return encode("float32", values, rng)
    if base is None or spec.layer not in base.layers:
        return encode(_WHOLE, values, rng)
    difference = encode(codec, values - base.vector[spec.columns], rng)
    return bytes([difference[0] | _DIFFERENCE]) + difference[1:]


def _unpack_tensor(spec: TensorSpec, content: memoryview, base: Copy | None, vector: Vector) -> int:
    """Write a tensor's values into the vector; returns how many bytes they took. Its mark is cleared in place."""
    is_difference = bool(content) and bool(content[0] & _DIFFERENCE)
    if is_difference:
        content[0] &= ~_DIFFERENCE
    try:
        values, taken = decode(content, spec.width)
    except CodecError as error:
        raise PackingError(f"Tensor {spec.name!r} cannot be decoded: {error}") from None
    except Exception as error:  # whatever a codec does not check itself
        raise PackingError(f"Tensor {spec.name!r} cannot be decoded: {type(error).__name__}.") from error
    if is_difference:
        if base is None or spec.layer not in base.layers:
            raise PackingError(f"Tensor {spec.name!r} is a difference, and there is no copy to add it to.")
        with np.errstate(over="ignore", invalid="ignore"):
            values = base.vector[spec.columns] + values
    if not np.isfinite(values).all():
        raise PackingError(f"Tensor {spec.name!r} holds values that are not finite.")
    vector[spec.columns] = values
    return taken


def _deflated(content: bytes) -> bytes:
    """Behind a byte that says which, the content or its deflated form, whichever is shorter.

    Huffman's code alone: the coded values repeat nothing that looking for repetitions would find, and it is fast.
    """
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    shorter = deflate.compress(content) + deflate.flush()
    return bytes([_DEFLATED]) + shorter if len(shorter) < len(content) else bytes([_PLAIN]) + content


def _inflated(content: bytes, most: int, layer: str) -> bytes:
    """The inverse; never more than ``most`` bytes, whatever was sent."""
    if len(content) > 1 + most:
        raise PackingError(f"Layer {layer!r} is too long: {len(content)} bytes, and at most {1 + most}.")
    if content[:1] == bytes([_PLAIN]):
        return content[1:]
    try:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        inflated = inflate.decompress(content[1:], most)
    except zlib.error as error:
        raise PackingError(f"Layer {layer!r} cannot be inflated: {error}.") from None
    if content[:1] != bytes([_DEFLATED]) or not inflate.eof or inflate.unused_data:
        raise PackingError(f"Layer {layer!r} is cut off, too long or of an unknown form.")
    return inflated
