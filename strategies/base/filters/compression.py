"""The server's end of compression: which copy of which model each device holds, and messages as differences to them.

A device says in every reply what it holds, and only then is it taken to hold it: one that did not answer is sent a
difference to what it held before, which it still keeps. One that lost its copies says so, and is sent whole models.

Strategies know nothing of this. What is remembered here goes into the checkpoint beside a strategy's state, so that a
resumed run sends the same bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common.compression.codecs import Codec
from bouquet.common.compression.delta import Copy, PackedModel, nearest, pack_model
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import ClientReply, Instruction, Payload
from bouquet.common.protocol.arrival import Arrival
from bouquet.common.protocol.compressed import UPLOADED, Packing
from bouquet.common.protocol.error_replies import says_copy_is_lost
from bouquet.strategies.base.filters.filter import Filter, OutgoingInstruction

_STREAM = 3  # of the seed


class Compression(Filter):
    """Packs what goes down, and reads what comes up, for one run.

    Copies that are equal are kept once: devices that are sent the same models in every round share them. ``up`` and
    ``down`` are the codecs of the two ways, ``seed`` decides the roundings.
    """

    key = "_wire"

    def __init__(self, up: Codec, down: Codec, seed: int = 0) -> None:
        self.up = up
        self.down = down
        self.seed = seed
        self.held: dict[str, dict[str, str]] = {}  # client → record → digest
        self._records = {UPLOADED}  # names under which a device may hold a copy: what was sent, and its own
        self._copies: dict[str, Copy] = {}  # by digest
        self._sent: dict[str, set[str]] = {}  # client → digests that it was sent in this round
        self._awaited: dict[str, set[str]] = {}  # the same of older rounds: a late reply may be a difference to them
        self._round = 0
        self._steps: dict[str, int] = {}
        # Of the round in progress: a model that goes to several devices with the same copies is packed once. The
        # vector is kept beside: its address must not be reused while it is a key.
        self._packed: dict[tuple[Any, ...], tuple[PackedModel, Copy, Vector]] = {}

    def begin(self, round_: int) -> None:
        """A new round: copies that no device is known to hold are forgotten."""
        self._round, self._steps, self._packed = round_, {}, {}
        self._forget_unheld()
        self._sent = {}

    def pack(
        self, layout: ParameterLayout, client: str, instruction: Instruction, is_train: bool
    ) -> tuple[Packing, Instruction]:
        """What the client's message holds in place of arrays, and the instruction with the models it will make of them.

        A message that does not train changes no copies.
        """
        models: dict[str, PackedModel] = {}
        received: dict[str, Payload] = {}
        for name, payload in instruction.models.items():
            packed, copy = self._pack(layout, client, payload)
            models[name] = replace(packed, not_kept=payload.exact)
            received[name] = replace(payload, vector=copy.vector)
            if is_train and not payload.exact:
                self._records.add(name)
                self._copies[copy.digest] = copy
                self._sent.setdefault(client, set()).add(copy.digest)
        step = self._steps.get(client, 0)
        if is_train:
            self._steps[client] = step + 1
        return Packing(models, self.up, step, self._held_by(client)), replace(instruction, models=received)

    def outgoing(self, message: OutgoingInstruction) -> OutgoingInstruction:
        """The message with its models packed."""
        packing, instruction = self.pack(message.layout, message.client, message.instruction, message.is_train)
        return replace(message, packing=packing, instruction=instruction)

    def find(self, digest: str) -> Copy | None:
        """A copy that some device may hold."""
        return self._copies.get(digest)

    def incoming(self, reply: ClientReply) -> ClientReply:
        """Note what the device says it holds, as far as it is known here; the reply without its own copy.

        One copy for each record that there is: whatever a device says, the server keeps no more copies for it.
        """
        if reply.copy is not None and reply.copy.digest in reply.holds.values():
            self._copies[reply.copy.digest] = reply.copy
        known = ((name, digest) for name, digest in reply.holds.items() if name in self._records)
        self.held[reply.client] = {name: digest for name, digest in known if digest in self._copies}
        return replace(reply, copy=None)

    def lost(self, client: str, arrival: Arrival) -> None:
        """Where the device says that it lost its copies, send it whole models from now on."""
        if says_copy_is_lost(arrival.message):
            self.held.pop(client, None)

    def await_late(self, clients: Iterable[str]) -> None:
        """Keep what these clients were sent, in this round or in an older one."""
        self._awaited = {client: self._sent.get(client) or self._awaited.get(client, set()) for client in clients}

    def sent_before(self, client: str, models: Mapping[str, Payload]) -> None:
        """Its reply may be a difference to these."""
        copies = [Copy(model.vector, model.layers or ()) for model in models.values()]
        self._copies |= {copy.digest: copy for copy in copies}
        self._awaited[client] = {copy.digest for copy in copies}
        self._records |= {*models}

    def dump(self) -> tuple[dict[str, Vector], dict[str, Any]]:
        """For a checkpoint: the copies by digest, and JSON."""
        held = self._held()
        copies = {digest: copy.vector for digest, copy in sorted(self._copies.items()) if digest in held}
        return copies, {"held": self.held, "layers": {digest: self._copies[digest].layers for digest in copies}}

    def load(self, arrays: Mapping[str, NDArray[Any]], rest: Mapping[str, Any]) -> None:
        """Continue from what `dump` gave."""
        self._copies = {digest: Copy(vector, tuple(rest["layers"][digest])) for digest, vector in arrays.items()}
        self.held = {client: dict(held) for client, held in rest["held"].items()}
        self._records |= {name for held in self.held.values() for name in held}

    def _pack(self, layout: ParameterLayout, client: str, payload: Payload) -> tuple[PackedModel, Copy]:
        layers = layout.layers if payload.layers is None else payload.layers
        held = () if payload.exact else self._held_by(client)
        key = (payload.vector.ctypes.data, layers, held, payload.exact)
        if key not in self._packed:
            bases = [self._copies[digest] for digest in held]
            base = nearest(bases, payload.vector, layout.columns(layers))
            name = f"{base.digest if base else ''}/{len(self._packed)}"
            rng = np.random.default_rng([_STREAM, self.seed, self._round, zlib.crc32(name.encode())])
            codec: Codec = "float32" if payload.exact else self.down
            self._packed[key] = (*pack_model(layout, payload.vector, layers, base, codec, rng), payload.vector)
        packed, copy, _ = self._packed[key]
        return packed, copy

    def _forget_unheld(self) -> None:
        kept = self._held().union(*self._awaited.values())
        self._copies = {digest: copy for digest, copy in self._copies.items() if digest in kept}

    def _held_by(self, client: str) -> tuple[str, ...]:
        return tuple(sorted(set(self.held.get(client, {}).values())))

    def _held(self) -> set[str]:
        return {digest for held in self.held.values() for digest in held.values()}
