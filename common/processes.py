"""Programs that Bouquet starts: finding them, their ports, their environment, and ending all of them.

A `ProcessGroup` starts each program below ``common/supervisor.py``, which explains why: whatever the program starts,
detached or not, ends with it, also when this process is killed. No psutil: Flower does not bring it, and a list of
children that is read at the end lacks just those that were detached before.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any

from common import supervisor
from common.errors import BouquetError
from common.log_file import OWN_TIME, LogFile
from common.texts import CONTROLS

GROUP_VARIABLE = "BOUQUET_GROUP"
SUPERVISOR_MARGIN_SECONDS = 5.0
LONGEST_LINE = 2**16  # bytes, or characters; of what is longer the rest is dropped
ANSI_SEQUENCE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def find_program(name: str) -> str:
    """Absolute path of an installed program: beside this Python, else on PATH; an error says what to install."""
    beside = [str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    found = shutil.which(name, path=os.pathsep.join(beside)) or shutil.which(name)
    if found is None:
        raise BouquetError(
            f"The program {name!r} is neither in {beside[0]} nor on PATH. It comes with Flower: "
            "pip install 'flwr>=1.39,<1.40' into the environment that runs bouquet."
        )
    return str(Path(found).absolute())


def program_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, made fit for Flower's programs, with ``extra`` on top.

    PATH is led by the folders of this Python's programs, because SuperLink and SuperNode start
    ``flower-superexec`` and ``flwr-*app`` by name; Flower's telemetry and update check are off; what Flower's own
    programs say to each other on this machine takes no proxy; a task that waits is looked for every 0.1 s instead of
    every second, unless the environment says otherwise.
    """
    environment = dict(os.environ)
    folders = [str(Path(sys.executable).parent), sysconfig.get_path("scripts"), environment.get("PATH", os.defpath)]
    environment["PATH"] = os.pathsep.join(dict.fromkeys(folders))
    environment.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.1")
    environment |= {
        **without_proxy(environment),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return environment | dict(extra or {})


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that keep what is said on this machine from a proxy, beside what they keep from it already."""
    given = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    hosts = ",".join(dict.fromkeys([*filter(None, given.split(",")), "127.0.0.1", "localhost", "::1"]))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[IPv6]:port``; anything else is an error that shows the form."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    # A colon in a host without brackets is an IPv6 address whose last group would be read as the port.
    bare_ipv6 = ":" in host and not address.startswith("[")
    if not colon or not host or bare_ipv6 or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise BouquetError(
            f"The address {address!r} is not of the form host:port, such as 192.168.1.10:9092 or [::1]:9092, "
            "with a port from 1 to 65535."
        )
    return host, int(port)


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port of ``host`` that nothing listens on now; the system chooses it."""
    with _socket_for(host) as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


def check_port_free(host: str, port: int, what: str) -> None:
    """Raise `BouquetError` unless this process could listen on ``host:port``; ``what`` names whom it is for."""
    with _socket_for(host) as listener:
        # Like every server: a port whose last connection is still winding down is free. Not SO_REUSEPORT, with
        # which gRPC would share the port with another SuperLink without a word.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(1)
        except OSError as error:
            found = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            raise BouquetError(
                f"Port {port} on {host} {found}, needed for {what}. End what listens there "
                f"(ss -ltnp 'sport = :{port}' shows it) or choose another port."
            ) from None


def wait_for_port(host: str, port: int, timeout: float, alive: Callable[[], bool] = lambda: True) -> None:
    """Return once something accepts TCP connections on ``host:port``.

    Raises `BouquetError` after ``timeout`` seconds, or as soon as ``alive()`` is false.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            with socket.create_connection((host, port), timeout=1.0):
                return
        except OSError as error:
            reason = error.strerror or str(error)
        if not alive():
            raise BouquetError(f"Nothing will listen on {host}:{port}: the program that should has ended.")
        if time.monotonic() >= deadline:
            raise BouquetError(f"Nothing listens on {host}:{port} after {timeout:g} s ({reason}).")
        time.sleep(0.05)


def plain_text(text: str) -> str:
    """Terminal colours taken out, which Flower writes into files too, and whatever else steers a terminal."""
    return CONTROLS.sub("", ANSI_SEQUENCE.sub("", text))


def tail(log_file: Path, lines: int = 15) -> str:
    """The last lines of a log, without colours and times; empty where there is none."""
    if not log_file.exists():
        return ""
    written = plain_text(log_file.read_text(errors="replace")).rstrip().splitlines()[-lines:]
    return "\n".join(OWN_TIME.sub("", line) for line in written)


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
            self._reader.join()
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

    def __enter__(self) -> ProcessGroup:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                self._previous[number] = signal.signal(number, _leave)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.terminate()
        finally:
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            self._previous.clear()

    def start(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        log_file: Path | None = None,
        on_line: Callable[[str], None] | None = None,
        leave_out: re.Pattern[str] | None = None,
    ) -> ManagedProcess:
        """Start a program in a session of its own; its output is appended to ``log_file``, as `LogFile` has it.

        Lines that ``leave_out`` matches are not kept. With ``on_line``, each line of output goes there, too, without
        colours, from a thread; with neither, the program writes where this process writes. ``argv[0]`` is a path or a
        name that `find_program` knows.
        """
        program = argv[0] if os.sep in argv[0] else find_program(argv[0])
        command = [sys.executable, "-I", "-S", supervisor.__file__, f"{self.grace:g}", program, *argv[1:]]
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


def _socket_for(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


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
