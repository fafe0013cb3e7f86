"""The wire: the only place that knows the names of records and keys in a message, and checks what arrives.

Server → device, ``train`` and ``evaluate``: one ArrayRecord a model (the first is ``arrays``, the names of others
are the strategy's), holding only the layers that are meant to travel, and a ConfigRecord ``config``.
Device → server: ``arrays`` with the layers that were asked for, a MetricRecord ``metrics`` with at least
``num-examples``, and a ConfigRecord ``client`` with the device's identity. Everything but ``arrays``, ``config``
and ``metrics`` is optional, so that Flower's own ClientApps and strategies fit at either end.

Between Bouquet's own apps the tensors of a record are joined to one array (`common.npy`); a device answers as it was
asked. In a run that compresses, the models of a message are one block of bytes in its ConfigRecord: `common.packed`.

``query.identify`` asks a node who it is before the first round; it costs no model and no PyTorch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.typing import ConfigRecordValues
from numpy.typing import NDArray

from common import npy, packed
from common.errors import BouquetError
from common.layout import HEADER_BYTES, LayoutError, ParameterLayout, Vector
from common.npy import Part
from common.packed import Packing, Unpacked
from common.packing import MOST_MODELS, Copy
from common.records import config_of, records_of, size_of
from common.texts import plain, plain_values

VERSION = 1

ARRAYS = "arrays"
CONFIG = "config"
METRICS = "metrics"
CLIENT = "client"

NUM_EXAMPLES = "num-examples"
CLIENT_ID = "client-id"
ROUND = "server-round"
IDENTIFY = "query.identify"
NOTICE = "query.notice"  # the server has something to say to the device's owner, in its log
TEXT = "text"

# What a device says of itself beside its name, when it is asked who it is.
DEVICE_ID = "device-id"  # of its state folder; stays when its name changes
RELEASE = "release"  # of Bouquet
REFUSES = "refuses"  # why the device's owner lets it take no part in the run

# By class, of a device whose owner lets it say so: how many samples it holds, how many it tests, and how many of
# these the model that it was sent gets right.
CLASS_SAMPLES = "class-samples"
CLASS_TESTED = "class-tested"
CLASS_FOUND = "class-found"

# Metrics a Bouquet device reports, all optional for the server.
LOSS = "loss"  # mean training loss of the model it started from, before training
TRAIN_LOSS = "train-loss"  # mean loss over the mini-batches of the last local epoch
TEST_EXAMPLES = "test-examples"
ACCURACY = "accuracy"  # on its test part, with the model it started from
F1 = "f1"
TEST_LOSS = "test-loss"
ACCURACY_TRAINED = "accuracy-trained"  # on its test part, after training
GROUP = "group"  # true group where the partition has one, else -1
STATE_LOST = "state-lost"  # 1 when it was to continue from layers that it no longer has
LEFT_OUT = "left-out"  # photos that could not be read, which its owner allows to leave out
VALIDATION_ACCURACY = "validation-accuracy"
VALIDATION_EXAMPLES = "validation-examples"

STANDARD = "standard"  # the procedure that most methods need
BACKBONE = "backbone"  # record with what the device keeps of the model beside what travels (`strategies.backbone`)
SPARE = "spare"  # record with layers for a device that may have lost its own; one that has them passes them over

_VERSION_KEY = "bouquet-protocol"
_RUN = "run-id"
_START = "start"
_PROCEDURE = "procedure"
_UPLOAD = "upload"
_ANCHORS = "proximal-anchors"
_WEIGHTS = "proximal-weights"
_FLOWER_PROXIMAL = "proximal-mu"  # the key of flwr's FedProx
_VALIDATION_FRACTION = "validation-fraction"
_NEWCOMER = "newcomer"
_BACKBONE_DIGEST = "backbone"
_JOINED = "joined-tensors"

# How `client.trust` says what is installed on a device that does not run the server's app.
_INSTALLED = re.compile(r"the app of its own installation \(bouquet-fl ([^\s()]{1,64})\)")

# Bytes of all that is no model in a message, whatever the model: the counts of 10,000 classes are a quarter of it.
_MOST_BESIDE = 2**20

Scalar = ConfigRecordValues
Asked = ParamSpec("Asked")
Found = TypeVar("Found")


class ProtocolError(BouquetError):
    """A message that does not hold what was agreed."""


@dataclass(frozen=True)
class Backbone:
    """What a device keeps of the model beside what travels, by its digest; ``arrays`` where the message holds them."""

    digest: str
    arrays: Mapping[str, NDArray[Any]] | None = None


@dataclass(frozen=True)
class Payload:
    """A model, or some of its layers, on its way to a device.

    ``exact`` is for what is no model, or must not lose a bit: it is never compressed.
    """

    vector: Vector
    layers: tuple[str, ...] | None = None  # None: all
    exact: bool = False


@dataclass(frozen=True)
class Proximal:
    """A proximal term (weight / 2) · ‖w − anchor‖² over the layers that the anchor holds."""

    anchor: str  # name of the record that holds it
    weight: float


@dataclass(frozen=True)
class Instruction:
    """What one device is sent in a round, and what it is to send back.

    ``start`` is the model that local training begins with: ``"received"`` takes the layers of ``arrays`` and, for
    layers that are not there, the device's own; ``"personal"`` takes the device's own model of the round before.
    ``upload`` names the layers that come back, None for all, an empty tuple for none. ``procedure`` is what the device
    does (`client.procedures`). ``newcomer`` says that the server has had no reply of this device: what it does not
    have, it has not lost.
    """

    models: Mapping[str, Payload] = field(default_factory=dict)
    start: str = "received"
    upload: tuple[str, ...] | None = None
    proximal: tuple[Proximal, ...] = ()
    procedure: str = STANDARD
    newcomer: bool = False
    config: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Received:
    """An instruction as it arrived at the device, checked against the device's own model."""

    round: int
    run: str
    models: dict[str, Payload]
    start: str
    upload: tuple[str, ...]
    proximal: tuple[Proximal, ...]
    validation_fraction: float
    procedure: str
    newcomer: bool
    config: dict[str, Scalar]
    joined: bool = False  # whether the tensors of the reply are to be joined
    unpacked: Unpacked | None = None  # None in a run that does not compress
    backbone: Backbone | None = None  # None where everything travels


@dataclass(frozen=True)
class ClientReply:
    """A device's reply, checked against the layout; columns of layers that were not uploaded are zero."""

    client: str
    node: int
    vector: Vector
    layers: tuple[str, ...]
    num_examples: int
    metrics: dict[str, float]
    config: dict[str, Scalar]
    holds: Mapping[str, str] = field(default_factory=dict)  # record → digest of the copy that the device has of it
    copy: Copy | None = None  # what both ends now hold of a packed model


class Encoder:
    """Builds messages; a model that goes to several devices is serialised once.

    With ``joined`` the tensors of a record travel as one, which no other package's ClientApp reads.
    """

    def __init__(
        self, layout: ParameterLayout, arrays_key: str = ARRAYS, config_key: str = CONFIG, joined: bool = False
    ) -> None:
        self.layout = layout
        self.arrays_key = arrays_key
        self.config_key = config_key
        self.joined = joined
        self._records: dict[tuple[int, tuple[str, ...] | None], tuple[ArrayRecord, Vector]] = {}

    def arrays(self, payload: Payload) -> ArrayRecord:
        """The layers of a payload as an ArrayRecord, in the model's own dtypes."""
        key = (payload.vector.ctypes.data, payload.layers)
        if key not in self._records:
            # the vector is kept beside the record: its address must not be reused while it is a key
            self._records[key] = (self._record(payload), payload.vector)
        return self._records[key][0]

    def _record(self, payload: Payload) -> ArrayRecord:
        return to_record(self.layout, payload.vector, payload.layers, self.joined)

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
        values: dict[str, Scalar] = {**config, ROUND: round_, _VERSION_KEY: VERSION, _RUN: run, **instruction.config}
        if instruction.start != "received":
            values[_START] = instruction.start
        if instruction.procedure != STANDARD:
            values[_PROCEDURE] = instruction.procedure
        if instruction.newcomer:
            values[_NEWCOMER] = True
        if instruction.upload is not None:
            # Flower drops empty lists' type on the way, so the names travel as one text
            values[_UPLOAD] = ",".join(instruction.upload)
        if instruction.proximal:
            values[_ANCHORS] = [term.anchor for term in instruction.proximal]
            values[_WEIGHTS] = [float(term.weight) for term in instruction.proximal]
        records: dict[str, ArrayRecord | ConfigRecord] = {}
        if backbone is not None:
            values[_BACKBONE_DIGEST] = backbone.digest
            if backbone.arrays is not None:
                records[BACKBONE] = _record_of(backbone.arrays, self.joined)
        if self.joined:
            values[_JOINED] = True
        if packing is not None:
            values |= packed.to_config(packing, self.layout)
        for name, payload in instruction.models.items() if packing is None else ():
            records[self.arrays_key if name == ARRAYS else name] = self.arrays(payload)
        records[self.config_key] = ConfigRecord(values)
        return RecordDict(records)  # type: ignore[arg-type]


def to_record(
    layout: ParameterLayout, vector: Vector, layers: Sequence[str] | None = None, joined: bool = False
) -> ArrayRecord:
    """The layers of a flat vector (d,) as Flower's ArrayRecord, an array a tensor, or all ``joined`` to one."""
    return _record_of(layout.unflatten(vector, layers), joined)


def _record_of(arrays: Mapping[str, NDArray[Any]], joined: bool) -> ArrayRecord:
    if joined and len(arrays) > 1:
        return npy.joined({name: npy.encode_part(array) for name, array in arrays.items()})
    return npy.record_of({name: npy.encode(array) for name, array in arrays.items()})


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


def from_record(record: Mapping[str, Array]) -> dict[str, NDArray[Any]]:
    """The arrays of an ArrayRecord by name; one that cannot be decoded is an error that names it."""
    return decoded(separate(record))


def decoded(encoded: Mapping[str, Array | Part], copy: bool = True) -> dict[str, NDArray[Any]]:
    """What `separate` gave, decoded; without ``copy`` arrays that cannot be written to."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, array in encoded.items():
        try:
            arrays[name] = npy.decode(array, copy)
        except Exception as error:  # NumPy parses a header as Python, which spoiled bytes can make fail in any way
            raise ProtocolError(f"Tensor {name!r} cannot be decoded: {error}.") from None
    return arrays


def separate(record: Mapping[str, Array]) -> dict[str, Array | Part]:
    """The arrays of an ArrayRecord by name, not decoded yet, also of one in which they are joined."""
    found: dict[str, Array | Part] = {}
    try:
        for name, array in npy.arrays_of(record):
            if name in found:
                raise ValueError(f"{name[:80]!r} is there twice")
            found[name] = array
    except Exception as error:  # as above: a header is parsed
        raise ProtocolError(f"The tensors cannot be decoded: {error}.") from None
    return found


def separate_of(record: Mapping[str, Array], layout: ParameterLayout) -> dict[str, Array | Part]:
    """What `separate` gives, of a model. Raises `ProtocolError`, naming the tensor, for one that is too large.

    Before anything is decoded: a tensor is refused by what it takes up, not by what it turns out to be.
    """
    arrays = separate(record)
    for name, array in arrays.items():
        own = layout.num_bytes.get(name, 0)
        if len(array.data) > 2 * own + HEADER_BYTES:
            raise ProtocolError(f"Tensor {name!r} takes {len(array.data)} bytes; in this model it has {own}.")
    return arrays


def tensor_bytes(record: Mapping[str, Array]) -> dict[str, int]:
    """Bytes of each tensor of an ArrayRecord; of spoiled ones, which are refused elsewhere, none."""
    try:
        return dict(npy.sizes_of(record))
    except Exception:  # as above
        return {}


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
    config: dict[str, Any] = dict(config_of(content, CONFIG))
    version = config.pop(_VERSION_KEY, VERSION)
    if version != VERSION:
        raise ProtocolError(
            f"The server speaks version {version} of Bouquet's protocol, this device version {VERSION}: "
            "install the same release of Bouquet at both ends."
        )
    records = records_of(content, ArrayRecord)
    kept = records.pop(BACKBONE, None)  # of layers that the layout does not have
    if len(records) > MOST_MODELS:
        raise ProtocolError(f"The server sends {len(records)} models, and at most {MOST_MODELS} go into a message.")
    check_size({n: r for n, r in content.items() if n != BACKBONE}, layout, len(records) or MOST_MODELS)
    digest = str(config.pop(_BACKBONE_DIGEST, ""))
    models = {name: _read_model(name, record, layout) for name, record in records.items()}
    run = str(config.pop(_RUN, ""))
    if unpacked := packed.from_config(config, layout, lambda digest: find(run, digest) if find else None):
        models |= {name: Payload(vector, layers) for name, (vector, layers) in unpacked.models.items()}
    start = config.pop(_START, "received")
    if start not in ("received", "personal"):
        raise ProtocolError(f"The server asks to start from {start!r}; this device knows 'received' and 'personal'.")
    upload = config.pop(_UPLOAD, None)
    anchors, weights = config.pop(_ANCHORS, []), config.pop(_WEIGHTS, [])
    proximal = [Proximal(anchor, weight) for anchor, weight in zip(anchors, weights, strict=True)]
    if flower := config.pop(_FLOWER_PROXIMAL, 0.0):
        proximal.append(Proximal(ARRAYS, flower))
    for term in proximal:
        if term.anchor not in models:
            raise ProtocolError(f"The proximal term's anchor {term.anchor!r} is not in the message.")
    return Received(
        round=int(config.pop(ROUND, 0)),
        run=run,
        models=models,
        start=start,
        upload=layout.layers if upload is None else layout.check_layers(name for name in upload.split(",") if name),
        proximal=tuple(proximal),
        procedure=str(config.pop(_PROCEDURE, STANDARD)),
        newcomer=bool(config.pop(_NEWCOMER, False)),
        joined=bool(config.pop(_JOINED, False)),
        validation_fraction=float(config.pop(_VALIDATION_FRACTION, 0.0)),
        unpacked=unpacked,
        backbone=Backbone(digest, None if kept is None else from_record(kept)) if digest else None,
        config=config,
    )


def _read_model(name: str, record: ArrayRecord, layout: ParameterLayout) -> Payload:
    arrays = decoded(separate_of(record, layout), copy=False)
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


def holding_out(fraction: float) -> dict[str, Scalar]:
    """Config that makes a device hold a fixed part of its training data out and report its accuracy there."""
    return {_VALIDATION_FRACTION: fraction}


def reply(
    message: Message,
    client: str,
    metrics: Mapping[str, float | int],
    arrays: ArrayRecord | None = None,
    config: Mapping[str, Scalar] | None = None,
) -> Message:
    """A device's reply. With no layers to upload there is no ArrayRecord at all."""
    records: dict[str, Any] = {
        METRICS: MetricRecord(dict(metrics)),
        CLIENT: ConfigRecord({CLIENT_ID: client, **(config or {})}),
    }
    if arrays:
        records[ARRAYS] = arrays
    return Message(RecordDict(records), reply_to=message)


def client_id(message: Message) -> str:
    """The stable identity that a reply carries, else the node's id."""
    if message.has_content():
        given = config_of(message.content, CLIENT).get(CLIENT_ID)
        if isinstance(given, str) and (name := plain(given)):
            return name
    return f"node-{message.metadata.src_node_id}"


def about(message: Message) -> dict[str, Scalar]:
    """What a device says of itself, its texts `plain`; of an error the release that a refusal of the app names."""
    if not message.has_content():
        found = _INSTALLED.search(plain(message.error.reason or ""))
        return {RELEASE: found[1]} if found else {}
    return plain_values(config_of(message.content, CLIENT))
