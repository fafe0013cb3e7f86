"""How many files and connections this process and its children may have open."""

from __future__ import annotations

import contextlib
import resource

# Enough for tens of thousands of devices; some programs walk through all that they are allowed.
ENOUGH = 65_536


def raise_open_files() -> None:
    """Lift the soft limit towards the hard one: the usual 1,024 are used up by as many idle connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS has a third limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """Three quarters of what this process may have open: the rest is for its files and its own connections."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (ENOUGH if soft == resource.RLIM_INFINITY else min(ENOUGH, soft)) * 3 // 4
