"""Processes below this one, and the end of this one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 10.0


def end_with_parent(number: signal.Signals = signal.SIGTERM, parent: int | None = None) -> None:
    """In a process that has just begun: it gets the signal when its parent ends (Linux).

    Also where that was before this call, if ``parent``, its process id, was handed over.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if parent is not None and os.getppid() != parent:
            os.kill(os.getpid(), number)


def ended_children() -> Iterator[tuple[int, int]]:
    """Process id and status, as `os.waitpid` has it, of each child that has ended."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


@contextlib.contextmanager
def ending_in_order(grace: float = GRACE_SECONDS) -> Iterator[None]:
    """Inside the ``with`` block of a main thread, SIGTERM and SIGHUP raise `SystemExit`, so that it is left in order.

    Not everything lets an exception through that a signal raises: matplotlib's compiled code swallows it. So the
    process ends after ``grace`` seconds all the same. What it writes is whole or not there at any moment.
    """

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        last = threading.Timer(grace, os._exit, (128 + number,))
        last.daemon = True
        last.start()
        raise SystemExit(128 + number)

    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
