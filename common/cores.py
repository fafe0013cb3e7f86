"""How many cores this process may use."""

import os


def available_cores() -> int:
    """Those that it is bound to, of all that the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
