"""Processes that Bouquet starts, and how all of them end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any

from common.system import supervisor
from common.system.log_file import LogFile
from common.system.programs import find_program, plain_text, tail

GROUP_VARIABLE = "BOUQUET_GROUP"
SENT_AGAIN_SECONDS = 0.05  # after which a signal is sent again whose `SystemExit` something swallowed
SUPERVISOR_MARGIN_SECONDS = 5.0
LAST_LINES_SECONDS = 5.0  # for what a program said last, where whoever is to take it stands still
LONGEST_LINE = 2**16  # bytes, or characters; of what is longer the rest is dropped


class ManagedProcess:
    """One program of a `ProcessGroup`, with everything it started."""

    def __init__(
        self,
        name: str,
        log_file: Path | None,
        handle: subprocess.Popen[bytes],
        readers: Sequence[Callable[[str], None]] = (),
    ) -> None:
        self.name = name
        self.log_file = log_file
        self._handle = handle
        self._reader: threading.Thread | None = None
        if readers and handle.stdout is not None:
            self._reader = threading.Thread(target=_forward, args=(handle.stdout, readers), daemon=True)
            self._reader.start()

    @property
    def alive(self) -> bool:
        """Whether the program, or something it started, still runs."""
        return self._handle.poll() is None

    @property
    def pids(self) -> list[int]:
        """The program's process id, then those it started; empty once it has ended, and where there is no /proc."""
        return supervisor.descendants(self._handle.pid)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and for its last line; the exit status. `TimeoutError` after ``timeout`` seconds."""
        try:
            status = self._handle.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} still runs after {timeout:g} s.") from None
        if self._handle.stdin is not None:
            self._handle.stdin.close()
        if self._reader is not None:
            self._reader.join(LAST_LINES_SECONDS)
        return status

    def request_stop(self) -> None:
        """Ask for the end (SIGTERM, later SIGKILL) and return at once; asking again ends it without grace."""
        self._handle.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Last resort: SIGKILL to all of it, the supervisor last."""
        for pid in [*self.pids, self._handle.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._handle.wait()

    def tail(self, lines: int = 15) -> str:
        """The last lines it wrote to its log file, without colours and times."""
        return "" if self.log_file is None else tail(self.log_file, lines)


class ProcessGroup:
    """Programs that end together: a context manager, whose end, however it comes, ends all of them.

    ``grace`` is how many seconds a program has to leave after SIGTERM. Inside the ``with`` block of a main thread,
    SIGTERM and SIGHUP raise `SystemExit`, as Ctrl-C raises `KeyboardInterrupt`, so that the block is left in order;
    if this process is killed outright, the supervisors notice and end their programs by themselves.
    Every program carries ``BOUQUET_GROUP`` = `tag` in its environment, by which it can be told from others.
    """

    def __init__(self, grace: float = 10.0) -> None:
        self.grace = grace
        self.tag = uuid.uuid4().hex
        self.processes: list[ManagedProcess] = []
        self._previous: dict[signal.Signals, Any] = {}
        self._previous_hook = sys.unraisablehook
        self._left = False
        self._on_the_way = 0  # exceptions of signals that have not come to the end of the block yet

    def __enter__(self) -> ProcessGroup:
        self._left = False
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                    self._previous[number] = signal.signal(number, self._leave)
        if self._previous:
            self._previous_hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        try:
            self.terminate()
        finally:
            if self._previous:
                sys.unraisablehook = self._previous_hook
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            self._previous.clear()

    def _leave(self, number: int, _frame: FrameType | None) -> None:
        self._on_the_way += 1
        raise _Left(number, self._swallowed)

    def _swallowed(self, number: int) -> None:
        self._on_the_way -= 1
        if not self._left:
            again = threading.Timer(SENT_AGAIN_SECONDS, self._send_again, (number,))
            again.daemon = True
            again.start()

    def _send_again(self, number: int) -> None:
        if not self._left and not self._on_the_way:
            os.kill(os.getpid(), number)

    def _unraisable(self, found: sys.UnraisableHookArgs) -> None:
        # Of a signal that came in a finaliser nothing is printed: it is sent again.
        if not isinstance(found.exc_value, _Left):
            self._previous_hook(found)

    def start(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        log_file: Path | None = None,
        on_line: Callable[[str], None] | None = None,
        leave_out: re.Pattern[str] | None = None,
        *,
        again: bool = False,
    ) -> ManagedProcess:
        """Start a program in a session of its own; its output is appended to ``log_file``, as `LogFile` has it.

        Lines that ``leave_out`` matches are not kept. With ``on_line``, each line of output goes there, too, without
        colours, from a thread; with neither, the program writes where this process writes. ``argv[0]`` is a path or a
        name that `find_program` knows. With ``again`` it is started once more each time that it ends.
        """
        program = argv[0] if os.sep in argv[0] else find_program(argv[0])
        command = [sys.executable, "-I", "-S", supervisor.__file__, f"{self.grace:g}"]
        command += [*([supervisor.AGAIN] if again else []), program, *argv[1:]]
        log = None if log_file is None else LogFile(log_file, name, leave_out)
        readers = [read for read in (None if log is None else log.write, on_line) if read is not None]
        output = subprocess.PIPE if readers else None
        handle = subprocess.Popen(
            command,
            env={**env, GROUP_VARIABLE: self.tag},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
        )
        process = ManagedProcess(name, log_file, handle, readers)
        # Looking also collects those that have ended: a server that takes runs for years would gather them.
        self.processes = [*(other for other in self.processes if other.alive), process]
        return process

    def stop(self, process: ManagedProcess) -> int:
        """End one program and what it started; returns its exit status."""
        return self._stop_all([process])[0]

    def terminate(self) -> None:
        """End all programs, the last started first asked; returns when nothing is left. May be called again."""
        self._stop_all(self.processes[::-1])

    def _stop_all(self, processes: Sequence[ManagedProcess]) -> list[int]:
        for process in processes:
            if process.alive:
                process.request_stop()
        deadline = time.monotonic() + self.grace + SUPERVISOR_MARGIN_SECONDS
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                process.kill()
        return [process.wait() for process in processes]


class _Left(SystemExit):
    """What a signal raises, wherever the program happens to be.

    Not everything lets it through: Python ignores what is raised in a finaliser, and matplotlib's compiled code what is
    raised while it reads a path. An exception that leaves the group's block lives until then; one that is gone before
    was swallowed.
    """

    def __init__(self, number: int, swallowed: Callable[[int], None]) -> None:
        super().__init__(128 + number)
        self.number = number
        self.swallowed = swallowed

    def __del__(self) -> None:
        self.swallowed(self.number)


def _forward(stream: IO[bytes], readers: Sequence[Callable[[str], None]]) -> None:
    """Hand on what a program prints. Some of it is strangers' word: no line may end this, or the program would wait."""
    whole = True
    with stream:
        while raw := stream.readline(LONGEST_LINE):
            line = plain_text(raw.decode("utf-8", errors="replace").rstrip("\r\n"))
            for read in readers if whole else ():
                try:
                    read(line)
                except Exception:
                    traceback.print_exc()
            whole = raw.endswith(b"\n")
