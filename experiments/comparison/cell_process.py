"""A cell of a comparison in a process of its own, so that a crash does not take the others along."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings
from bouquet.common.system.programs import tail

LOG_LINES = 20
# What a cell needs whatever it is; loading it takes longer than a small cell's rounds.
PRELOADED = [
    "bouquet.experiments.simulation.run",
    "bouquet.client.rounds.session",
    "bouquet.client.procedures.standard",
    "bouquet.client.procedures.registry",
    "bouquet.client.data.loading",
    "sklearn.cluster",
]
Simulate = Callable[[Settings, Path], object]


class CellProcess:
    """Runs a cell into a folder, in a process group of its own; its output goes to ``OUT.log``.

    The process is forked from one that has loaded what cells need. ``run`` is what it does; it leaves no page
    ``report.html``, which ``bouquet report`` makes.
    """

    def __init__(self, settings: Settings, out: Path, run: Simulate | None = None) -> None:
        self.log = out.with_name(f"{out.name}.log")
        self.log.unlink(missing_ok=True)
        # A fork server has one thread, so that a fork of it is safe; here is the one that shows the progress, too.
        os.environ["PYTHONSAFEPATH"] = "1"  # else it runs a signal.py or torch.py of the folder that this is in
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._process = context.Process(target=_run_cell, args=(run, settings, out, self.log))
        self._process.start()

    @property
    def has_ended(self) -> bool:
        """Whether it has."""
        return self._process.exitcode is not None

    def failure(self) -> str:
        """Why it did not come to its end, with the tail of its log; empty where it did."""
        if not (code := self._process.exitcode):
            return ""
        ended = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
        return f"The run {ended}; the end of {self.log}:\n{tail(self.log, LOG_LINES)}"

    def send(self, number: signal.Signals) -> None:
        """Signal it and what it has started: its group outlives it when a child of it hangs."""
        assert self._process.pid is not None
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:  # there is no group yet, or no more
            self._process.kill()

    def wait(self, seconds: float) -> None:
        """Until it has ended, at most so long."""
        self._process.join(seconds)


def _run_cell(run: Simulate | None, settings: Settings, out: Path, log: Path) -> None:
    """In the forked process: simulate, with all output in the log."""
    # What the shell starts in the background ignores interrupts, and so does every process that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    with log.open("ab", buffering=0) as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # else an error stands before what was printed before it
    from bouquet.experiments.simulation.run import simulate  # preloaded

    try:
        (run or simulate)(settings, out)
    except BouquetError as error:
        sys.exit(f"bouquet: {error}")
