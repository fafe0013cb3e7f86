"""The device's end of compression: the copies of models that both ends hold.

They lie in the state folder, one file a message, so that a restart loses none. The file before stays, and the one
that the message was a difference to: a server that heard no reply, or was restarted, goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bouquet.client.state.device_state import Arrays, DeviceState
from bouquet.common.compression.delta import Copy, PackedModel, nearest, pack_model
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.protocol import ARRAYS, Received
from bouquet.common.protocol.compressed import UPLOADED

_NAME = "copies"
_STEPS = 16  # messages to a device in one round, at most


@dataclass(frozen=True)
class _Held:
    """What a file holds; ``number`` is that of the message after which it was written."""

    number: int = -1
    copies: dict[str, Copy] = field(default_factory=dict)


class CopyMemory:
    """The copies of a device, while it answers one message."""

    def __init__(self, state: DeviceState, layout: ParameterLayout) -> None:
        self.state = state
        self.layout = layout
        self._read: dict[str, list[_Held]] = {}  # by run

    def find(self, run: str, digest: str) -> Copy | None:
        """The copy with a digest, of whichever message."""
        return next((copy for held in self._all(run) for copy in held.copies.values() if copy.digest == digest), None)

    def answer(
        self,
        run: str,
        received: Received,
        trained: Vector | None,
        is_relative: bool,
        seed: int,
        from_received: bool = False,
    ) -> tuple[PackedModel | None, dict[str, Copy]]:
        """Pack the layers of ``trained`` that are asked for, and keep copies for the next message.

        ``is_relative`` is false for vectors that are no models: they are packed as they are. ``from_received`` says
        that ``trained`` began with what was received, whatever the instruction's ``start``. Returns the packed model
        and the copies that the device now holds.
        """
        unpacked = received.unpacked
        assert unpacked is not None
        number = received.round * _STEPS + min(unpacked.step, _STEPS - 1)
        held = self._all(run)
        before = next((one for one in held if one.number < number), _Held())
        # What the server never heard of, because a reply was lost, it could not read a difference to.
        copies = {
            name: copy
            for one in reversed(held)
            for name, copy in one.copies.items()
            if one.number < number and copy.digest in unpacked.known
        }
        copies, packed = {**copies, **unpacked.copies}, None
        if trained is not None and received.upload:
            layers, rng = received.upload, np.random.default_rng([seed, unpacked.step])
            columns = self.layout.columns(layers)
            base = nearest(copies.values(), trained, columns) if is_relative else None
            packed, sent = pack_model(self.layout, trained, layers, base, unpacked.reply, rng)
            if is_relative and unpacked.reply != "float32" and not self._begins_anew(received, layers, from_received):
                copies[UPLOADED] = sent
        also = {one.number for one in held for copy in one.copies.values() if copy.digest in unpacked.bases}
        # A server that was restarted repeats the round from its first message.
        settled = next((one for one in held if one.number < received.round * _STEPS), before)
        also |= {one.number for one in (before, settled) if one.copies}
        self._keep(run, _Held(number, copies), also)
        return packed, copies

    def _begins_anew(self, received: Received, layers: tuple[str, ...], from_received: bool) -> bool:
        """Whether the device began all these layers with what it was just sent."""
        payload = received.models.get(ARRAYS)
        if payload is None:  # each of several models that were offered is whole, and so is the one that was trained
            return bool(received.models)
        if received.start != "received" and not from_received:
            return False
        return payload.layers is None or set(layers) <= set(payload.layers)

    def _all(self, run: str) -> list[_Held]:
        """What the files of a run hold, the last one first."""
        if run not in self._read:
            versions = self.state.array_versions(run, _NAME)
            copies = [(number, self.state.load_arrays(run, _NAME, number)) for number in versions]
            self._read[run] = [self._from_arrays(number, arrays) for number, arrays in copies if arrays is not None]
        return self._read[run]

    def _keep(self, run: str, held: _Held, also: set[int]) -> None:
        arrays: Arrays = {}
        for name, copy in held.copies.items():
            arrays[f"copy/{name}"] = copy.vector
            arrays[f"layers/{name}"] = np.array([layer in copy.layers for layer in self.layout.layers], dtype=np.uint8)
        self.state.save_arrays(run, _NAME, held.number, arrays, also)

    def _from_arrays(self, number: int, arrays: Arrays) -> _Held:
        copies = {}
        for key in arrays:
            part, _, name = key.partition("/")
            if part == "copy":
                held = arrays[f"layers/{name}"]
                layers = tuple(layer for layer, is_held in zip(self.layout.layers, held, strict=True) if is_held)
                copies[name] = Copy(arrays[key], layers)
        return _Held(number, copies)
