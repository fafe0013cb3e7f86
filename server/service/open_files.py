"""How many files and connections this process and its children may have open."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Callable

# Enough for tens of thousands of devices; some programs walk through all that they are allowed.
ENOUGH = 65_536
LOOK_SECONDS = 10.0


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


def watch(say: Callable[[str], None], over: threading.Event) -> None:
    """Look from a thread of its own, until it is over, and say when connections are turned away."""

    def keep_looking() -> None:
        full = False
        while not over.wait(LOOK_SECONDS):
            with contextlib.suppress(OSError):
                full = look(say, full)

    threading.Thread(target=keep_looking, name="open files", daemon=True).start()


def look(say: Callable[[str], None], was_full: bool) -> bool:
    """Whether devices' connections have used up their part; said when that begins and when it ends. Linux only."""
    now, most = len(os.listdir("/proc/self/fd")), most_connections()
    if now >= most and not was_full:
        say(f"{now} files are open: no more than {most} connections are taken. ss -tn shows whose they are.")
    elif now < most and was_full:
        say(f"{now} files are open: connections are taken again.")
    return now >= most
