"""Bytes of messages on the wire, by direction, layer and client: as they are, and as without compression."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict

from bouquet.common.compression import delta
from bouquet.common.compression.delta import PackedModel
from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol.compressed import packed_blocks
from bouquet.common.protocol.records import records_of
from bouquet.common.wire.flower import wire_bytes

_NPY_HEADER = 128  # bytes of NumPy's own before each array that is not packed


def payload_bytes(content: RecordDict, layout: ParameterLayout | None = None) -> tuple[int, dict[str, int]]:
    """Bytes of a message's content: in all, and of the arrays by layer.

    Counted as Flower puts them on the wire: each array as its serialised bytes, the other records as protobuf.
    """
    owner = {spec.name: spec.layer for spec in layout.tensors} if layout else {}
    by_layer: dict[str, int] = {}
    total = 0
    for record in records_of(content, ArrayRecord).values():
        for name, array in record.items():
            size = len(array.data)
            total += size
            layer = owner.get(name) or name.rpartition(".")[0] or name  # frozen layers are not in the layout
            by_layer[layer] = by_layer.get(layer, 0) + size
    for packed in _packed_models(content, layout):
        for layer, coded in packed.layers.items():
            by_layer[layer] = by_layer.get(layer, 0) + len(coded)
    rest = {n: r for n, r in content.items() if not isinstance(r, ArrayRecord)}
    return total + wire_bytes(rest), by_layer


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
            models += delta.from_bytes(block, layout).values()
    return models


class Bytes:
    """Payload bytes of messages, summed by direction, layer and client."""

    def __init__(self, layout: ParameterLayout | None = None) -> None:
        self.layout = layout
        self.up = self.down = 0
        self.up_plain = self.down_plain = 0  # what they would have been without compression
        self.by_layer: dict[str, dict[str, int]] = {"up": {}, "down": {}}
        self.by_client: dict[str, list[int]] = {}
        self._known = frozenset(layout.layers if layout else ())

    def count(self, messages: Iterable[Message], names: Mapping[int, str]) -> None:
        """Add messages; one that goes to a node counts as down, one that comes from a node as up."""
        for message in messages:
            if not message.has_content():
                continue
            total, by_layer = payload_bytes(message.content, self.layout)
            plain = unpacked_bytes(message.content, self.layout, total)
            upwards = message.metadata.reply_to_message_id != ""
            node = message.metadata.src_node_id if upwards else message.metadata.dst_node_id
            client = self.by_client.setdefault(names.get(node, f"node-{node}"), [0, 0])
            client[0 if upwards else 1] += total
            layers = self.by_layer["up" if upwards else "down"]
            for layer, count in by_layer.items():
                if not upwards or layer in self._known:  # what a device calls something else is in the sums alone
                    layers[layer] = layers.get(layer, 0) + count
            if upwards:
                self.up += total
                self.up_plain += plain
            else:
                self.down += total
                self.down_plain += plain
