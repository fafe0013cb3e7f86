"""How many bytes a message's content is on the wire: as it is, and as it would have been without compression."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from flwr.common.serde import recorddict_to_proto

from common import packing
from common.errors import BouquetError
from common.layout import ParameterLayout
from common.packed import packed_blocks
from common.packing import PackedModel
from common.protocol import tensor_bytes
from common.records import records_of

_NPY_HEADER = 128  # bytes of NumPy's own before each array that is not packed


def payload_bytes(content: RecordDict, layout: ParameterLayout | None = None) -> tuple[int, dict[str, int]]:
    """Bytes of a message's content: in all, and of the arrays by layer.

    Counted as Flower puts them on the wire: each array as its serialised bytes, the other records as protobuf.
    """
    owner = {spec.name: spec.layer for spec in layout.tensors} if layout else {}
    by_layer: dict[str, int] = {}
    total = 0
    for record in records_of(content, ArrayRecord).values():
        total += sum(len(array.data) for array in record.values())
        for name, size in tensor_bytes(record).items():
            layer = owner.get(name) or name.rpartition(".")[0] or name  # frozen layers are not in the layout
            by_layer[layer] = by_layer.get(layer, 0) + size
    for packed in _packed_models(content, layout):
        for layer, coded in packed.layers.items():
            by_layer[layer] = by_layer.get(layer, 0) + len(coded)
    # Of what it is given it asks for no more than its items; a RecordDict would check each of them once more.
    rest = cast(RecordDict, {n: r for n, r in content.items() if not isinstance(r, ArrayRecord)})
    return total + recorddict_to_proto(rest).ByteSize(), by_layer


def unpacked_bytes(content: RecordDict, layout: ParameterLayout | None = None, total: int | None = None) -> int:
    """What `payload_bytes` would have counted, had the models in this content not been packed.

    ``total`` is what it did count, where that is known.
    """
    total = payload_bytes(content)[0] if total is None else total
    if not (blocks := packed_blocks(content)):
        return total
    total -= sum(len(block) for block in blocks)
    for packed in _packed_models(content, layout):
        specs = [spec for spec in layout.tensors if spec.layer in packed.layers] if layout else []
        total += sum(np.dtype(spec.dtype).itemsize * spec.size + _NPY_HEADER for spec in specs)
    return total


def _packed_models(content: RecordDict, layout: ParameterLayout | None) -> list[PackedModel]:
    """The packed models of a content; a block that cannot be read, which is refused elsewhere, holds none."""
    models: list[PackedModel] = []
    if layout is None:
        return models
    for block in packed_blocks(content):
        with suppress(BouquetError):
            models += packing.from_bytes(block, layout).values()
    return models
