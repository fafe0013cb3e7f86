"""How much memory this machine and this process have, as Linux says."""

from __future__ import annotations

import contextlib
from pathlib import Path

_MACHINE, _PROCESS, _RESET = Path("/proc/meminfo"), Path("/proc/self/status"), Path("/proc/self/clear_refs")


def available_bytes(swap: bool = False) -> int | None:
    """Memory of the machine that is estimated to be available, with ``swap`` also what is free of that.

    None elsewhere than on Linux.
    """
    sizes = _sizes(_MACHINE)
    names = ("MemAvailable", "SwapFree") if swap else ("MemAvailable",)
    return sum(sizes.get(name, 0) for name in names) if "MemAvailable" in sizes else None


def peak_bytes() -> int:
    """The largest resident memory of this process since it began or `reset_peak`; 0 elsewhere than on Linux."""
    return _sizes(_PROCESS).get("VmHWM", 0)


def reset_peak() -> None:
    """Forget the peak so far, where the kernel allows it."""
    with contextlib.suppress(OSError):
        _RESET.write_text("5")


def _sizes(file: Path) -> dict[str, int]:
    """Name → bytes, of lines such as ``MemAvailable: 123 kB``."""
    try:
        rows = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return {}
    return {row[0].rstrip(":"): 1024 * int(row[1]) for row in rows if len(row) == 3 and row[2] == "kB"}
