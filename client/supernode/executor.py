"""The executor: takes SuperNode's tasks, and runs each in a process forked from itself.

It stands where Flower starts ``flower-superexec``, which starts a fresh ``flwr-clientapp`` for each message. A forked
process has PyTorch, Flower and the client imported already, and is as much a process of its own: what it leaks,
breaks or locks goes with it. An app other than the one installed here, which may have modules of the same names,
gets the fresh ``flwr-clientapp``.

`client.supernode.prefork` starts it, and starts it again. It must not start a thread or touch CUDA before it forks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import httpx
import numpy as np
from flwr.common.constant import APP_DIR, FAB_HASH_TRUNCATION
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.utils import get_flwr_home
from flwr.supernode.runtime import run_clientapp as runtime

from client.app import app
from client.exits import exit_status
from client.supernode.executor_link import hear, tell_failure
from common.system.flower_backoff import pull_soon
from common.system.programs import find_program
from common.system.supervisor import end_with_parent, ended_children
from common.torchvision_compat import import_torchvision

# SuperNode says when there is a message; should that be lost, it is found so late.
LOOK_SECONDS = 60.0
KEPT_APPS = 2  # unpacked, beside those in use
TASKS = "tasks"  # folders of the programs that are running, in Flower's part of the state folder
ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
PR_SET_NAME = 15
# Where memory runs out, the kernel ends the message before anything else of the device.
OOM_SCORE = "500"


@dataclass
class Executor:
    """The state of one executor.

    ``address`` is that of SuperNode's Runtime API, ``secret`` what it knows its executor by, ``link`` this end of
    `client.supernode.executor_link`. A ``cold`` one, with none of that imported, starts a fresh ``flwr-clientapp`` for
    every message.
    """

    address: str
    secret: bytes
    link: socket.socket
    cold: bool = False
    running: dict[int, int] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    home: Path = field(default_factory=get_flwr_home)
    using: dict[int, str] = field(default_factory=dict)  # task → hash of the app that a fresh program runs

    def run(self) -> NoReturn:
        """Work until this process is ended."""
        waking, woken = os.pipe()
        os.set_blocking(waking, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        client = RuntimeHttpClient.from_server_address(
            self.address,
            insecure=True,
            root_certificates=None,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperExec"),
                SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=ACQUIRE),
            ],
        )
        while True:
            ready, _, _ = select.select([waking, self.link.fileno()], [], [], LOOK_SECONDS)
            if waking in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(waking, 4096)
            self.reap()
            announced = self.listen()
            # A look without a message costs a request; one that waits for its process to end needs none.
            if announced or (not ready and not self.running):
                self.take(client)

    def listen(self) -> bool:
        """Hear what SuperNode announced and what it gave up; whether there is a message."""
        announced = False
        while (heard := hear(self.link)) is not None:
            if "drop" in heard:
                self.drop(heard["drop"])
                continue
            announced = True
            if heard["own"] and not self.cold:
                self.own.add(heard["fab"])
                if heard["torchvision"]:
                    # Once for all messages: its import takes seconds on a small device. Not at the start, for most
                    # models do without. What is wrong with it is said by the message that needs it.
                    with contextlib.suppress(Exception):
                        import_torchvision()
        return announced

    def drop(self, task: int) -> None:
        """End the process of a task whose message was lost on its way, if one has begun."""
        for pid, known in self.running.items():
            if known == task:
                os.kill(pid, signal.SIGKILL)

    def take(self, client: RuntimeHttpClient) -> None:
        """Start a process for each task that waits."""
        while True:
            try:
                taken = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
            except httpx.HTTPError as error:
                print(f"The SuperNode does not answer its executor: {error}", flush=True)
                return
            if not (taken.HasField("task") and taken.token):
                return
            try:
                self.running[self.start(taken.task, taken.token)] = taken.task.task_id
            except OSError as error:
                tell_failure(self.link, f"No process could be started for it ({error.strerror}).", taken.task.task_id)

    def start(self, task: Any, token: str) -> int:
        """Start the process of a task; its process id."""
        if task.fab_hash not in self.own:
            return self.start_fresh(task, token)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self.work(token)
        return pid

    def start_fresh(self, task: Any, token: str) -> int:
        """Start a fresh program for a task; its process id.

        What it unpacks on its way lies in a folder that goes with it. Of the apps themselves few stay, for the server
        can make ever new ones: the same files compressed otherwise have another hash.
        """
        self.using[task.task_id] = task.fab_hash
        used = tuple(f".{fab_hash[:FAB_HASH_TRUNCATION]}" for fab_hash in self.using.values())
        unused = [folder for folder in (self.home / APP_DIR).glob("*") if not folder.name.endswith(used)]
        for folder in sorted(unused, key=lambda folder: folder.stat().st_mtime, reverse=True)[KEPT_APPS:]:
            shutil.rmtree(folder, ignore_errors=True)
        place = self._place(task.task_id)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True, mode=0o700)
        (place / "token").write_text(token)  # not on a command line, which all users of the device see
        where = ["--runtime-api-address", self.address, "--token-file", str(place / "token"), "--insecure"]
        command = [find_program("flwr-clientapp"), *where, "--parent-pid", str(os.getpid())]
        # A Popen would reap it behind our back.
        return os.posix_spawn(command[0], command, {**os.environ, "TMPDIR": str(place)})

    def _place(self, task: int) -> Path:
        return self.home / TASKS / str(task)

    def work(self, token: str) -> NoReturn:
        """In the forked process: one message, and the end."""
        status = 1
        try:
            become("bouquet-message", signal.SIGKILL)
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.link.close()
            np.random.seed()  # each process starts with numbers of its own; Python sees to its generator itself
            # The app is file for file what is imported here, and need not be unpacked again.
            runtime.install_from_fab = lambda *_, **__: Path()
            runtime.get_load_client_app_fn = lambda **_: lambda *_: app
            pull_soon()
            runtime.run_clientapp(self.address, token, insecure=True)
        except SystemExit as ending:
            status = exit_status(ending)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def reap(self) -> None:
        """Collect the processes that have ended, and say so: SuperNode knows which messages are answered."""
        for pid, status in ended_children():
            if (task := self.running.pop(pid, None)) is not None:
                if self.using.pop(task, None) is not None:
                    shutil.rmtree(self._place(task), ignore_errors=True)
                tell_failure(self.link, f"The process that worked on it {ended(status)}.", task)


def become(name: str, when_parent_ends: signal.Signals) -> None:
    """Give a forked process a name of its own, and have it end with its parent (Linux; elsewhere nothing happens)."""
    end_with_parent(when_parent_ends)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def ended(status: int) -> str:
    """A status of ``waitpid`` in words."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with status {code} before it had answered"
    name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
    return f"was ended by {name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")
