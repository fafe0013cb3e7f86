"""Runs each cell of a comparison in a process of its own, so that a crash does not take the others along."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Protocol

from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings
from bouquet.common.system.programs import tail

LOG_LINES = 20
LEAD_SECONDS = 15.0  # at most, for a forked cell to lead a group
# What a cell needs whatever it is; loading it takes longer than a small cell's rounds.
PRELOADED = [
    "bouquet.experiments.simulation.run",
    "bouquet.client.rounds.session",
    "bouquet.client.procedures.standard",
    "bouquet.client.procedures.registry",
    "bouquet.client.data.loading",
    "sklearn.cluster",
]


Simulate = Callable[[Settings, Path, bool], object]


class CellFailed(BouquetError):
    """A cell that did not come to its end; the text says why, with the tail of its log."""


class Runner(Protocol):
    """Runs one cell into a folder. It is called from several threads at once."""

    def __call__(self, settings: Settings, out: Path, *, resume: bool = False) -> None:
        """Run to the end, or raise `CellFailed`; with ``resume``, go on from the checkpoint in ``out``."""
        ...

    def stop(self) -> None:
        """End what is running, and start nothing more."""
        ...


class ForkRunner:
    """Runs each cell in a process and process group of its own; its output goes to ``OUT.log``.

    The process is forked from one that has loaded what cells need. ``run`` is what it does; it leaves no page
    ``report.html``, which ``bouquet report`` makes. ``grace`` is how many seconds a process has to end itself after
    Ctrl-C before it is killed.
    """

    def __init__(self, grace: float = 15.0, run: Simulate | None = None) -> None:
        self.grace = grace
        self._run = run
        self._lock = threading.Lock()
        self._running: set[_Forked] = set()
        self._stopped = False
        # A fork server has one thread, so that a fork of it is safe; this process has several.
        os.environ["PYTHONSAFEPATH"] = "1"  # else it runs a signal.py or torch.py of the folder that this is in
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)

    def __call__(self, settings: Settings, out: Path, *, resume: bool = False) -> None:
        """Run one cell to its end. Raises `CellFailed` with the tail of the log when it exits with an error."""
        log = out.with_name(f"{out.name}.log")
        if not resume:
            log.unlink(missing_ok=True)
        with self._lock:
            if self._stopped:
                raise CellFailed("The comparison was stopped before this cell began.")
            process = self._start(settings, out, resume, log)
            self._running.add(process)
            if self._stopped:  # meanwhile
                _signal_group(process, signal.SIGKILL)
        code = process.wait() or 0
        with self._lock:
            self._running.discard(process)
        if code != 0:
            ended = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
            raise CellFailed(f"The run {ended}; the end of {log}:\n{tail(log, LOG_LINES)}")

    def _start(self, settings: Settings, out: Path, resume: bool, log: Path) -> _Forked:
        leads, led = self._context.Pipe(duplex=False)
        with led:
            work = (self._run, settings, out, resume, log, led)
            return _Forked(self._context.Process(target=_run_cell, args=work), leads)

    def stop(self) -> None:
        """Interrupt every running cell as Ctrl-C would; kill what is still there after ``grace`` seconds."""
        self._stopped = True  # before it is waited for a cell that is about to begin: a second Ctrl-C cuts that short
        with self._lock:
            running = list(self._running)
        end = time.monotonic() + self.grace
        try:
            for process in running:
                _signal_group(process, signal.SIGINT)
            for process in running:
                process.wait(max(0.0, end - time.monotonic()))
        finally:  # also when a second Ctrl-C cuts the waiting short
            for process in running:
                _signal_group(process, signal.SIGKILL)


# A process's end can be read once, and starting one asks all the others how they ended: of two threads that ask at the
# same time one gets nothing, which is the exit code 255.
_asking = threading.Lock()


class _Forked:
    """A cell as a process of `multiprocessing`, of which one thread at a time may ask how it ended.

    The other end of ``leads`` is closed when it leads a process group, or has ended.
    """

    def __init__(self, process: ForkServerProcess, leads: Connection) -> None:
        with _asking:
            process.start()
        self._process = process
        self._leads = leads
        self._ended = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process, and its group: waits until there is one, because what is sent to it before is lost."""
        self._leads.poll(LEAD_SECONDS)
        assert self._process.pid is not None
        return self._process.pid

    def _watch(self) -> None:
        wait_for([self._process.sentinel])
        with _asking:
            self._process.join()
        self._ended.set()

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return (self._process.exitcode or 0) if self._ended.wait(timeout) else None


def _run_cell(run: Simulate | None, settings: Settings, out: Path, resume: bool, log: Path, led: Connection) -> None:
    """In the forked process: simulate, with all output in the log; ``led`` is closed once it leads a group."""
    # What the shell starts in the background ignores interrupts, and so does every process that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    led.close()
    with log.open("ab", buffering=0) as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # else an error stands before what was printed before it
    from bouquet.experiments.simulation.run import simulate  # preloaded

    try:
        (run or simulate)(settings, out, resume)
    except BouquetError as error:
        sys.exit(f"bouquet: {error}")


def _signal_group(process: _Forked, number: signal.Signals) -> None:
    """Signal a cell and what it has started: its group outlives it when a child of it hangs."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
