"""Memory and cores of this machine, of the group that this process is confined to, and of this process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_MACHINE, _PROCESS, _RESET = Path("/proc/meminfo"), Path("/proc/self/status"), Path("/proc/self/clear_refs")
_GROUP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def available_bytes(swap: bool = False) -> int | None:
    """Memory that is estimated to be available, with ``swap`` also what is free of that.

    That of the machine, or less where a service or a container has a limit (control groups, version 2). None elsewhere
    than on Linux.
    """
    sizes = _sizes(_MACHINE)
    if "MemAvailable" not in sizes:
        return None
    return min([sizes["MemAvailable"], *_left_in_groups()]) + (sizes.get("SwapFree", 0) if swap else 0)


def peak_bytes() -> int:
    """The largest resident memory of this process since it began or `reset_peak`; 0 elsewhere than on Linux."""
    return _sizes(_PROCESS).get("VmHWM", 0)


def reset_peak() -> None:
    """Forget the peak so far, where the kernel allows it."""
    with contextlib.suppress(OSError):
        _RESET.write_text("5")


def _left_in_groups() -> list[int]:
    """What is left, in bytes, of each limit that this process is under; files that are only cached count as free."""
    left: list[int] = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = _GROUP.read_text(encoding="utf-8").splitlines()
        own = next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
        for folder in (_GROUPS / own, *(_GROUPS / own).parents):
            limit = folder / "memory.max"
            if limit.is_file() and (text := limit.read_text().strip()) != "max":
                facts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                used = int((folder / "memory.current").read_text()) - int(facts.get("inactive_file", 0))
                left.append(max(0, int(text) - used))
    return left


def _sizes(file: Path) -> dict[str, int]:
    """Name → bytes, of lines such as ``MemAvailable: 123 kB``."""
    try:
        rows = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return {}
    return {row[0].rstrip(":"): 1024 * int(row[1]) for row in rows if len(row) == 3 and row[2] == "kB"}


def idle_cores(running: Path = Path("/proc/loadavg")) -> int:
    """The `available_cores` that nothing else runs on at this moment, at least one; all where the kernel tells nothing.

    Threads that wait for one another on a core that is taken lose many times what they gain.
    """
    others = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        others = int(running.read_text().split()[3].partition("/")[0]) - 1  # beside who asks
    return max(1, available_cores() - max(0, others))


def available_cores() -> int:
    """Those that it is bound to, of all that the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
