"""The gate as a program: started by `server.superlink.process`, and again whenever it has crashed."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import grpc

from server.gate import open_files
from server.gate.authorization import Authorization
from server.gate.health import serve_health
from server.gate.identity import Identity, RegisteredKeys
from server.gate.limits import Connections, Refusals, door_options, keep_sweeping
from server.gate.relay import Relay
from server.gate.superlink_api import SuperLinkApi
from server.gate.waiting import Waiting

GRACE_SECONDS = 2.0
FORGET_SECONDS = 60.0


@dataclass(frozen=True)
class Options:
    """``listen``, ``superlink`` and ``health`` are ``host:port``; the files are PEM. ``kept`` is the gate's folder."""

    listen: str
    superlink: str
    kept: Path
    message_bytes: int = -1
    most_objects: int = 10_000
    told: str | None = None
    certificate: Path | None = None
    key: Path | None = None
    registered_only: bool = False
    health: str | None = None


def say(line: str) -> None:
    """A line of the log, or none where whoever read it is gone: a call is answered all the same."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


class Gate:
    """A running gate; made inside an event loop."""

    def __init__(self, options: Options) -> None:
        superlink = SuperLinkApi(options.superlink)
        self._identity = Identity(RegisteredKeys(superlink) if options.registered_only else None)
        self._waiting = Waiting(options.told)
        authorization = Authorization(options.kept, options.most_objects, say)
        self._relay = Relay(
            superlink, self._identity, authorization, self._waiting, Refusals(say), options.registered_only
        )
        self._server = grpc.aio.server(handlers=[self._relay], options=door_options(options.message_bytes))
        if options.certificate is None or options.key is None:
            self.port = self._server.add_insecure_port(options.listen)
        else:
            pair = options.key.read_bytes(), options.certificate.read_bytes()
            self.port = self._server.add_secure_port(options.listen, grpc.ssl_server_credentials([pair]))
        self._health = options.health and serve_health(options.health, superlink)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listen."""
        await self._server.start()
        keep_sweeping(Connections(self.port, self._identity.proven))
        self._tasks.append(asyncio.create_task(self._forget()))
        if self._health:
            self._tasks.append(asyncio.create_task(self._health))

    async def stop(self) -> None:
        """Let go of the devices that wait, finish what is in hand, and end."""
        stopping = asyncio.create_task(self._server.stop(GRACE_SECONDS))
        self._waiting.close()
        await stopping
        for task in self._tasks:
            task.cancel()

    async def _forget(self) -> None:
        while True:
            await asyncio.sleep(FORGET_SECONDS)
            self._relay.turns.forget()


async def serve(options: Options) -> None:
    """Run a gate until SIGTERM or SIGINT."""
    gate = Gate(options)
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    open_files.watch(say)
    await gate.start()
    say(f"[gate] Listening on {options.listen}.")
    await over.wait()
    await gate.stop()


def main() -> None:
    """Read the arguments, one for each field of `Options`."""
    parser = argparse.ArgumentParser()
    for name in ("listen", "superlink", "told", "health"):
        parser.add_argument(f"--{name}")
    for name in ("kept", "certificate", "key"):
        parser.add_argument(f"--{name}", type=Path)
    for name in ("message-bytes", "most-objects"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--registered-only", action="store_true")
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(Options(**given)))


if __name__ == "__main__":
    main()
