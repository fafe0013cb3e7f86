"""What a device knows of itself, read from Linux: power, temperature, load, memory and the link that it uses.

``BOUQUET_SENSORS`` names a folder that stands for ``/``, for tests and for a container whose host's files are mounted
elsewhere. Each reading is None where the machine does not tell.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

VARIABLE = "BOUQUET_SENSORS"
PATIENCE_SECONDS = 30.0  # with another program
UP, ANYWHERE = 0x1, "00000000"  # a route's flag and destination in /proc/net/route
NOT_METERED = {"no", "no (guessed)"}


@dataclass(frozen=True)
class Sensors:
    """The readings of one machine; ``root`` is where its ``sys`` and ``proc`` are."""

    root: Path = field(default_factory=lambda: Path(os.environ.get(VARIABLE) or "/"))

    def temperature(self) -> float | None:
        """°C of the hottest thermal zone."""
        found = [_number(zone / "temp") for zone in (self.root / "sys/class/thermal").glob("thermal_zone*")]
        return max((value / 1000 for value in found if value is not None), default=None)

    def on_mains(self) -> bool | None:
        """Whether a charger is connected; a machine without a battery is on mains."""
        supplies = self._supplies()
        chargers = [_number(supply / "online") for supply in supplies if _text(supply / "type") in ("Mains", "USB")]
        if any(online == 1 for online in chargers):
            return True
        if not self._batteries(supplies):
            return True if not chargers else None
        if chargers:
            return False
        return all(_text(b / "status") in ("Charging", "Full", "Not charging") for b in self._batteries(supplies))

    def battery(self) -> float | None:
        """Share of the charge that the fullest battery of the machine has, from 0 to 1."""
        found = [_number(battery / "capacity") for battery in self._batteries(self._supplies())]
        return max((value / 100 for value in found if value is not None), default=None)

    def load(self) -> float | None:
        """Mean of the last minute's runnable processes."""
        with contextlib.suppress(ValueError, IndexError):
            return float(_text(self.root / "proc/loadavg").split()[0])
        return None

    def free_memory(self) -> float | None:
        """MB that are available."""
        for line in _text(self.root / "proc/meminfo").splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                with contextlib.suppress(ValueError, IndexError):
                    return int(value.split()[0]) * 1024 / 10**6
        return None

    def interface(self) -> str | None:
        """The network interface of the default route."""
        routes = []
        for line in _text(self.root / "proc/net/route").splitlines()[1:]:
            with contextlib.suppress(ValueError, IndexError):
                name, destination, _, flags, _, _, metric = line.split()[:7]
                if destination == ANYWHERE and int(flags, 16) & UP:
                    routes.append((int(metric), name))
        return min(routes)[1] if routes else None

    def unmetered(self) -> bool | None:
        """Whether NetworkManager takes the link for one that costs nothing by the byte."""
        link, program = self.interface(), shutil.which("nmcli")
        if link is None or program is None:
            return None
        asked = [program, "--terse", "--get-values", "GENERAL.METERED", "device", "show", link]
        said = _said(asked)
        return None if not said or said == "unknown" else said in NOT_METERED

    def allows(self, command: Sequence[str]) -> bool:
        """Whether a command of the owner's ends with status 0 in time."""
        try:
            return subprocess.run(command, capture_output=True, timeout=PATIENCE_SECONDS, check=False).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False

    def _supplies(self) -> list[Path]:
        return sorted((self.root / "sys/class/power_supply").glob("*"))

    def _batteries(self, supplies: Sequence[Path]) -> list[Path]:
        """Those of the machine itself, not of a mouse."""
        return [s for s in supplies if _text(s / "type") == "Battery" and _text(s / "scope") != "Device"]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # also where a driver has no reading at the moment
        return ""


def _number(file: Path) -> int | None:
    try:
        return int(_text(file))
    except ValueError:
        return None


def _said(command: Sequence[str]) -> str:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        found = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        return found.stdout.strip()
    return ""
