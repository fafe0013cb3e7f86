"""What a message says, as objects: an instruction and its models, what a device received, what it replied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from bouquet.common.compression.delta import Copy
from bouquet.common.errors import BouquetError
from bouquet.common.parameters.layout import Vector
from bouquet.common.protocol.compressed import Unpacked
from bouquet.common.protocol.names import ARRAYS, STANDARD, Scalar


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

    Examples
    --------
    The layer ``head`` alone, out of a model (d,):

    >>> bouquet.Payload(np.zeros(6, dtype=np.float32), layers=("head",)).layers
    ('head',)
    """

    vector: Vector
    layers: tuple[str, ...] | None = None  # None: all
    exact: bool = False


@dataclass(frozen=True)
class Proximal:
    """A proximal term (weight / 2) · ‖w − anchor‖² over the layers that the anchor holds.

    Examples
    --------
    FedProx: stay near what was received.

    >>> model = np.zeros(6, dtype=np.float32)
    >>> instruction = bouquet.one_model(model, proximal=(bouquet.Proximal("arrays", 0.1),))
    >>> instruction.proximal[0].weight
    0.1
    """

    anchor: str  # name of the record that holds it
    weight: float


@dataclass(frozen=True)
class Instruction:
    """What one device is sent in a round, and what it is to send back.

    ``start`` is the model that local training begins with: ``"received"`` takes the layers of ``arrays`` and, for
    layers that are not there, the device's own; ``"personal"`` takes the device's own model of the round before.
    ``upload`` names the layers that come back, None for all, an empty tuple for none. ``procedure`` is what the device
    does (`bouquet.client.procedures.registry`). ``newcomer`` says that the server has had no reply of this device: what
    it does not have, it has not lost.

    Examples
    --------
    A model to train, of which one layer comes back:

    >>> model = np.zeros(6, dtype=np.float32)
    >>> bouquet.Instruction(models={"arrays": bouquet.Payload(model)}, upload=("head",)).is_plain
    False
    """

    models: Mapping[str, Payload] = field(default_factory=dict)
    start: str = "received"
    upload: tuple[str, ...] | None = None
    proximal: tuple[Proximal, ...] = ()
    procedure: str = STANDARD
    newcomer: bool = False
    config: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether it asks to train the one whole model that it holds, and to send it back: any ClientApp does that."""
        payload = self.models.get(ARRAYS)
        whole = len(self.models) == 1 and payload is not None and payload.layers is None and self.upload is None
        return whole and self.start == "received" and not self.proximal and self.procedure == STANDARD


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
