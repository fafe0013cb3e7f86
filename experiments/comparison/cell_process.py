"""Running one cell of a comparison in a process of its own, so that a crash does not take the others along."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import IO, Protocol

import tomli_w

from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings, load_settings, section_class
from bouquet.common.system.files import write_atomically

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


def simulate_command(settings: Path, out: Path, resume: bool) -> list[str]:
    """The command line of one cell."""
    # -P: a folder named common where the user happens to be must not be taken for ours.
    command = [sys.executable, "-P", "-m", "bouquet", "simulate", "--settings", str(settings), "--out", str(out)]
    return [*command, "--resume"] if resume else command


class Process(Protocol):
    """A cell that is running."""

    @property
    def pid(self) -> int:
        """Of its process, and of the group that this leads."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal; raises `subprocess.TimeoutExpired`."""
        ...


class SubprocessRunner:
    """Runs each cell as ``bouquet simulate`` in a process group of its own; its output goes to ``OUT.log``.

    ``grace`` is how many seconds a process has to end itself after Ctrl-C before it is killed.
    """

    def __init__(
        self, command: Callable[[Path, Path, bool], Sequence[str]] = simulate_command, grace: float = 15.0
    ) -> None:
        self.command = command
        self.grace = grace
        self._lock = threading.Lock()
        self._running: set[Process] = set()
        self._stopped = False

    def __call__(self, settings: Settings, out: Path, *, resume: bool = False) -> None:
        """Run one cell to its end. Raises `CellFailed` with the tail of the log when it exits with an error."""
        settings_file, log = out.with_name(f"{out.name}.toml"), out.with_name(f"{out.name}.log")
        write_atomically(settings_file, tomli_w.dumps(_for_toml(settings.model_dump(mode="json"))).encode())
        with log.open("ab" if resume else "wb") as output:
            with self._lock:
                if self._stopped:
                    raise CellFailed("The comparison was stopped before this cell began.")
                process = self._start(settings, settings_file, out, resume, output)
                self._running.add(process)
                if self._stopped:  # meanwhile
                    _signal_group(process, signal.SIGKILL)
            code = process.wait()
            with self._lock:
                self._running.discard(process)
        if code != 0:
            ended = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
            raise CellFailed(f"The run {ended}; the end of {log}:\n{tail(log)}")

    def _start(self, settings: Settings, file: Path, out: Path, resume: bool, output: IO[bytes]) -> Process:
        """Start a cell whose settings are in ``file``."""
        return subprocess.Popen(
            self.command(file, out, resume),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # unbuffered, so that the log ends with what was written last: the reason
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

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
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, end - time.monotonic()))
        finally:  # also when a second Ctrl-C cuts the waiting short
            for process in running:
                _signal_group(process, signal.SIGKILL)


class ForkRunner(SubprocessRunner):
    """As `SubprocessRunner`, but a cell on any engine but Ray is forked from a process that has loaded what it needs.

    Such a cell leaves no page ``report.html``; ``bouquet report`` makes it.
    """

    def __init__(self, grace: float = 15.0) -> None:
        super().__init__(grace=grace)
        # A fork server has one thread, so that a fork of it is safe; this process has several.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)

    def _start(self, settings: Settings, file: Path, out: Path, resume: bool, output: IO[bytes]) -> Process:
        if settings.simulation.engine == "ray":  # which takes all cores, and starts processes of its own
            return super()._start(settings, file, out, resume, output)
        leads, led = self._context.Pipe(duplex=False)
        with led:
            process = self._context.Process(target=_run_cell, args=(file, out, resume, Path(output.name), led))
            return _Forked(process, leads)


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

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal; raises `subprocess.TimeoutExpired`."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("cell", timeout or 0.0)
        return self._process.exitcode or 0


def _run_cell(settings: Path, out: Path, resume: bool, log: Path, led: Connection) -> None:
    """In the forked process: simulate, with all output in the log; ``led`` is closed once it leads a group."""
    # What the shell starts in the background ignores interrupts, and so does every process that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    led.close()
    with log.open("ab", buffering=0) as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    from bouquet.experiments.simulation.run import simulate  # preloaded

    try:
        simulate(load_settings(settings), out, resume)
    except BouquetError as error:
        sys.exit(f"bouquet: {error}")


def tail(log: Path, lines: int = LOG_LINES) -> str:
    """The last lines of a log."""
    try:
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"(the log cannot be read: {error.strerror})"


def _signal_group(process: Process, number: signal.Signals) -> None:
    """Signal a cell and what it has started: its group outlives it when a child of it hangs."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _for_toml(sections: dict[str, dict[str, object]]) -> dict[str, dict[str, object]]:
    """TOML has no null: a key that is null is left out where that is its default, and is the text "none" elsewhere."""
    written: dict[str, dict[str, object]] = {}
    for name, keys in sections.items():
        fields = section_class(name).model_fields
        null = {key for key, value in keys.items() if value is None}
        named = {key: "none" for key in null if key in fields and fields[key].default is not None}
        written[name] = {key: value for key, value in keys.items() if key not in null} | named
    return written
