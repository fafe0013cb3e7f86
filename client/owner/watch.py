"""Whether the device may work now: asked before a message is taken, and between two mini-batches."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from bouquet.client.owner.conditions import HEAT, When, outside_hours, read_when, readings
from bouquet.client.owner.sensors import Sensors
from bouquet.common.errors import BouquetError, NotNow
from bouquet.common.system.files import write_json

MEMORY = "not-now.json"  # in the state folder: why the device does not work, where it does not
LONGEST_REST = 10.0  # seconds, until it is looked whether the device may work still
LEAST_PAUSE = 50.0  # times as long as a look takes, until the next: looks take 2 % of the training at most


@dataclass
class Watch:
    """The owner's file and what the machine says. ``state_dir`` remembers that the device was too hot.

    Each message is a process of its own, and one that is too hot is to cool down by some degrees before it goes on.
    """

    file: Path
    state_dir: Path
    sensors: Sensors = field(default_factory=Sensors)
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = datetime.now
    rest: Callable[[float], None] = time.sleep
    _read: tuple[tuple[int, int, int], When] | None = None
    _next_look: dict[str, float] = field(default_factory=dict)
    _went_on: float | None = None

    @property
    def when(self) -> When:
        """The owner's file as it is now. Raises `BouquetError` where it cannot be read."""
        try:
            status = self.file.stat()
        except OSError as error:
            raise BouquetError(f"The file {self.file} (--when) cannot be read: {error.strerror}.") from None
        version = (status.st_mtime_ns, status.st_size, status.st_ino)
        if self._read is None or self._read[0] != version:
            self._read = (version, read_when(self.file))
        return self._read[1]

    @property
    def settled(self) -> When:
        """The file as it was when the device was last allowed to work; looked at again before the next mini-batch."""
        return self.when if self._read is None else self._read[1]

    def refusal(self) -> NotNow | None:
        """Why no work may begin now; None where it may."""
        return self._look(begun=False)

    def between_batches(self) -> None:
        """Raise `NotNow` where work that has begun may not go on; else rest, as the owner's share of the time has it.

        What takes long to look at is looked at more rarely.
        """
        self._go_on()
        share = self.settled.cpu_share
        if share < 1 and self._went_on is not None:
            left = (self.clock() - self._went_on) * (1 / share - 1)
            while left > 0:  # what no longer holds ends a long rest, too
                self.rest(min(left, LONGEST_REST))
                left -= LONGEST_REST
                self._go_on()
        self._went_on = self.clock()

    def _go_on(self) -> None:
        if (refusal := self._look(begun=True)) is not None:
            raise refusal

    def _look(self, begun: bool) -> NotNow | None:
        try:
            when = self.when
        except BouquetError as error:
            print(f"{error} Until then this device does no work.", flush=True)
            return self._remember("file", NotNow("its owner's file of conditions is wrong", 60.0))
        if (outside := outside_hours(when, self.now())) is not None:
            return self._remember("hours", NotNow(*outside))
        for name, look in readings(when, self.sensors, not begun and self._was == HEAT).items():
            if begun and self.clock() < self._next_look.get(name, 0.0):
                continue
            began = self.clock()
            reason = look()
            self._next_look[name] = self.clock() + LEAST_PAUSE * (self.clock() - began)
            if reason is not None:
                return self._remember(name, NotNow(reason, when.look_again))
        if not begun:
            self._remember("", None)
        return None

    @property
    def _was(self) -> str:
        """What the device did not work for when it was last looked at."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads((self.state_dir / MEMORY).read_text(encoding="utf-8"))["kind"])
        return ""

    def _remember(self, kind: str, refusal: NotNow | None) -> NotNow | None:
        if kind != self._was:
            with contextlib.suppress(BouquetError):  # on a full disk it is looked at without
                write_json(self.state_dir / MEMORY, {"kind": kind, "reason": "" if refusal is None else str(refusal)})
        return refusal
