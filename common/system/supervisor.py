"""Run one program and end everything it started: ``python supervisor.py GRACE [--again] PROGRAM [ARGUMENT ...]``.

SuperLink starts its ``flower-superexec`` in a session of its own, and that one watches its parent with
``kill(pid, 0)``, which a zombie answers too: after a crash it can stay for ever. Neither process groups nor an
environment tag find it (it makes itself undumpable, and then only root may read its ``/proc/PID/environ``).
So each program runs below a supervisor that is a *child subreaper* (prctl(2), Linux 3.4): whatever loses its
parent becomes the supervisor's child, nothing can leave its tree, and zombies are reaped.

It ends the tree when the program ends, at SIGTERM, SIGINT or SIGHUP, and when its standard input closes, that is,
when whoever started it is gone, be it by SIGKILL. The program gets SIGTERM and GRACE seconds to leave; then the
rest gets SIGTERM, and what is still there SIGKILL. A second request skips the grace. The exit status is the
program's, 128 + n after signal n. With ``--again`` a program that ends by itself, also well, is started once more,
after a second. Where there is no /proc (macOS), only the program's process group is ended.

Only the standard library is imported: it runs as a script, once per program, in about 10 MB.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
REST_GRACE_SECONDS = 2.0
AGAIN, AGAIN_SECONDS = "--again", 1.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def become_subreaper() -> None:
    """Make this process the parent of its orphaned descendants (Linux; elsewhere nothing happens)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """In a process that has just been forked: it gets the signal when its parent ends (Linux)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Process ids below ``root``, zombies left out, parents before children; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The command name stands in parentheses and may itself hold spaces and parentheses.
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(entry.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        if fields[0] in "ZX":
            zombies.add(pid)

    def below(pid: int) -> Iterator[int]:
        for child in children.get(pid, []):
            yield child
            yield from below(child)

    return [pid for pid in below(root) if pid not in zombies]


class Supervisor:
    """The state of one supervised program."""

    def __init__(self, grace: float, argv: list[str], again: bool = False) -> None:
        self.grace = grace
        self.again = again
        self.argv = argv
        self.program = 0
        self.status: int | None = None
        self.requests = 0
        self.watched: list[int] = []

    def run(self) -> int:
        """Start the program, wait for its end or a request to stop, end the rest; returns the exit status."""
        become_subreaper()
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in STOP_SIGNALS:
            signal.signal(number, self.request_stop)
        self.watched = [reading, sys.stdin.fileno()]
        self.start()
        deadline = float("inf")
        while self.status is None:
            self.wait(deadline)
            self.reap()
            while self.again and self.status is not None and not self.requests:
                self.end_rest()
                soon = time.monotonic() + AGAIN_SECONDS
                while not self.requests and time.monotonic() < soon:
                    self.wait(soon)
                if not self.requests:
                    with contextlib.suppress(OSError):  # no memory or processes for it now: soon again
                        self.start()
            if self.requests and deadline == float("inf"):
                deadline = time.monotonic() + self.grace
                self.send(signal.SIGTERM, [self.program])
            if self.requests > 1 or time.monotonic() >= deadline:
                break
        self.end_rest()
        return 128 + signal.SIGKILL if self.status is None else self.status

    def wait(self, deadline: float) -> None:
        """Wait for a signal, for the end of whoever started this, or until the deadline."""
        remaining = max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(self.watched, [], [], min(remaining, 3600.0))
        if self.watched[0] in ready:
            os.read(self.watched[0], 4096)
        if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 4096):
            self.watched.pop()
            self.requests += 1

    def start(self) -> None:
        """Start the program."""
        started = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=end_with_parent)
        self.program = started.pid
        self.status = None

    def request_stop(self, *_: object) -> None:
        """Count a request to stop: the first starts the grace, the second skips it."""
        self.requests += 1

    def reap(self) -> None:
        """Collect every child that has ended, adopted ones too; note the program's own status."""
        for pid, status in ended_children():
            if pid == self.program:
                code = os.waitstatus_to_exitcode(status)
                self.status = code if code >= 0 else 128 - code

    def end_rest(self) -> None:
        """End what is left below this process: SIGTERM, then SIGKILL until nothing is there."""
        deadline = time.monotonic() + (0.0 if self.requests > 1 else REST_GRACE_SECONDS)
        self.send(signal.SIGTERM, self.rest())
        while self.rest() and time.monotonic() < deadline and self.requests < 2:
            time.sleep(0.05)
            self.reap()
        while remaining := self.rest():
            self.send(signal.SIGKILL, remaining)
            time.sleep(0.05)
            self.reap()

    def rest(self) -> list[int]:
        """What still runs: all descendants, or the program itself where /proc cannot tell."""
        if Path("/proc/self/stat").exists():
            return descendants(os.getpid())
        return [self.program] if self.status is None else []

    def send(self, number: signal.Signals, pids: list[int]) -> None:
        """Send a signal to processes that may be gone already; without /proc, to the program's whole group."""
        for pid in pids:
            try:
                if Path("/proc/self/stat").exists():
                    os.kill(pid, number)
                else:
                    os.killpg(pid, number)
            except ProcessLookupError:
                continue


def ended_children() -> Iterator[tuple[int, int]]:
    """Process id and status, as `os.waitpid` has it, of each child that has ended: adopted ones too."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


if __name__ == "__main__":
    try:
        again = sys.argv[2:3] == [AGAIN]
        command = sys.argv[3 if again else 2 :]
        sys.exit(Supervisor(float(sys.argv[1]), command, again).run())
    except OSError as error:
        sys.exit(f"Cannot run {command[0]!r}: {error.strerror}.")
