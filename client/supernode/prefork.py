"""SuperNode and its executor, both forked from this process, which watches them: ``python -m
client.supernode.prefork``.

It imports what both need, forks SuperNode, imports PyTorch and the client, and forks the executor. Memory that nobody
writes to is then there once, and an executor that dies is back at once: it is forked again, with all its imports.
SuperNode hears of it and answers the message that was in hand with an error. When SuperNode ends, all of it ends, with
its status. The arguments are those of `client.supernode.main`.

With ``--cold`` neither PyTorch nor the client is imported, and the executor starts a fresh program for each message.
"""

from __future__ import annotations

import importlib
import os
import secrets
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from client.exits import exit_status
from client.procedures.registry import procedure
from client.supernode import main as supernode_main
from client.supernode.executor_link import LinkedExecutor, make_link, tell_failure
from client.supernode.process import settle
from common.protocol import STANDARD
from common.system.files import write_secret

SHARED = ("client.supernode.executor",)
OURS = ("torch", "PIL", "client.rounds.session", "client.data.cache", "common.model.architectures")
COLD = "--cold"
LOCAL_HOST = "127.0.0.1"
LONGEST_PAUSE_SECONDS = 60.0
STEADY_SECONDS = 10.0


def main(arguments: list[str]) -> NoReturn:
    """``[--cold] SECRET_FILE [OPTIONS OF main.py] -- ARGUMENTS OF flower-supernode``, isolation aside."""
    cold = arguments[0] == COLD
    secret_file, *others = arguments[cold:]
    trust, watch, supernode_arguments = supernode_main.parse(others)
    for module in SHARED:
        importlib.import_module(module)
    # Before anything of ours is imported that an update could replace: what is warm is what was installed now.
    _ = trust.own_files
    secret = secrets.token_bytes(32)  # what SuperNode knows its executor by, new at each start
    write_secret(Path(secret_file), secret)
    _holder, port = _reserve_port()
    supernode_arguments += ["--isolation", "process", "--superexec-auth-secret-file", str(secret_file)]
    supernode_arguments += ["--host", LOCAL_HOST, "--port", str(port)]
    ends = make_link()
    settle()
    supernode = fork(
        "bouquet-node", lambda: supernode_main.run(trust, watch, supernode_arguments, LinkedExecutor(ends[0], trust))
    )
    # Before what takes seconds: SuperNode is connected soon, and one that ended without a word would count as there.
    signal.signal(signal.SIGTERM, lambda number, _frame: _pass_on(supernode, number))
    signal.signal(signal.SIGINT, lambda number, _frame: _pass_on(supernode, number))
    if not cold:
        for module in OURS:
            importlib.import_module(module)
        procedure(STANDARD)  # a method's own is imported when a message asks for it
        settle()

    def execute() -> None:
        from client.supernode.executor import Executor

        Executor(f"{LOCAL_HOST}:{port}", secret, ends[1], cold).run()

    executor, started, pause = fork("bouquet-exec", execute), time.monotonic(), 0.0
    while True:
        pid, status = os.wait()
        if pid == supernode:
            os.kill(executor, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(status)
            sys.exit(code if code >= 0 else 128 - code)
        if pid == executor:
            from client.supernode.executor import ended

            pause = 0.0 if time.monotonic() - started > STEADY_SECONDS else min(2 * pause + 1, LONGEST_PAUSE_SECONDS)
            reason = f"The executor {ended(status)}."
            print(f"{reason} Starting it again" + (f" in {pause:g} s." if pause else "."), flush=True)
            # From the executor's end, which this process holds too.
            tell_failure(ends[1], reason)
            time.sleep(pause)
            executor, started = fork("bouquet-exec", execute), time.monotonic()


def fork(name: str, work: Callable[[], None]) -> int:
    """Fork a process that does ``work`` and ends, also when this one ends; its process id."""
    from client.supernode.executor import become

    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        become(name, signal.SIGTERM)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
        work()
        status = 0
    except SystemExit as ending:
        if isinstance(ending.code, str):
            print(ending.code, file=sys.stderr)
        status = exit_status(ending)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _reserve_port() -> tuple[socket.socket, int]:
    """A port for SuperNode's Runtime API that nobody else gets until it listens there, which is seconds from now.

    A socket that is bound and does not listen does not keep another with SO_REUSEADDR, as web servers set it, away.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((LOCAL_HOST, 0))
    return holder, holder.getsockname()[1]


def _pass_on(pid: int, number: int, _frame: FrameType | None = None) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    main(sys.argv[1:])
