"""A server and a growing fleet, over mutual TLS: seconds a round, and the CPU and memory of the whole server.

Devices are scripted: coroutines of a few processes beside the server, each with a certificate, a connection and a
stream of its own, which speak the service's frames and send the model back a little changed. Nobody trains, so that
what is seen is the server and the wire. From the repository's root:

    python -m benchmarks.fleet_size --scripted 10 100 300 1000
    python -m benchmarks.fleet_size --rest 5000            (streams on which nothing is asked: CPU of the server)
    python -m benchmarks.fleet_size --large 100            (40 MB each way, three rounds: memory of the server)

CPU is user's and system's, of the server and of whatever it starts, from the end of the second round to that of the
last, or over ``--seconds`` at rest. Memory is the largest that the server's process had in RAM (Linux: VmHWM).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.links import programs, written_lines
from benchmarks.processes import cpu_seconds, most_resident, resident
from bouquet.common.system.ports import free_port
from bouquet.common.system.processes import ending_in_order
from bouquet.keys.store import add_device, init_keys
from bouquet.server.service.open_files import raise_open_files

STEP_SECONDS = 0.1
PATIENCE_SECONDS = 1800.0
BEFORE = 2  # rounds that are not counted: the first also asks who one is
LEAST_REPLIES = 200  # that count: of a small fleet more rounds
AT_ONCE = 50  # handshakes of a process: of strangers the server bears so many
SETTLE_SECONDS = 60.0  # at rest, before it counts
SMALL = {"data.dataset": "digits", "model.name": "cnn-dcpfl"}  # 87 kB
LARGE = {"data.dataset": "digits", "model.name": "mlp", "model.hidden": "[3100,3100]"}  # 40 MB


def settings_of(kind: str, clients: int, rounds: int, more: list[str]) -> list[str]:
    """The settings of a run, as the command line takes them."""
    values: dict[str, Any] = {**(LARGE if kind == "large" else SMALL), "run.rounds": rounds}
    values |= {"server.min_clients": clients + (kind == "rest"), "strategy.name": "fedavg", "data.clients": clients}
    values |= {"server.round_timeout": 1800, "server.straggler_grace": 1800, "server.wait_for_clients": 1800}
    return [word for text in [*(f"{k}={v}" for k, v in values.items()), *more] for word in ("--set", text)]


@dataclass(frozen=True)
class Running:
    """A server, its devices' processes, and when they have taken too long."""

    folder: Path
    server: subprocess.Popen[bytes]
    devices: list[subprocess.Popen[bytes]]
    deadline: float

    def wait(self, true: Callable[[], bool], what: str) -> None:
        """Until it is so; ends the program where it never will be."""
        while not true():
            ended = [p.args for p in (self.server, *self.devices) if p.poll() is not None]
            if ended or time.monotonic() > self.deadline:
                log = (self.folder / "log").read_text(errors="replace")[-3000:]
                sys.exit(f"{what}: {f'{ended} ended' if ended else 'not in time'}\n{log}")
            time.sleep(STEP_SECONDS)

    def connected(self) -> int:
        """How many devices the server says are there."""
        file = self.folder / "run" / "service" / "connections.json"
        return sum(device["connected"] for device in json.loads(file.read_text())) if file.exists() else 0


@contextmanager
def federation(kind: str, clients: int, rounds: int, options: argparse.Namespace) -> Iterator[Running]:
    """A run of so many devices."""
    sets = settings_of(kind, clients, rounds, options.set)
    with tempfile.TemporaryDirectory(prefix="fleet-size-") as temporary:
        folder, port = Path(temporary), free_port()
        init_keys(folder / "keys", ["127.0.0.1"])
        for number in range(clients):
            add_device(folder / "keys", f"device-{number:05d}")
        with programs(folder) as start:
            where = ("--keys", "keys", "--host", "127.0.0.1", "--port", str(port), "--out", "run")
            server = start(sys.executable, "-m", "bouquet", "server", *where, *sets)
            parts = [f"{n}:{clients}:{options.processes}" for n in range(min(options.processes, clients))]
            be = (sys.executable, "-m", "benchmarks.fleet_size", *sets, *(["--same"] if kind == "large" else []))
            devices = [start(*be, "--be", f"127.0.0.1:{port}", part) for part in parts]
            yield Running(folder, server, devices, time.monotonic() + PATIENCE_SECONDS)


def rounds(kind: str, clients: int, options: argparse.Namespace) -> dict[str, float]:
    """What a round and a device of it cost."""
    counted = 1 if kind == "large" else max(options.rounds, LEAST_REPLIES // clients)
    with federation(kind, clients, BEFORE + counted, options) as running:
        record = running.folder / "run"
        running.wait(lambda: len(written_lines(record)) >= BEFORE, "the first rounds")
        before, at_first = cpu_seconds(running.server.pid), len(written_lines(record))
        running.wait(lambda: len(written_lines(record)) >= BEFORE + counted, "the last round")
        cpu = cpu_seconds(running.server.pid) - before
        most = most_resident(running.server.pid)
        lines = written_lines(record)[at_first:]
    replies = sum(line["replies"] for line in lines)
    return {
        "devices": clients,
        "seconds a round": median(line["seconds"] for line in lines),
        "CPU ms a device and round": 1000 * cpu / replies,
        "fewest replies": min(line["replies"] for line in lines),
        "MB at most": most / 1e6,
        "MB of the models": sum(line["bytes_up"] for line in lines) / len(lines) / 1e6,
    }


def rest(_: str, clients: int, options: argparse.Namespace) -> dict[str, float]:
    """What streams cost on which nothing is asked."""
    with federation("rest", clients, 1, options) as running:
        started = time.monotonic()
        running.wait(lambda: running.connected() >= clients, "all devices are connected")
        took = time.monotonic() - started
        time.sleep(SETTLE_SECONDS)
        before, started = cpu_seconds(running.server.pid), time.monotonic()
        time.sleep(options.seconds)
        cpu, passed = cpu_seconds(running.server.pid) - before, time.monotonic() - started
        return {
            "devices": clients,
            "seconds until all are connected": took,
            "CPU ms a second": 1000 * cpu / passed,
            "still connected": running.connected(),
            "MB": resident(running.server.pid) / 1e6,
        }


# --- scripted devices ------------------------------------------------------------------------------------------


class Devices:
    """The devices of one process. Where all send the ``same``, the first of a round makes it."""

    def __init__(self, server: str, sets: list[str], same: bool) -> None:
        from bouquet.common.model.build import initial_model, state_vector
        from bouquet.common.settings import load_settings

        self.server, self.same = server, same
        self.layout, _ = state_vector(initial_model(load_settings(None, sets)))
        self.room = asyncio.Semaphore(AT_ONCE)
        self.makers: dict[tuple[str, str], str] = {}
        self.made: dict[tuple[str, str], asyncio.Future[bytes]] = {}

    async def live(self, number: int) -> None:
        """One device, until this process is ended."""
        import grpc

        from bouquet.experiments.simulation.inline_grid import scripted_client

        name = f"device-{number:05d}"
        handle = scripted_client(name, self.layout, lambda model, _: model + 0.001 * (number % 7 + 1))
        keys = [Path("keys", "devices", name, file).read_bytes() for file in ("ca.crt", "device.key", "device.crt")]
        credentials, session = grpc.ssl_channel_credentials(*keys), os.urandom(16)
        while True:
            try:
                await self._connection(credentials, session, handle)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the server is not there yet
                await asyncio.sleep(1.0)

    async def _connection(self, credentials: Any, session: bytes, handle: Callable[[Any], Any]) -> None:
        import grpc

        from bouquet.common.wire.fleet_pb2 import DeviceFrame, ServerFrame
        from bouquet.common.wire.transfer import CHUNK_BYTES, MAJOR, METHOD, content_of

        replies: dict[str, bytes] = {}
        coming: dict[str, tuple[Any, list[bytes]]] = {}
        sent: dict[str, int] = {}
        node = 0
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(self.server, credentials, options) as channel:
            call = channel.stream_stream(METHOD)()

            async def say(**what: Any) -> None:
                await call.write(DeviceFrame(**what).SerializeToString())

            async def answer(task: Any, content: bytes) -> None:
                data = replies[task.id] = await self._reply(task, content, node, handle)
                await say(reply={"id": task.id, "content": content_of(data)})

            async with self.room:
                await say(hello={"major": MAJOR, "session": session, "release": "scripted"})
                first = await call.read()
            while first is not grpc.aio.EOF:
                frame = ServerFrame.FromString(first)
                kind = frame.WhichOneof("frame")
                if kind == "welcome":
                    node = frame.welcome.node
                elif kind == "ping":
                    await say(pong={})
                elif kind == "task" and len(frame.task.content.data) == frame.task.content.size:
                    await answer(frame.task, frame.task.content.data)
                elif kind == "task":
                    coming[frame.task.id] = frame.task, []
                    await say(credit={"id": frame.task.id, "offset": 0, "end": frame.task.content.size})
                elif kind == "chunk":
                    task, parts = coming[frame.chunk.id]
                    if self._makes(task):
                        parts.append(frame.chunk.data)
                    if frame.chunk.offset + len(frame.chunk.data) == task.content.size:
                        del coming[task.id]
                        await answer(task, b"".join(parts))
                elif kind == "credit":
                    data = replies[frame.credit.id]
                    begin = frame.credit.offset if frame.credit.HasField("offset") else sent[frame.credit.id]
                    for at in range(begin, frame.credit.end, CHUNK_BYTES):
                        part = data[at : min(at + CHUNK_BYTES, frame.credit.end)]
                        await say(chunk={"id": frame.credit.id, "offset": at, "data": part})
                    sent[frame.credit.id] = frame.credit.end
                elif kind == "received":
                    replies.pop(frame.received.id, None)
                first = await call.read()

    def _makes(self, task: Any) -> bool:
        """Whether the reply to this task is made here, and its content needed for that."""
        if not self.same or task.type.startswith("query"):
            return True
        key = task.type, task.group
        if key not in self.makers:
            self.makers[key], self.made[key] = task.id, asyncio.get_running_loop().create_future()
        return self.makers[key] == task.id

    async def _reply(self, task: Any, content: bytes, node: int, handle: Callable[[Any], Any]) -> bytes:
        from bouquet.common.wire.flower import content_bytes, instruction

        key = task.type, task.group
        if not self._makes(task):
            return await self.made[key]
        message = instruction(content, task.id, task.run, node, task.type, task.group, max(1.0, task.seconds))
        made = content_bytes(handle(message).content)
        if key in self.makers:
            self.made[key].set_result(made)
        return made


async def be(server: str, part: str, sets: list[str], same: bool) -> None:
    """Be the devices of this part, until this process is ended."""
    raise_open_files()
    devices = Devices(server, sets, same)
    first, last, step = map(int, part.split(":"))
    await asyncio.gather(*(devices.live(number) for number in range(first, last, step)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripted", type=int, nargs="*", default=[], metavar="N")
    parser.add_argument("--large", type=int, nargs="*", default=[], metavar="N")
    parser.add_argument("--rest", type=int, nargs="*", default=[], metavar="N")
    parser.add_argument("--rounds", type=int, default=5, help=f"that count, after {BEFORE} others")
    parser.add_argument("--seconds", type=float, default=60, help="that count at rest")
    parser.add_argument("--processes", type=int, default=2, help="of the scripted devices")
    parser.add_argument("--set", action="append", default=[], help="a setting of every run, such as wire.up=int4")
    parser.add_argument("--json", type=Path, help="also write what was found to this file")
    parser.add_argument("--be", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--same", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        server, part = options.be
        return asyncio.run(be(server, part, options.set, options.same))
    results = []
    for kind, measure in (("scripted", rounds), ("large", rounds), ("rest", rest)):
        for clients in getattr(options, kind):
            before = os.getloadavg()[0]
            with ending_in_order():
                found = measure(kind, clients, options)
            results.append({"kind": kind, **found, "load before": before, "load": os.getloadavg()[0]})
            print("; ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in results[-1].items()))
            sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
