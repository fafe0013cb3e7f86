"""What has tasks done: the warm trainer beside the agent, or a fresh Python for each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bouquet.client.agent.trainer import LARGEST_PACKET, ended
from bouquet.common.texts import CONTROLS

LONGEST_PAUSE_SECONDS = 60.0
STEADY_SECONDS = 10.0
END_SECONDS = 5.0  # for processes that were killed
LONGEST_LINE = 2**16
SMALL = {"MALLOC_ARENA_MAX": "2", "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}


class Worker:
    """Runs one task after another. ``say`` is given each line that they print."""

    def __init__(self, folder: Path, say: Callable[[str], None], cold: bool, trainer: int | None = None) -> None:
        self.folder, self.say, self.cold = folder, say, cold
        self._given = None if trainer is None else socket.socket(fileno=trainer)
        self._link: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None  # the trainer, or a fresh one of a single task
        self._started = 0.0
        self._pause = 0.0
        self._number = 0  # of the last task, so that what is said of one that was stopped is not taken for another's
        self._lines: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Have the trainer import what it needs, before there is a task."""
        if not self.cold and self._link is None:
            await self._start_trainer()

    async def _start_trainer(self) -> None:
        if self._given is not None:
            self._link, self._given = self._given, None
        else:
            await asyncio.sleep(self._pause)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                number = theirs.fileno()
                self._process = await self._spawn("bouquet.client.agent.trainer", str(number), descriptors=(number,))
            self._link, self._started = ours, asyncio.get_running_loop().time()
        self._link.setblocking(False)

    async def _spawn(
        self, module: str, *arguments: str, code: Path | None = None, descriptors: Sequence[int] = ()
    ) -> asyncio.subprocess.Process:
        environment = {**os.environ, **SMALL}
        if code is not None:
            environment["PYTHONPATH"] = str(code)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", module, *arguments),  # -P: not the modules of the folder that this is in
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=LONGEST_LINE,
            env=environment,
            pass_fds=descriptors,
            process_group=0,  # Ctrl-C at a terminal ends the agent, and that ends these
        )
        lines = asyncio.ensure_future(self._forward(process))
        self._lines.add(lines)
        lines.add_done_callback(self._lines.discard)
        return process

    async def _forward(self, process: asyncio.subprocess.Process) -> None:
        """Say what it prints, until it has ended."""
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # longer than any line should be
                continue
            if not line:
                await process.wait()
                return
            text = CONTROLS.sub("", line.decode("utf-8", errors="replace").rstrip("\r\n"))
            if text.strip():
                self.say(text)

    async def do(self, identifier: str, code: Path | None, torchvision: bool) -> str:
        """Have a task done; why it was not, empty where it was. ``code`` is where code lies that is not installed."""
        if self.cold or code is not None:
            process = await self._spawn(
                "bouquet.client.agent.task", str(self.folder), identifier, str(os.getpid()), code=code
            )
            try:
                return ended(await process.wait())
            except asyncio.CancelledError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                raise
        loop = asyncio.get_running_loop()
        self._number = number = self._number + 1
        asked = {"number": number, "task": identifier, "folder": str(self.folder), "torchvision": torchvision}
        while True:
            await self.start()
            link = self._link
            assert link is not None
            try:
                await loop.sock_sendall(link, json.dumps(asked).encode())
                break
            except OSError:  # it ended while there was nothing to do
                await self._lost()
        try:
            while True:
                heard = await loop.sock_recv(link, LARGEST_PACKET)
                if not heard:
                    break
                said = json.loads(heard)
                if said.get("number") == number:
                    return str(said["ended"])
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                link.send(json.dumps({"stop": number}).encode())
            raise
        except OSError:
            pass
        return await self._lost()

    async def _lost(self) -> str:
        """The trainer is gone: how it ended; another will be started."""
        if self._link is not None:
            self._link.close()
            self._link = None
        status = -signal.SIGKILL if self._process is None else await self._process.wait()
        lived = asyncio.get_running_loop().time() - self._started
        self._pause = 0.0 if lived > STEADY_SECONDS else min(2 * self._pause + 1, LONGEST_PAUSE_SECONDS)
        reason = ended(status) or "ended"
        self.say(f"The trainer {reason}. Starting it again" + (f" in {self._pause:g} s." if self._pause else "."))
        return f"is gone with the trainer, which {reason}"

    async def close(self) -> None:
        """End it, and the task in hand."""
        if self._link is not None:
            self._link.close()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        if self._lines:  # asyncio complains of a process whose end it has not seen
            await asyncio.wait(self._lines, timeout=END_SECONDS)
