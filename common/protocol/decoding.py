"""Reading messages, and checking what arrives."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from flwr.app import Array, ArrayRecord, Message
from numpy.typing import NDArray

from bouquet.common.compression.delta import MOST_MODELS, Copy
from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import HEADER_BYTES, LayoutError, ParameterLayout, Vector
from bouquet.common.protocol import compressed, names, tensors
from bouquet.common.protocol.messages import Backbone, Payload, ProtocolError, Proximal, Received
from bouquet.common.protocol.names import Scalar
from bouquet.common.protocol.records import config_of, records_of, size_of
from bouquet.common.texts import plain, plain_values

# How `bouquet.client.trust.policy` says what is installed on a device that does not run the server's app.
_INSTALLED = re.compile(r"the code of its own installation \(bouquet-fl ([^\s(),]{1,64})[,)]")

# Bytes of all that is no model in a message, whatever the model: the counts of 10,000 classes are a quarter of it.
_MOST_BESIDE = 2**20
Asked = ParamSpec("Asked")
Found = TypeVar("Found")


def refusing(read: Callable[Asked, Found]) -> Callable[Asked, Found]:
    """Make whatever fails while a message is read a `ProtocolError`: the sender's fault, which ends nothing else."""

    @wraps(read)
    def clearly(*args: Asked.args, **kwargs: Asked.kwargs) -> Found:
        try:
            return read(*args, **kwargs)
        except BouquetError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {plain(str(error))}"
            raise ProtocolError(f"The message cannot be read: {reason}.") from error

    return clearly


def most_bytes(layout: ParameterLayout | None, models: int = 1) -> int:
    """Bytes that the content of a message with so many models may take; without a layout, of one that has none."""
    return _MOST_BESIDE + (models * layout.most_bytes if layout else 0)


def check_size(content: Mapping[str, Mapping[str, Any]], layout: ParameterLayout | None, models: int = 1) -> None:
    """Raise `ProtocolError` for a content of more than `most_bytes`, before anything of it is decoded."""
    if (size := size_of(content)) > (most := most_bytes(layout, models)):
        raise ProtocolError(f"The message takes {size} bytes; with this model it has at most {most}.")


def from_record(record: Mapping[str, Array], copy: bool = True) -> dict[str, NDArray[Any]]:
    """The arrays of an ArrayRecord by name; without ``copy`` such that cannot be written to.

    Raises `ProtocolError`, naming the tensor, for one that cannot be decoded.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name, array in record.items():
        try:
            arrays[name] = tensors.decode(array, copy)
        except Exception as error:  # NumPy parses a header as Python, which spoiled bytes can make fail in any way
            raise ProtocolError(f"Tensor {name!r} cannot be decoded: {error}.") from None
    return arrays


def _arrays_of(record: Mapping[str, Array], layout: ParameterLayout) -> dict[str, NDArray[Any]]:
    """The arrays of a model. Raises `ProtocolError`, naming the tensor, for one that is too large.

    Before anything is decoded: a tensor is refused by what it takes up, not by what it turns out to be.
    """
    for name, array in record.items():
        own = layout.num_bytes.get(name, 0)
        if len(array.data) > 2 * own + HEADER_BYTES:
            raise ProtocolError(f"Tensor {name!r} takes {len(array.data)} bytes; in this model it has {own}.")
    return from_record(record, copy=False)


@refusing
def read_instruction(
    message: Message, layout: ParameterLayout, find: Callable[[str, str], Copy | None] | None = None
) -> Received:
    """Check a train or evaluate message at the device.

    ``find`` gives the copy that the device holds in a run under a digest. Raises `ProtocolError` or `LayoutError`
    that names the record and tensor; a layer is present whole or not at all. Raises `LostCopyError` for a difference
    to a copy that the device does not hold.
    """
    content = message.content
    config: dict[str, Any] = dict(config_of(content, names.CONFIG))
    version = config.pop(names.VERSION_KEY, names.VERSION)
    if version != names.VERSION:
        raise ProtocolError(
            f"The server speaks version {version} of Bouquet's protocol, this device version {names.VERSION}: "
            "install the same release of Bouquet at both ends."
        )
    records = records_of(content, ArrayRecord)
    kept = records.pop(names.BACKBONE, None)  # of layers that the layout does not have
    if len(records) > MOST_MODELS:
        raise ProtocolError(f"The server sends {len(records)} models, and at most {MOST_MODELS} go into a message.")
    check_size({n: r for n, r in content.items() if n != names.BACKBONE}, layout, len(records) or MOST_MODELS)
    digest = str(config.pop(names.BACKBONE_DIGEST, ""))
    models = {name: _read_model(name, record, layout) for name, record in records.items()}
    run = str(config.pop(names.RUN, ""))
    if unpacked := compressed.from_config(config, layout, lambda digest: find(run, digest) if find else None):
        models |= {name: Payload(vector, layers) for name, (vector, layers) in unpacked.models.items()}
    start = config.pop(names.START, "received")
    if start not in ("received", "personal"):
        raise ProtocolError(f"The server asks to start from {start!r}; this device knows 'received' and 'personal'.")
    upload = config.pop(names.UPLOAD, None)
    anchors, weights = config.pop(names.ANCHORS, []), config.pop(names.WEIGHTS, [])
    proximal = [Proximal(anchor, weight) for anchor, weight in zip(anchors, weights, strict=True)]
    if flower := config.pop(names.FLOWER_PROXIMAL, 0.0):
        proximal.append(Proximal(names.ARRAYS, flower))
    for term in proximal:
        if term.anchor not in models:
            raise ProtocolError(f"The proximal term's anchor {term.anchor!r} is not in the message.")
    return Received(
        round=int(config.pop(names.ROUND, 0)),
        run=run,
        models=models,
        start=start,
        upload=layout.layers if upload is None else layout.check_layers(name for name in upload.split(",") if name),
        proximal=tuple(proximal),
        procedure=str(config.pop(names.PROCEDURE, names.STANDARD)),
        newcomer=bool(config.pop(names.NEWCOMER, False)),
        validation_fraction=float(config.pop(names.VALIDATION_FRACTION, 0.0)),
        unpacked=unpacked,
        backbone=Backbone(digest, None if kept is None else from_record(kept)) if digest else None,
        config=config,
    )


def _read_model(name: str, record: ArrayRecord, layout: ParameterLayout) -> Payload:
    arrays = _arrays_of(record, layout)
    owner = {spec.name: spec.layer for spec in layout.tensors}
    if unknown := [tensor for tensor in arrays if tensor not in owner]:
        raise LayoutError(
            f"Record {name!r}: tensor {unknown[0]!r} is not in this device's model; "
            "server and device have different models."
        )
    layers = layout.check_layers({owner[tensor] for tensor in arrays})
    try:
        return Payload(layout.flatten(arrays, layers), layers)
    except LayoutError as error:
        raise LayoutError(f"Record {name!r}: {error}") from None


def read_model(record: ArrayRecord | None, layout: ParameterLayout, layers: tuple[str, ...]) -> Vector:
    """The layers of a record as a vector (d,). Raises `BouquetError`, naming the tensor, for what does not fit."""
    return layout.flatten({} if record is None else _arrays_of(record, layout), layers)


def about(message: Message) -> dict[str, Scalar]:
    """What a device says of itself, its texts `plain`; of an error the release that a refusal of the code names."""
    if not message.has_content():
        match = _INSTALLED.search(plain(message.error.reason or ""))
        return {names.RELEASE: match[1]} if match else {}
    return plain_values(config_of(message.content, names.CLIENT))
