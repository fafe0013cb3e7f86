"""What a device knows of itself, read from Linux: power and temperature.

``BOUQUET_SENSORS`` names a folder that stands for ``/``, for tests and for a container whose host's files are mounted
elsewhere. Each reading is None where the machine does not tell.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

VARIABLE = "BOUQUET_SENSORS"
PATIENCE_SECONDS = 30.0  # with another program
CHARGERS = ("Mains", "USB", "Wireless")  # how the types of chargers begin
COLDEST = -90.0  # °C: a zone that reads less is not connected, or lies
MOST_BYTES = 64 * 1024  # of a reading: a file that does not end must not fill the memory
MOST_DIGITS = 18


@dataclass(frozen=True)
class Sensors:
    """The readings of one machine; ``root`` is where its ``sys`` and ``proc`` are."""

    root: Path = field(default_factory=lambda: Path(os.environ.get(VARIABLE) or "/"))

    def temperature(self) -> float | None:
        """°C of the hottest thermal zone."""
        zones = [_number(zone / "temp") for zone in (self.root / "sys/class/thermal").glob("thermal_zone*")]
        degrees = [value / 1000 for value in zones if value is not None]
        return max((value for value in degrees if value > COLDEST), default=None)

    def on_mains(self) -> bool | None:
        """Whether a charger is connected; a machine without a battery is on mains."""
        supplies = self._supplies()
        chargers = [_number(s / "online") for s in supplies if _text(s / "type").startswith(CHARGERS)]
        if any(online == 1 for online in chargers):
            return True
        if not self._batteries(supplies):
            return True if not chargers else None
        if chargers:
            return False
        return all(_text(b / "status") in ("Charging", "Full", "Not charging") for b in self._batteries(supplies))

    def battery(self) -> float | None:
        """Share of the charge that the fullest battery of the machine has, from 0 to 1."""
        levels = [_number(battery / "capacity") for battery in self._batteries(self._supplies())]
        return max((value / 100 for value in levels if value is not None and 0 <= value <= 100), default=None)

    def allows(self, command: Sequence[str]) -> bool | None:
        """Whether a command of the owner's ends with status 0; None where it cannot be started or does not end in time.

        What it prints is not read, and what it started is ended with it.
        """
        quiet = subprocess.DEVNULL
        try:
            started = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
        except (OSError, ValueError):  # the latter of a NUL in its name
            return None
        try:
            return started.wait(PATIENCE_SECONDS) == 0
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(OSError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()

    def _supplies(self) -> list[Path]:
        return sorted((self.root / "sys/class/power_supply").glob("*"))

    def _batteries(self, supplies: Sequence[Path]) -> list[Path]:
        """Those of the machine itself, not of a mouse; also what does not say what it is."""
        own = [supply for supply in supplies if _text(supply / "scope") != "Device"]
        return [supply for supply in own if not _text(supply / "type").startswith(CHARGERS)]


def _text(file: Path) -> str:
    """What is in it; a pipe where nobody writes is empty, and is not waited for."""
    try:
        place = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(place, MOST_BYTES).decode("utf-8", errors="replace").strip()
    except OSError:  # also where a driver has no reading at the moment
        return ""
    finally:
        os.close(place)


def _number(file: Path) -> int | None:
    """A whole number of a size that a reading may have."""
    text = _text(file)
    return int(text) if len(text) <= MOST_DIGITS and re.fullmatch(r"[+-]?\d+", text) else None
