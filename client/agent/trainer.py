"""Has PyTorch imported, and forks a process for each task: ``python -m bouquet.client.agent.trainer FD``.

It has neither threads nor gRPC, so that it may fork. The agent, which holds the connection to the server, speaks with
it over a pair of sockets, whose other end it was started with: a JSON object a packet. What a task leaks, breaks or
locks goes with its process. When the agent ends, all of it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import mmap
import os
import re
import select
import signal
import socket
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from bouquet.client.agent.store import TaskStore
from bouquet.common.system.processes import end_with_parent, ended_children

IMPORTED = (
    "torch",
    "numpy.random",
    "PIL",
    "bouquet.client.rounds.session",
    "bouquet.client.rounds.blank_session",
    "bouquet.client.rounds.comparing",
    "bouquet.client.rounds.in_use",
    "bouquet.client.rounds.mixture",
    "bouquet.client.rounds.serving",
    "bouquet.client.data.cache",
    "bouquet.client.data.drift",
    "bouquet.client.trust.policy",
    "bouquet.client.trust.rollback",
    "bouquet.common.model.architectures",
    "bouquet.client.app",
    "bouquet.common.wire.flower",
)
UNUSED = "httpx._main"  # the command line that httpx has where rich and click can be imported; Flower imports httpx
LARGEST_PACKET = 64 * 1024
PR_SET_NAME = 15
# Of /proc/self/smaps: what is mapped of a file, to be read and run alone, and how much of it was written all the same.
MAPPING = re.compile(
    r"^(?P<low>[0-9a-f]+)-(?P<high>[0-9a-f]+) r-[x-]p \S+ \S+ [1-9]\d* +/.*\n"
    r"(?:\w+:.*\n)*?Anonymous: +(?P<written>\d+) kB",
    re.MULTILINE,
)
OOM_SCORE = "500"  # where memory runs out, the kernel ends a task before anything else of the device


@dataclass
class Trainer:
    """The state of one trainer; ``link`` is its end of the pair."""

    link: socket.socket
    running: dict[int, int] = field(default_factory=dict)  # process → number of its task

    def run(self) -> NoReturn:
        """Work until the agent ends."""
        waking, woken = os.pipe()
        os.set_blocking(waking, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.say(ready=True)
        while True:
            ready, _, _ = select.select([waking, self.link.fileno()], [], [])
            if waking in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(waking, 4096)
            self.reap()
            if self.link.fileno() in ready:
                heard = self.link.recv(LARGEST_PACKET)
                if not heard:
                    for pid in self.running:
                        os.kill(pid, signal.SIGKILL)
                    os._exit(0)
                self.do(json.loads(heard))

    def do(self, asked: dict[str, Any]) -> None:
        """Begin a task, or end one."""
        if "stop" in asked:
            for pid, number in self.running.items():
                if number == asked["stop"]:
                    os.kill(pid, signal.SIGKILL)
            return
        if asked.get("torchvision"):
            # Once for all tasks: its import takes seconds on a small device. Not at the start, for most models do
            # without. What is wrong with it is said by the task that needs it.
            with contextlib.suppress(Exception):
                from bouquet.common.torchvision_compat import import_torchvision

                import_torchvision()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self.say(number=asked["number"], ended=f"could not be started ({error.strerror})")
            return
        if pid == 0:
            self.work(asked, parent)
        self.running[pid] = asked["number"]

    def work(self, asked: dict[str, Any], parent: int) -> NoReturn:
        """In the forked process: one task, and the end."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            become("bouquet-task", signal.SIGKILL, parent)
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
            self.link.close()
            import numpy as np

            from bouquet.client.agent.task import answer

            np.random.seed()  # each process starts with numbers of its own; Python sees to its generator itself
            answer(TaskStore(Path(asked["folder"])), asked["task"])
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def reap(self) -> None:
        """Collect the processes that have ended, and say so."""
        for pid, status in ended_children():
            if (number := self.running.pop(pid, None)) is not None:
                self.say(number=number, ended=ended(os.waitstatus_to_exitcode(status)))

    def say(self, **what: Any) -> None:
        """Tell the agent."""
        with contextlib.suppress(OSError):  # it is gone, which is heard next
            self.link.send(json.dumps(what).encode())


def become(name: str, when_parent_ends: signal.Signals, parent: int | None = None) -> None:
    """Give a process a name of its own, and have it end with its parent (Linux), and not by itself on Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(when_parent_ends, parent)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def ended(code: int) -> str:
    """How a process ended, in words; empty where it ended well."""
    if code == 0:
        return ""
    if code > 0:
        return f"ended with status {code} before it had answered"
    name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
    return f"was ended by {name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")


def settle() -> None:
    """Call it when all is imported, and before a fork that shares it.

    No collection looks at these objects again, so that their pages stay shared. What importing has touched of the
    libraries' files, some 60 MB for PyTorch, is left to the page cache: a page comes back when it is used.
    """
    gc.collect()
    gc.freeze()
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    for found in MAPPING.finditer(Path("/proc/self/smaps").read_text()):
        # Not where the loader has written into it: that is in no file.
        if found["written"] == "0":
            low, high = int(found["low"], 16), int(found["high"], 16)
            libc.madvise(ctypes.c_void_p(low), ctypes.c_size_t(high - low), mmap.MADV_DONTNEED)


def main(descriptors: list[str]) -> NoReturn:
    """Import what tasks need and serve one agent; of several, each by a process of its own that shares the imports."""
    become("bouquet-train", signal.SIGKILL)
    sys.modules.setdefault(UNUSED, None)  # type: ignore[arg-type]  # as where it cannot be imported
    for module in IMPORTED:
        importlib.import_module(module)
    import bouquet.client.agent.task  # noqa: F401
    from bouquet.client.procedures.registry import procedure
    from bouquet.common.protocol import STANDARD

    procedure(STANDARD)  # a method's own is imported when a task asks for it
    settle()
    own, *others = descriptors
    for other in others:
        if os.fork() == 0:
            own, others = other, []
            become("bouquet-train", signal.SIGKILL)
            break
    for descriptor in descriptors:
        if descriptor != own:
            os.close(int(descriptor))
    Trainer(socket.socket(fileno=int(own))).run()


if __name__ == "__main__":
    main(sys.argv[1:])
