"""A server and a growing fleet over gRPC: seconds, bytes and the server's memory and CPU for each client and round.

Devices are real ones (``bouquet client``), or scripted ones: threads of one process, each with its own connection and
key, which look for messages as a device does, pull the model, and push it back a little changed. Nobody trains, so that
what is seen is the server, Flower's SuperLink and the wire. All of them live in one network namespace, whose interface
counts their bytes with all headers. Linux, root, iproute2. From the repository's root:

    python -m benchmarks.fleet_size --scripted 10 30 100 300 --real 2 8 --rounds 5
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
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.processes import cpu_seconds, own_cpu_seconds, tree
from benchmarks.soak import database, program, resident
from benchmarks.wire import Link, programs, written_lines
from common.processes import free_port

STEP_SECONDS = 0.1
BEFORE = 2  # rounds that are not counted: the first also sends who one is, the app and the whole model
DESCRIPTORS = 16_384
MODEL = {"data.dataset": "digits", "model.name": "cnn-dcpfl"}


def changes(clients: int, rounds: int, more: list[str]) -> list[str]:
    """The settings of a run of so many clients, as KEY=VALUE."""
    values: dict[str, Any] = {**MODEL, "data.clients": clients, "server.min_clients": clients, "run.rounds": rounds}
    values |= {"data.samples_per_client": 5, "train.local_epochs": 1, "strategy.name": "fedavg"}
    values |= {"server.round_timeout": 1800, "server.straggler_grace": 1800, "server.wait_for_clients": 1800}
    return [f"{key}={value}" for key, value in values.items()] + more


def federation(kind: str, clients: int, options: argparse.Namespace) -> dict[str, float]:
    """One run; what it cost for each client and round."""
    link, port = Link(0, None), str(free_port())
    rounds = BEFORE + options.rounds
    sets = [part for text in changes(clients, rounds, options.set) for part in ("--set", text)]
    inside = ["ip", "netns", "exec", link.namespace, sys.executable, "-m"]
    bouquet = [sys.executable, "-m", "bouquet"]
    link.down()
    link.up()
    with tempfile.TemporaryDirectory(prefix="fleet-size-") as temporary:
        folder = Path(temporary)
        try:
            with programs(folder) as start:
                own = ["--insecure", "--host", "0.0.0.0", "--port", port, "--out", "run"]
                server, where = start(*bouquet, "server", *own, *sets), f"{link.server}:{port}"
                if kind == "scripted":
                    devices = [start(*inside, "benchmarks.fleet_size", "--be", str(clients), where, *sets)]
                else:
                    own = ["--server", where, "--insecure"]
                    each = [["--state-dir", f"state-{n}", "--partition-id", str(n)] for n in range(clients)]
                    devices = [start(*inside, "bouquet", "client", *own, *numbered) for numbered in each]
                found = watch(folder, server, devices, link, rounds, options.seconds)
        except TimeoutError as error:
            sys.exit(f"{error}\n{(folder / 'log').read_text(errors='replace')[-3000:]}")
        finally:
            link.down()
    return {"clients": clients, **found}


def watch(
    folder: Path,
    server: subprocess.Popen[bytes],
    devices: list[subprocess.Popen[bytes]],
    link: Link,
    rounds: int,
    patience: float,
) -> dict[str, float]:
    """Follow a run to its last round: sums over the rounds that count, and the highest memory of each program."""
    deadline = time.monotonic() + patience
    lines: list[dict[str, Any]] = []
    peaks: dict[str, float] = {}
    before: dict[str, float] = {}
    while len(lines) < rounds:
        if any(process.poll() is not None for process in (server, *devices)) or time.monotonic() > deadline:
            raise TimeoutError(f"The run ended, or took longer than {patience:g} s, after {len(lines)} rounds.")
        time.sleep(STEP_SECONDS)
        found = {pid: program(pid) for pid in tree(server.pid)} | {server.pid: "bouquet server"}
        for pid, name in found.items():
            if name is not None:
                peaks[f"MB {name}"] = max(peaks.get(f"MB {name}", 0.0), resident(pid) / 1e6)
        lines = written_lines(folder / "run")
        if not before and len(lines) >= BEFORE:
            before = totals(found, devices, link)
        if len(lines) >= rounds:
            after = totals(found, devices, link)
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
        "MB database": database(folder / "run") / 1e6,
    }


def totals(found: dict[int, str | None], devices: list[subprocess.Popen[bytes]], link: Link) -> dict[str, float]:
    """Bytes and CPU seconds so far, of the server's programs and of the devices."""
    down, up = link.counters()
    so_far = {"interface bytes down": float(down), "interface bytes up": float(up)}
    for name in ("superlink", "serverapp"):
        seconds = sum(own_cpu_seconds(pid) for pid, other in found.items() if other == name)
        so_far[f"CPU ms of {name}"] = 1000 * seconds
    return {**so_far, "CPU ms of devices": 1000 * sum(cpu_seconds(process.pid) for process in devices)}


def be(clients: int, server: str, sets: list[str]) -> None:
    """Be so many scripted devices, until this process is ended."""
    import grpc
    from flwr.supercore.task_identity import TaskIdentity

    from common.initial import initial_model, state_vector
    from common.pulling import pull_soon
    from common.settings import load_settings
    from experiments.inline import scripted_client

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, DESCRIPTORS), hard), hard))
    threading.stack_size(512 * 1024)
    pull_soon()
    insecure = grpc.insecure_channel

    def own_connection(address: str, options: Any = None, **given: Any) -> grpc.Channel:
        """gRPC would share one connection among all channels of a process to the same server."""
        return insecure(address, [*(options or ()), ("grpc.use_local_subchannel_pool", 1)], **given)

    grpc.insecure_channel = own_connection
    layout, _ = state_vector(initial_model(load_settings(None, sets)))
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def device(number: int) -> None:
        noise = np.random.default_rng(number).normal(0, 0.01, layout.dim).astype(np.float32)
        answer_messages(server, scripted_client(f"client-{number:05d}", layout, lambda start, _: start + noise))

    threads = [threading.Thread(target=device, args=(number,), daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def answer_messages(server: str, handler: Any) -> None:
    """A device's loop: look for a message, pull it, answer it, push the answer."""
    from flwr.client.grpc_rere_client.connection import grpc_request_response
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
    from flwr.supernode.start_client_internal import _make_fleet_connection_retry_invoker

    from client.waiting import Patience

    with grpc_request_response(server, True, _make_fleet_connection_retry_invoker()) as connection:
        node, receive, send, _, _, pull, push, confirm = connection
        patience = Patience()
        while True:
            if (pulled := receive()) is None:
                time.sleep(patience.rest())
                continue
            announced, objects = pulled
            run = announced.metadata.run_id
            identifiers = [entry.object_id for entry in iterate_object_tree(objects)]
            contents = pull_objects(identifiers, lambda one, run=run: pull(run, one), max_concurrent_pulls=2)
            confirm(run, announced.metadata.message_id)
            message = inflate_object_from_contents(objects.object_id, contents)
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
    parser.add_argument("--rounds", type=int, default=5, help=f"that count, after {BEFORE} others")
    parser.add_argument("--set", action="append", default=[], help="a setting of every run, such as wire.up=int4")
    parser.add_argument("--seconds", type=float, default=1800, help="that a run may take")
    parser.add_argument("--json", type=Path, help="also write what was found to this file")
    parser.add_argument("--be", nargs=2, metavar=("N", "SERVER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        return be(int(options.be[0]), options.be[1], options.set)
    if os.geteuid():
        sys.exit("Network namespaces need root and iproute2.")
    results: dict[str, list[dict[str, float]]] = {}
    for kind in ("scripted", "real"):
        for clients in getattr(options, kind):
            results.setdefault(kind, []).append(federation(kind, clients, options))
            print(table(kind, results[kind]), f"load {os.getloadavg()[0]:.1f}", sep="\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
