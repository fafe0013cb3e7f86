"""Making messages: a server's instructions, and a device's replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import compressed, names, tensors
from bouquet.common.protocol.compressed import Packing
from bouquet.common.protocol.messages import Backbone, Instruction, Payload
from bouquet.common.protocol.names import Scalar


class Encoder:
    """Builds messages; a model that goes to several devices is serialised once."""

    def __init__(self, layout: ParameterLayout, arrays_key: str = names.ARRAYS, config_key: str = names.CONFIG) -> None:
        self.layout = layout
        self.arrays_key = arrays_key
        self.config_key = config_key
        self._records: dict[tuple[int, tuple[str, ...] | None], tuple[ArrayRecord, Vector]] = {}

    def arrays(self, payload: Payload) -> ArrayRecord:
        """The layers of a payload as an ArrayRecord, in the model's own dtypes."""
        key = (payload.vector.ctypes.data, payload.layers)
        if key not in self._records:
            # the vector is kept beside the record: its address must not be reused while it is a key
            self._records[key] = (to_record(self.layout, payload.vector, payload.layers), payload.vector)
        return self._records[key][0]

    def content(
        self,
        instruction: Instruction,
        round_: int,
        run: str,
        config: Mapping[str, Scalar],
        packing: Packing | None = None,
        backbone: Backbone | None = None,
    ) -> RecordDict:
        """The content of a train or evaluate message; ``config`` is what every device is told."""
        values: dict[str, Scalar] = {
            **config,
            names.ROUND: round_,
            names.VERSION_KEY: names.VERSION,
            names.RUN: run,
            **instruction.config,
        }
        if instruction.start != "received":
            values[names.START] = instruction.start
        if instruction.procedure != names.STANDARD:
            values[names.PROCEDURE] = instruction.procedure
        if instruction.newcomer:
            values[names.NEWCOMER] = True
        if instruction.upload is not None:
            # Flower drops empty lists' type on the way, so the names travel as one text
            values[names.UPLOAD] = ",".join(instruction.upload)
        if instruction.proximal:
            values[names.ANCHORS] = [term.anchor for term in instruction.proximal]
            values[names.WEIGHTS] = [float(term.weight) for term in instruction.proximal]
        records: dict[str, ArrayRecord | ConfigRecord] = {}
        if backbone is not None:
            values[names.BACKBONE_DIGEST] = backbone.digest
            if backbone.arrays is not None:
                records[names.BACKBONE] = _record_of(backbone.arrays)
        if packing is not None:
            values |= compressed.to_config(packing, self.layout)
        for name, payload in instruction.models.items() if packing is None else ():
            records[self.arrays_key if name == names.ARRAYS else name] = self.arrays(payload)
        records[self.config_key] = ConfigRecord(values)
        return RecordDict(records)  # type: ignore[arg-type]


def to_record(layout: ParameterLayout, vector: Vector, layers: Sequence[str] | None = None) -> ArrayRecord:
    """The layers of a flat vector (d,) as Flower's ArrayRecord, an array a tensor."""
    return _record_of(layout.unflatten(vector, layers))


def _record_of(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    return tensors.record_of({name: tensors.encode(array) for name, array in arrays.items()})


def holding_out(fraction: float) -> dict[str, Scalar]:
    """Config that makes a device hold a fixed part of its training data out and report its accuracy there."""
    return {names.VALIDATION_FRACTION: fraction}


def reply(
    message: Message,
    client: str,
    metrics: Mapping[str, float | int],
    arrays: ArrayRecord | None = None,
    config: Mapping[str, Scalar] | None = None,
) -> Message:
    """A device's reply. With no layers to upload there is no ArrayRecord at all."""
    records: dict[str, Any] = {
        names.METRICS: MetricRecord(dict(metrics)),
        names.CLIENT: ConfigRecord({names.CLIENT_ID: client, **(config or {})}),
    }
    if arrays:
        records[names.ARRAYS] = arrays
    return Message(RecordDict(records), reply_to=message)
