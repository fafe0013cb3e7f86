"""The part of `bouquet.common.protocol` for runs that compress: what a message holds in place of arrays.

One block of bytes (`bouquet.common.compression.delta`) in the ConfigRecord, because Flower moves each record, and each
array, by calls of its own: a model of ten tensors costs more of them than of a compressed model.

Server → device: the models, how the device is to pack its own, and which of the round's messages to it this is.
Device → server: its model, and which copies of which records it now holds.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, RecordDict
from flwr.app.typing import ConfigRecordValues

from bouquet.common.compression.codecs import CODECS, Codec
from bouquet.common.compression.delta import (
    MOST_MODELS,
    Copy,
    Find,
    PackedModel,
    PackingError,
    from_bytes,
    to_bytes,
    unpack_model,
)
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol.records import records_of

_BLOCK = "packed"  # in the config, and in the reply's: the models
_CODEC = "codec"  # of the reply
_STEP = "step"  # from 0
_KNOWN = "known"  # digests: against no others may the device code its reply
_HOLDS = "holds"  # copies by record, as one text
_REPLY = "arrays"  # the name of the reply's only model
UPLOADED = "uploaded"  # of the copies that a device holds, that of what it sent last; no record is called so


@dataclass(frozen=True)
class Packing:
    """What a message to a device holds: models by record, how the reply is to be packed, the message's number."""

    models: Mapping[str, PackedModel]
    reply: Codec
    step: int = 0
    known: tuple[str, ...] = ()  # digests of the copies that the device is known to hold


@dataclass(frozen=True)
class Unpacked:
    """The same as a device reads it.

    ``models`` are vectors (d,) and the layers that came, ``copies`` what is to be kept of them, ``bases`` the digests
    of the copies that they were differences to, ``known`` those of all that the server knows this device to hold.
    """

    models: Mapping[str, tuple[Vector, tuple[str, ...]]]
    reply: Codec
    step: int
    known: frozenset[str]
    copies: Mapping[str, Copy]
    bases: frozenset[str]


@dataclass(frozen=True)
class UnpackedReply:
    """A device's model (d,), if it sent one, the copy of it, and the digests of the copies that it holds, by record."""

    vector: Vector
    copy: Copy | None
    holds: Mapping[str, str]


def to_config(packing: Packing, layout: ParameterLayout) -> dict[str, ConfigRecordValues]:
    """A packing as keys of a message's config."""
    return {
        _BLOCK: to_bytes(packing.models, layout),
        _CODEC: packing.reply,
        _STEP: packing.step,
        **({_KNOWN: list(packing.known)} if packing.known else {}),
    }


def from_config(config: MutableMapping[str, Any], layout: ParameterLayout, find: Find) -> Unpacked | None:
    """Take the keys of a packing out of a message's config; None where there are none.

    Raises `LostCopyError` for a difference to a copy that ``find`` does not give, and `PackingError`.
    """
    codec, step, block = config.pop(_CODEC, None), config.pop(_STEP, 0), config.pop(_BLOCK, None)
    known = config.pop(_KNOWN, [])
    if codec is None:
        return None
    if codec not in CODECS:
        raise PackingError(f"The server asks for the codec {codec!r}; there are {', '.join(CODECS)}.")
    packed = _read_block(block, layout, MOST_MODELS)
    unpacked = {name: unpack_model(layout, model, find) for name, model in packed.items()}
    return Unpacked(
        models={name: (vector, layout.check_layers(packed[name].layers)) for name, (vector, _) in unpacked.items()},
        reply=codec,
        step=int(step),
        known=frozenset(known if isinstance(known, list) else []),
        copies={name: copy for name, (_, copy) in unpacked.items() if not packed[name].not_kept},
        bases=frozenset(model.base for model in packed.values() if model.base),
    )


def reply_config(
    layout: ParameterLayout, packed: PackedModel | None, holds: Mapping[str, Copy]
) -> dict[str, ConfigRecordValues]:
    """What a device says in its reply: its model, and the copies that it holds."""
    values: dict[str, ConfigRecordValues] = {
        _HOLDS: ",".join(f"{name}={copy.digest}" for name, copy in sorted(holds.items()))
    }
    if packed is not None:
        values[_BLOCK] = to_bytes({_REPLY: packed}, layout)
    return values


def from_reply(
    about: MutableMapping[str, Any],
    config: Mapping[str, Any],
    layout: ParameterLayout,
    layers: tuple[str, ...],
    find: Find,
) -> UnpackedReply:
    """Read the packing in a reply's config, and take its keys out of what the device says; the model has these layers.

    Raises `PackingError` or `LayoutError` with the reason.
    """
    block, holds = config.get(_BLOCK), config.get(_HOLDS, "")
    about.pop(_BLOCK, None)
    about.pop(_HOLDS, None)
    pairs = [pair.partition("=") for pair in holds.split(",")] if isinstance(holds, str) else []
    held = {name: digest for name, _, digest in pairs if name and digest}
    if block is None:
        return UnpackedReply(layout.flatten({}, ()), None, held)
    models = _read_block(block, layout, 1)
    if list(models) != [_REPLY]:
        raise PackingError(f"The reply holds the packed models {', '.join(models) or 'none'}, not {_REPLY!r} alone.")
    if (sent := layout.check_layers(models[_REPLY].layers)) != layers:
        raise PackingError(f"The reply holds layers {', '.join(sent)}; it was asked for {', '.join(layers)}.")
    return UnpackedReply(*unpack_model(layout, models[_REPLY], find), held)


def packed_blocks(content: RecordDict) -> list[bytes]:
    """The packed models in a message's content, as they travel."""
    blocks = [record.get(_BLOCK) for record in records_of(content, ConfigRecord).values()]
    return [block for block in blocks if isinstance(block, bytes)]


def _read_block(block: Any, layout: ParameterLayout, most: int) -> dict[str, PackedModel]:
    if not isinstance(block, bytes):
        raise PackingError(f"The packed models are of type {type(block).__name__}, not bytes.")
    return from_bytes(block, layout, most)
