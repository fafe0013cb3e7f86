"""Filters, which stand between a method and its devices and see each message on its way out and each reply coming in.

A server puts them into ``MethodStrategy.filters``, in the order in which they are to see a message; methods know
nothing of them. What a filter remembers survives a restart by `Filter.dump` and `Filter.load`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from bouquet.common.compression.delta import Find
from bouquet.common.parameters.layout import ParameterLayout
from bouquet.common.protocol import Backbone, ClientReply, Instruction, Payload
from bouquet.common.protocol.arrival import Arrival
from bouquet.common.protocol.compressed import Packing


@dataclass(frozen=True)
class OutgoingInstruction:
    """What a client is to be sent; a message that does not train (``is_train``) changes nothing at the device."""

    layout: ParameterLayout
    client: str
    is_train: bool
    instruction: Instruction
    packing: Packing | None = None
    backbone: Backbone | None = None


class Filter:
    """The hooks of a filter, all of which have a default that does nothing."""

    key: ClassVar[str] = ""  # of what `dump` gives, in a checkpoint beside the fields of the state
    find: Find | None = None  # a copy of a model by its digest, of a filter whose devices send differences to copies

    def begin(self, round_: int) -> None:
        """A new round of training."""

    def outgoing(self, message: OutgoingInstruction) -> OutgoingInstruction:
        """The message, with the instruction as the client will understand it."""
        return message

    def arrived(self, client: str, arrival: Arrival) -> None:
        """A reply to a message that trains is there, whether it can be used or not."""

    def incoming(self, reply: ClientReply) -> ClientReply:
        """A reply that was read, as the method is to see it. Raises `BouquetError` to refuse it."""
        return reply

    def answered(self, client: str) -> None:
        """The client gave an answer that can be used, of training or of a test."""

    def lost(self, client: str, arrival: Arrival) -> None:
        """The client gave one that cannot be used; it may say what it has lost."""

    def await_late(self, clients: Iterable[str]) -> None:
        """After a round: the clients whose replies to it may be taken into the next one."""

    def sent_before(self, client: str, models: Mapping[str, Payload]) -> None:
        """After a restart: what a client was sent, whose reply is awaited."""

    def dump(self) -> tuple[Mapping[str, NDArray[Any]], Any]:
        """For a checkpoint: arrays, and JSON; of a filter with a `key`."""
        return {}, None

    def load(self, arrays: Mapping[str, NDArray[Any]], rest: Any) -> None:
        """Continue from what `dump` gave."""
