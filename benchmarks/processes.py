"""What a tree of processes takes: CPU seconds and memory, from /proc (Linux; memory as root)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
PRESENT = 1 << 63
PAGE_FRAME = (1 << 55) - 1


def tree(root: int) -> list[int]:
    """A process and all below it, those included that have ended and were not waited for yet."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(entry.parent.name))
    found, new = [root], [root]
    while new:
        new = [child for pid in new for child in children.get(pid, [])]
        found += new
    return found


def cpu_seconds(root: int) -> float:
    """CPU seconds so far of a process, of all below it, and of all that have ended there and were waited for."""
    return sum(sum(_ticks(pid)) for pid in tree(root)) / TICKS


def _ticks(pid: int) -> list[int]:
    """User and system time of a process, and of its children that were waited for; nothing when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
    return [int(ticks) for ticks in fields[11:15]]


def resident(pid: int) -> int:
    """Bytes of physical memory of a process; 0 when it is gone."""
    return _status(pid, "VmRSS")


def most_resident(pid: int) -> int:
    """The most that it ever had."""
    return _status(pid, "VmHWM")


def _status(pid: int, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def proportional(pid: int) -> int:
    """Bytes of a process in which what it shares is divided among those that share it; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def name_of(pid: int) -> str:
    """What a process calls itself; ``gone`` once it is."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone"


def memory_bytes(root: int) -> int:
    """Physical memory of a process and all below it, each page once.

    On a device of its own that is the sum of the processes' proportional set sizes; on a machine with more devices,
    that sum would be smaller by what they share.
    """
    frames = [_frames(pid) for pid in tree(root)]
    return len(np.unique(np.concatenate(frames))) * PAGE


def _frames(pid: int) -> np.ndarray:
    found = [np.empty(0, np.uint64)]
    try:
        ranges = [line.split()[0].split("-") for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pagemap:
            for low, high in ((int(a, 16), int(b, 16)) for a, b in ranges):
                if low >= 1 << 47:  # vsyscall
                    continue
                pagemap.seek(low // PAGE * 8)
                entries = np.frombuffer(pagemap.read((high - low) // PAGE * 8), np.uint64)
                found.append(entries[entries & np.uint64(PRESENT) > 0] & np.uint64(PAGE_FRAME))
    except (OSError, ProcessLookupError):
        pass
    return np.concatenate(found)
