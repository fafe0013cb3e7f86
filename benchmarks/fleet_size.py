"""A server and a growing fleet over gRPC: seconds, bytes and the server's memory and CPU for each client and round.

Devices are real ones (``bouquet client``), or scripted ones: threads of one process, each with its own connection and
key, which look for messages as a device does, pull the model, and push it back a little changed. Nobody trains, so that
what is seen is the server, Flower's SuperLink and the wire. All of them live in one network namespace, whose interface
counts their bytes with all headers. ``--looking`` has scripted devices look for messages that nobody sends, which is
what the part of a fleet costs that is not in a round. With ``--keys`` all of it is over TLS, and each scripted device
has a registered key. Linux, root, iproute2. From the repository's root:

    python -m benchmarks.fleet_size --scripted 10 30 100 300 --real 2 8 --looking 30 100 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.processes import cpu_seconds, own_cpu_seconds, tree
from benchmarks.soak import database, program, resident
from benchmarks.wire import Link, programs, written_lines
from bouquet.keys.store import add_device, init_keys
from common.system.ports import free_port

STEP_SECONDS = 0.1
BEFORE = 2  # rounds that are not counted: the first also sends who one is, the app and the whole model
DESCRIPTORS = 16_384
MODEL = {"data.dataset": "digits", "model.name": "cnn-dcpfl"}
LOOK_EVERY = 2.0  # seconds at least: the gate holds a look for longer
REGISTERED = "devices  registered "  # in the server's log, once a key
LOOKED = "looked"  # the file in which a process of scripted devices says how often they have


def changes(clients: int, rounds: int, more: list[str]) -> list[str]:
    """The settings of a run of so many clients, as KEY=VALUE."""
    values: dict[str, Any] = {**MODEL, "data.clients": clients, "server.min_clients": clients, "run.rounds": rounds}
    values |= {"data.samples_per_client": 10, "train.local_epochs": 1, "strategy.name": "fedavg"}
    values |= {"server.round_timeout": 1800, "server.straggler_grace": 1800, "server.wait_for_clients": 1800}
    return [f"{key}={value}" for key, value in values.items()] + more


def federation(kind: str, clients: int, options: argparse.Namespace) -> dict[str, float]:
    """One run; what it cost for each client and round, or of devices that look in vain, for each look."""
    link, port = Link(0, None), str(free_port())
    rounds = BEFORE + options.rounds
    # Of those who are there none is asked for anything as long as one more is waited for.
    more = [*options.set, f"server.min_clients={clients + 1}"] if kind == "looking" else options.set
    sets = [part for text in changes(clients, rounds, more) for part in ("--set", text)]
    inside = ["ip", "netns", "exec", link.namespace, sys.executable, "-m"]
    bouquet = [sys.executable, "-m", "bouquet"]
    link.down()
    link.up()
    with tempfile.TemporaryDirectory(prefix="fleet-size-") as temporary:
        folder = Path(temporary)
        try:
            with programs(folder) as start:
                safety = ["--insecure"]
                if options.keys:
                    safety = ["--keys", "keys"]
                    init_keys(folder / "keys", [link.server])
                    for number in range(clients):
                        add_device(folder / "keys", name_of(number))
                own = [*safety, "--host", "0.0.0.0", "--port", port, "--out", "run"]
                server, where = start(*bouquet, "server", *own, *sets), f"{link.server}:{port}"
                deadline = time.monotonic() + options.seconds
                if options.keys:
                    await_keys(Running(folder, server, [], link, deadline), clients)
                if kind == "real":
                    own = ["--server", where, "--insecure"]
                    each = [["--state-dir", f"state-{n}", "--partition-id", str(n)] for n in range(clients)]
                    devices = [start(*inside, "bouquet", "client", *own, *numbered) for numbered in each]
                else:
                    be = ["--be", str(clients), where, *(["--every", str(LOOK_EVERY)] if kind == "looking" else [])]
                    be += ["--keys"] if options.keys else []
                    devices = [start(*inside, "benchmarks.fleet_size", *be, *sets)]
                running = Running(folder, server, devices, link, deadline)
                found = watch_looks(running, clients) if kind == "looking" else watch(running, rounds)
        except TimeoutError as error:
            sys.exit(f"{error}\n{(folder / 'log').read_text(errors='replace')[-3000:]}")
        finally:
            link.down()
    return {"clients": clients, **found}


@dataclass(frozen=True)
class Running:
    """A server and its devices, in ``folder``, and what tells when they take too long."""

    folder: Path
    server: subprocess.Popen[bytes]
    devices: list[subprocess.Popen[bytes]]
    link: Link
    deadline: float  # of time.monotonic

    def check(self, so_far: str) -> None:
        """Raises `TimeoutError` where one of them has ended, or the time is over."""
        for number, process in enumerate((self.server, *self.devices)):
            if process.poll() is not None:
                who = f"Device {number - 1}" if number else "The server"
                raise TimeoutError(f"{who} ended with {process.returncode} after {so_far}.")
        if time.monotonic() > self.deadline:
            raise TimeoutError(f"The run had come to {so_far} when its time was over.")

    def programs(self) -> dict[int, str | None]:
        """The server's processes, by what they are."""
        return {pid: program(pid) for pid in tree(self.server.pid)} | {self.server.pid: "bouquet server"}


def await_keys(starting: Running, clients: int) -> None:
    """Until the server has registered each key: a scripted device gives up where its own is not."""
    while (registered := (starting.folder / "log").read_text(errors="replace").count(REGISTERED)) < clients:
        starting.check(f"{registered} keys")
        time.sleep(STEP_SECONDS)


def watch_looks(running: Running, clients: int) -> dict[str, float]:
    """Follow devices that look in vain, once each has looked once, for three looks: the gate holds each for 25 s."""

    def looked(times: int) -> tuple[int, float, dict[str, float]]:
        while (so_far := _number(running.folder / LOOKED)) < times * clients:
            running.check(f"{so_far} looks")
            time.sleep(STEP_SECONDS)
        return so_far, time.monotonic(), totals(running)

    begun, started, before = looked(1)
    ended, now, after = looked(4)
    superlink = next(pid for pid, name in running.programs().items() if name == "superlink")
    return {
        "looks a second": (ended - begun) / (now - started),
        **{f"{key} a look": (value - before[key]) / (ended - begun) for key, value in after.items()},
        "MB superlink": resident(superlink) / 1e6,
    }


def _number(path: Path) -> int:
    """What a file says that is replaced as a whole; 0 before there is one."""
    return int(path.read_text()) if path.exists() else 0


def watch(running: Running, rounds: int) -> dict[str, float]:
    """Follow a run to its last round: sums over the rounds that count, and the highest memory of each program."""
    lines: list[dict[str, Any]] = []
    peaks: dict[str, float] = {}
    before: dict[str, float] = {}
    while len(lines) < rounds:
        running.check(f"{len(lines)} rounds")
        time.sleep(STEP_SECONDS)
        for pid, name in running.programs().items():
            if name is not None:
                peaks[f"MB {name}"] = max(peaks.get(f"MB {name}", 0.0), resident(pid) / 1e6)
        lines = written_lines(running.folder / "run")
        if not before and len(lines) >= BEFORE:
            before = totals(running)
        if len(lines) >= rounds:
            after = totals(running)
    counted = lines[BEFORE:]
    payload = {f"payload bytes {way}": sum(line[f"bytes_{way}"] for line in counted) for way in ("down", "up")}
    moved = {**payload, **{key: value - before[key] for key, value in after.items()}}
    messages = sum(line["replies"] for line in counted)
    seconds = [line["seconds"] for line in counted]
    return {
        "seconds a round": median(seconds),
        "its milliseconds a client": 1000 * sum(seconds) / messages,
        "fewest replies": min(line["replies"] for line in counted),
        **{f"{key} a client and round": value / messages for key, value in moved.items()},
        **peaks,
        "MB database": database(running.folder / "run") / 1e6,
    }


def totals(running: Running) -> dict[str, float]:
    """Bytes and CPU seconds so far, of the server's programs and of the devices."""
    down, up = running.link.counters()
    found = running.programs()
    so_far = {"interface bytes down": float(down), "interface bytes up": float(up)}
    for name in ("superlink", "gate", "serverapp"):
        seconds = sum(own_cpu_seconds(pid) for pid, other in found.items() if other == name)
        so_far[f"CPU ms of {name}"] = 1000 * seconds
    return {**so_far, "CPU ms of devices": 1000 * sum(cpu_seconds(process.pid) for process in running.devices)}


def name_of(number: int) -> str:
    """A scripted device's."""
    return f"client-{number:05d}"


def be(clients: int, server: str, sets: list[str], every: float | None, secure: bool) -> None:
    """Be so many scripted devices, until this process is ended; look ``every`` so many seconds, or as a device does."""
    import grpc
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.supercore.task_identity import TaskIdentity

    from common.model.build import initial_model, state_vector
    from common.settings import load_settings
    from common.system.flower_backoff import pull_soon
    from experiments.simulation.inline_grid import scripted_client

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, DESCRIPTORS), hard), hard))
    threading.stack_size(512 * 1024)
    pull_soon()

    def own_connection(connect: Callable[..., grpc.Channel]) -> Callable[..., grpc.Channel]:
        """gRPC would share one connection among all channels of a process to the same server."""
        return lambda *to: connect(*to[:-1], [*to[-1], ("grpc.use_local_subchannel_pool", 1)])

    grpc.insecure_channel = own_connection(grpc.insecure_channel)
    grpc.secure_channel = own_connection(grpc.secure_channel)
    layout, _ = state_vector(initial_model(load_settings(None, sets)))
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    looks, newest = count(1), Path(f"{LOOKED}.new")

    def rest() -> float:
        """A look is over; the seconds until the next."""
        number = next(looks)
        if number % clients == 0:
            newest.write_text(str(number))
            newest.replace(LOOKED)
        assert every is not None
        return every

    def device(number: int) -> None:
        noise = np.random.default_rng(number).normal(0, 0.01, layout.dim).astype(np.float32)
        handler = scripted_client(name_of(number), layout, lambda start, _: start + noise)
        safety: list[Any] = [True]
        if secure:
            own = Path("keys/devices") / name_of(number)
            key = load_ssh_private_key((own / "device.key").read_bytes(), None)
            safety = [False, (own / "ca.crt").read_bytes(), (key, key.public_key())]
        answer_messages((server, *safety), handler, None if every is None else rest)

    threads = [threading.Thread(target=device, args=(number,), daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def answer_messages(server: tuple[Any, ...], handler: Any, rest: Callable[[], float] | None = None) -> None:
    """A device's loop: look for a message, pull it, answer it, push the answer; ``rest`` says how long to wait."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects

    from client.supernode.fleet_connection import fleet_connection
    from client.supernode.polling import Patience

    with fleet_connection(*server) as connection:
        node, receive, send, _, _, pull, push, confirm = connection
        patience = Patience()
        while True:
            began = time.monotonic()
            if (pulled := receive()) is None:
                pause = rest() if rest else patience.rest()
                time.sleep(max(0.0, began + pause - time.monotonic()))
                continue
            announced, objects = pulled
            run = announced.metadata.run_id
            identifiers = [entry.object_id for entry in iterate_object_tree(objects)]
            contents = pull_objects(identifiers, lambda one, run=run: pull(run, one), max_concurrent_pulls=2)
            confirm(run, announced.metadata.message_id)
            message: Any = inflate_object_from_contents(objects.object_id, contents)
            message.metadata.__dict__["_message_id"] = objects.object_id
            reply = handler(message)
            reply.metadata.__dict__["_src_node_id"] = node
            reply.metadata.__dict__["_message_id"] = reply.object_id
            wanted, session = send(reply, get_object_tree(reply), 0.0)
            for identifier, part in get_all_nested_objects(reply).items():
                if identifier in wanted:
                    push(run, session, identifier, part.deflate())
            patience.note_message()


def table(kind: str, found: list[dict[str, float]]) -> str:
    """What was found, a fleet a column."""
    names = [key for key in found[-1] if key != "clients"]
    rows = [[kind, *(f"{one['clients']:g}" for one in found)], ["---", *["---:"] * len(found)]]
    rows += [[name, *(f"{one.get(name, 0):,.4g}" for one in found)] for name in names]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripted", type=int, nargs="*", default=[])
    parser.add_argument("--real", type=int, nargs="*", default=[])
    parser.add_argument("--looking", type=int, nargs="*", default=[])
    parser.add_argument("--keys", action="store_true", help="TLS, and a registered key for each scripted device")
    parser.add_argument("--rounds", type=int, default=5, help=f"that count, after {BEFORE} others")
    parser.add_argument("--set", action="append", default=[], help="a setting of every run, such as wire.up=int4")
    parser.add_argument("--seconds", type=float, default=1800, help="that a run may take")
    parser.add_argument("--json", type=Path, help="also write what was found to this file")
    parser.add_argument("--be", nargs=2, metavar=("N", "SERVER"), help=argparse.SUPPRESS)
    parser.add_argument("--every", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        return be(int(options.be[0]), options.be[1], options.set, options.every, options.keys)
    if os.geteuid():
        sys.exit("Network namespaces need root and iproute2.")
    results: dict[str, list[dict[str, float]]] = {}
    for kind in ("scripted", "real", "looking"):
        for clients in getattr(options, kind):
            results.setdefault(kind, []).append(federation(kind, clients, options))
            print(table(kind, results[kind]), f"load {os.getloadavg()[0]:.1f}", sep="\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
