"""Privacy on the device: an upload is clipped and noised before anything of it leaves (`[privacy]` of the settings).

What leaves is b + clip(w − b) + noise, where w is what would have been uploaded and b, its *base*, is what the server
knows already: the model that it sent; of layers that were not in the message, what it last sent or was sent of them. A
base of the device's own would leave with the upload, unclipped. What the device keeps for itself is not changed.

Flower's `LocalDpMod` is the same mathematics (McMahan et al. 2018, flat clipping), but works on a message that is ready
to be sent. It refuses messages with several records, or with other tensors than came (a method's second model, layers
that stay); a compressed upload it cannot read; counters it would noise. And its noise is drawn from NumPy's global
generator, whose state all messages of a process that forks for each of them share: two rounds' noise would be equal,
and their difference without any.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bouquet.client.state.device_state import DeviceState
from bouquet.client.uploads.privacy_budget import Budget
from bouquet.common.parameters.layout import ParameterLayout, Vector
from bouquet.common.privacy_accounting import RELEASES, check_model
from bouquet.common.protocol import ARRAYS, FALLBACK, Received
from bouquet.common.settings.sections import PrivacySettings

Read = Callable[[int], bytes]  # so many random bytes

_KNOWN = "known"  # what the server knows of this device's layers
_SENT = "sent"  # records beside the first, of the round's last message
_SPENT = "spent"  # the releases of a run
_PART = 1 << 20  # values that are noised at a time, so that a large model takes little memory beside itself


def gaussian(count: int, read: Read) -> NDArray[np.float64]:
    """``count`` independent standard normal numbers from random bytes, by Box and Muller's transform.

    Bytes of the operating system, and not a generator of NumPy's: from the noise of coordinates that he knows (a dead
    unit's) an attacker could compute the state of one of those, and with it all other noise of the message.
    """
    pairs = (count + 1) // 2
    bits = np.frombuffer(read(16 * pairs), dtype="<u8").reshape(2, pairs) >> np.uint64(11)
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53  # never 0, so its logarithm is finite
    radius, angle = np.sqrt(-2 * np.log(uniform[0])), 2 * np.pi * uniform[1]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def clipped(update: NDArray[np.float64], norm: float) -> NDArray[np.float64]:
    """The update scaled down to an L2 norm of at most ``norm``, as a whole; zero where a value is not finite.

    Which values are not would leave with no noise on them: infinity times anything is no number.
    """
    length = float(np.linalg.norm(update))
    if not np.isfinite(length):
        return np.zeros_like(update)
    return update if length <= norm else update * (norm / length)


class PrivateUploads:
    """What leaves one device while it answers one message, and the count of its releases.

    ``seed`` makes the noise reproducible, in a simulation only: of a real device nobody may be able to draw it again.
    ``budget`` counts the releases of all runs, and can refuse one. Raises `BouquetError` for a model that cannot be
    noised.
    """

    def __init__(
        self,
        settings: PrivacySettings,
        state: DeviceState,
        layout: ParameterLayout,
        run: str,
        seed: int | None,
        budget: Budget | None = None,
    ) -> None:
        check_model(layout)
        assert settings.clip_norm is not None
        self.clip_norm = settings.clip_norm
        self.deviation = settings.clip_norm * settings.noise_multiplier
        self.state, self.layout, self.run = state, layout, run
        self.seed, self.budget, self.noise_multiplier = seed, budget, settings.noise_multiplier
        self._counters = np.zeros(layout.dim, dtype=bool)
        for spec in layout.tensors:
            self._counters[spec.columns] = spec.kind == "counter"
        self._last: tuple[Vector, NDArray[np.int64]] | None = None  # the release of this message, and its columns

    def release(
        self, trained: Vector, layers: Sequence[str], received: Received, initial: Vector, base: str | None = ARRAYS
    ) -> Vector:
        """What may leave of ``trained`` (d,): its ``layers``, clipped and noised; zero elsewhere.

        ``base`` is the record that training began with, of this message or of the one before it in the same round, or
        None for what is no model, such as a gradient. Counters go back as they came: they count the device's samples.
        """
        if self.budget is not None and self.noise_multiplier:
            self.budget.spend(self.noise_multiplier)
        columns = self.layout.columns(layers)
        floats = columns[~self._counters[columns]]
        origin = np.zeros(self.layout.dim, dtype=np.float32) if base is None else self._base(received, initial, base)
        update = clipped(trained[floats].astype(np.float64) - origin[floats], self.clip_norm)
        read = os.urandom if self.seed is None else _seeded(self.seed, update)
        for start in range(0, len(update) if self.deviation else 0, _PART):
            part = update[start : start + _PART]
            part += self.deviation * gaussian(len(part), read)
        released = np.zeros(self.layout.dim, dtype=np.float32)
        released[columns] = origin[columns]
        released[floats] = origin[floats] + update
        if base is not None:
            self._last = released, columns
        self._count(released)
        return released

    def remember(self, received: Received, initial: Vector) -> dict[str, int]:
        """Write, before the reply, what the server knows of this device; what the reply says of privacy."""
        known = self._base(received, initial, ARRAYS)
        if self._last is not None:
            released, columns = self._last
            known[columns] = released[columns]
        sent = {}
        if self._last is None:  # what is made of these models may be asked for in the round's next message
            sent = {f"{_SENT}/{name}": payload.vector for name, payload in received.models.items() if name != ARRAYS}
        self.state.save_arrays(self.run, _KNOWN, received.round, {_KNOWN: known, **sent})
        return {RELEASES: len(self._marks())}

    def _base(self, received: Received, initial: Vector, record: str) -> Vector:
        """What the server knows of the model in a record, whole (d,)."""
        payload = received.models.get(record)
        before = received.round + (payload is None)  # without it in the message, it came in this round's first one
        earlier = (v for v in self.state.array_versions(self.run, _KNOWN) if v < before)
        copies = (self.state.load_arrays(self.run, _KNOWN, version) for version in earlier)
        kept = next((arrays for arrays in copies if arrays is not None), {})
        base = kept.get(_KNOWN if record == ARRAYS else f"{_SENT}/{record}", initial).copy()
        offered = [received.models.get(FALLBACK), payload] if not kept else [payload]
        for some in offered:
            if some is not None:
                columns = self.layout.columns(self.layout.layers if some.layers is None else some.layers)
                base[columns] = some.vector[columns]
        return base

    def _marks(self) -> NDArray[np.uint64]:
        """A mark of each release of this run; an equal one, of a round that a simulation repeats, tells no more."""
        kept = self.state.load_arrays(self.run, _SPENT, 0) or {}
        marks: NDArray[np.uint64] = kept.get(_SPENT, np.zeros(0, dtype=np.uint64))
        return marks

    def _count(self, released: Vector) -> None:
        digest = hashlib.blake2b(released.tobytes(), digest_size=8).digest()
        marks = np.union1d(self._marks(), np.frombuffer(digest, dtype="<u8"))
        self.state.save_arrays(self.run, _SPENT, 0, {_SPENT: marks})


def _seeded(seed: int, update: NDArray[np.float64]) -> Read:
    """Random bytes of a simulation: others for each release, the same for the same one."""
    return np.random.default_rng([seed, zlib.crc32(update.tobytes())]).bytes
