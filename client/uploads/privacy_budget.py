"""What a device's owner lets leave in all (`--most-epsilon`): every noised upload counts, of whichever run and server.

The releases of all runs are one composition of Gaussian mechanisms, Σ μ² with μ = 2 / noise multiplier of each
(`bouquet.common.privacy_accounting`). The sum lies in the state folder and grows, on the disk, before a release is
made: one that a power cut swallows has been spent. Messages are processes of their own and can overlap, so a lock is
held while it grows.
"""

from __future__ import annotations

import fcntl
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bouquet.client.state.store import FolderStore
from bouquet.common.errors import BouquetError
from bouquet.common.privacy_accounting import DELTA, SENSITIVITY, epsilon_at
from bouquet.common.protocol.error_replies import OwnerRefusal

_FILE = "privacy-spent"  # Σ μ² and its CRC-32
_LOCK = ".privacy-spent.lock"


@dataclass(frozen=True)
class Budget:
    """The count in a state folder, and the owner's limit on ε; None for none."""

    folder: Path
    most: float | None = None

    def check(self, noise_multiplier: float) -> None:
        """Raise `OwnerRefusal`, with what is spent, where one more upload with this noise would exceed the limit."""
        if self.most is None:
            return
        spent = self._squares()
        after = _epsilon(_with(spent, noise_multiplier))
        if not after <= self.most:
            raise OwnerRefusal(
                f"This device's owner lets uploads of ε = {self.most:g} leave in all (--most-epsilon, δ = {DELTA:g}); "
                f"{_epsilon(spent):.4g} is spent, over all runs, and one more with privacy.noise_multiplier = "
                f"{noise_multiplier:g} would make it {after:.4g}."
            )

    def spend(self, noise_multiplier: float) -> None:
        """Count one upload, on the disk. Raises `OwnerRefusal` as `check` does; then nothing is counted."""
        store = FolderStore(self.folder)
        with self._held():
            self.check(noise_multiplier)
            text = repr(_with(self._squares(), noise_multiplier)).encode()
            store.write(_FILE, text + f" {zlib.crc32(text):08x}\n".encode())

    def told(self) -> str:
        """What is spent, in words."""
        limit = "" if self.most is None else f" of {self.most:g}"
        return f"ε = {_epsilon(self._squares()):.4g}{limit} spent, over all runs (δ = {DELTA:g})"

    def _squares(self) -> float:
        if not self.folder.is_dir():
            return 0.0
        content = FolderStore(self.folder).read(_FILE)
        if content is None:
            return 0.0
        text, _, checksum = content.partition(b" ")
        if checksum != f"{zlib.crc32(text):08x}\n".encode():
            raise BouquetError(
                f"The count of what this device has released, {_FILE} in its state folder, is damaged; delete it to "
                "count anew."
            )
        return float(text)

    @contextmanager
    def _held(self) -> Iterator[None]:
        descriptor = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _with(squares: float, noise_multiplier: float) -> float:
    """Σ μ² with one more release; infinite without noise."""
    mu = SENSITIVITY / noise_multiplier if noise_multiplier else math.inf
    return squares + mu * mu


def _epsilon(squares: float) -> float:
    if squares == 0 or math.isinf(squares):
        return squares
    return epsilon_at(math.sqrt(squares))
