"""Bytes through each device's own network interface against those of the run's record, and seconds at 2 Mbit/s.

A server and clients as processes; every client lives in a network namespace of its own, joined to the server's by a
veth pair whose counters are read when a round's line appears in the record. ``--rate`` shapes both ends of every pair
with ``tc tbf``. Linux, root, iproute2. From the repository's root:

    python benchmarks/wire.py --strategies fedavg dc-pfl --rounds 9
    python benchmarks/wire.py --strategies fedavg dc-pfl --rounds 9 --rate 2mbit
    python benchmarks/wire.py --dataset fashion-mnist --data-dir FOLDER --model cnn-fedtsdp --rate 2mbit
    python benchmarks/wire.py --strategies fedavg --set wire.up=int4 --set wire.down=int4

What the interface counts beyond the record is the cost of a message, of the connection and of Flower's polling; it is
printed for each client and round, as is the record's share.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bouquet.common.system.ports import free_port

STEP_SECONDS = 0.1
PATIENCE_SECONDS = 1800
# The structure that the layer-wise aggregation works on is left alone, so that rounds differ only in what travels.
DCPFL = {"strategy.discrepancy_rounds": 2, "strategy.observe_rounds": 100}


@dataclass
class Link:
    """A client's namespace and the server's end of its veth pair."""

    number: int
    rate: str | None

    @property
    def namespace(self) -> str:
        """Its name; one benchmark at a time."""
        return f"bouquet-{self.number}"

    @property
    def device(self) -> str:
        """The server's end."""
        return f"bouquet{self.number}"

    @property
    def server(self) -> str:
        """The server's address on this link."""
        return f"10.213.{self.number}.1"

    def up(self) -> None:
        """Make the namespace and the pair, shaped if a rate is given."""
        inside = ["ip", "-n", self.namespace]
        run("ip", "netns", "add", self.namespace)
        run("ip", "link", "add", self.device, "type", "veth", "peer", "name", "uplink", "netns", self.namespace)
        run("ip", "addr", "add", f"{self.server}/24", "dev", self.device)
        run("ip", "link", "set", self.device, "up")
        run(*inside, "addr", "add", f"10.213.{self.number}.2/24", "dev", "uplink")
        run(*inside, "link", "set", "uplink", "up")
        run(*inside, "link", "set", "lo", "up")
        if self.rate:
            shape = ["root", "tbf", "rate", self.rate, "burst", "16kb", "latency", "400ms"]
            run("tc", "qdisc", "add", "dev", self.device, *shape)
            run("tc", "-n", self.namespace, "qdisc", "add", "dev", "uplink", *shape)

    def down(self) -> None:
        """Remove the namespace, and with it the pair."""
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, capture_output=True)

    def counters(self) -> tuple[int, int]:
        """Bytes so far to the client and from it, with all headers and acknowledgements."""
        folder = Path("/sys/class/net") / self.device / "statistics"
        return tuple(int((folder / f"{way}_bytes").read_text()) for way in ("tx", "rx"))  # type: ignore[return-value]


def run(*command: str) -> None:
    """Run a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")


@contextlib.contextmanager
def programs(folder: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts commands in a folder, with their output in its ``log``, and ends them all in the end."""
    running: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    with (folder / "log").open("wb") as log:

        def start(*command: str) -> subprocess.Popen[bytes]:
            running.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment))
            return running[-1]

        try:
            yield start
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()


def written_lines(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's record that are whole."""
    record = run / "rounds.jsonl"
    text = record.read_text() if record.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def federation(strategy: str, options: argparse.Namespace, links: list[Link], folder: Path) -> list[dict[str, Any]]:
    """One run; the record's lines, each with the interfaces' bytes since the line before."""
    port = str(free_port())
    chosen: dict[str, Any] = {
        "data.dataset": options.dataset,
        "data.partition": "dominant",
        "data.clients": len(links),
        "data.samples_per_client": options.samples,
        "model.name": options.model,
        "train.local_epochs": 1,
        "run.rounds": options.rounds,
        "server.min_clients": len(links),
        "strategy.name": strategy,
        **({"data.data_dir": str(options.data_dir.absolute())} if options.data_dir else {}),
        **(DCPFL if strategy == "dc-pfl" else {}),
    }
    sets = [part for text in [*(f"{k}={v}" for k, v in chosen.items()), *options.set] for part in ("--set", text)]
    bouquet = [sys.executable, "-m", "bouquet"]
    lines: list[dict[str, Any]] = []
    with programs(folder) as start:
        server = start(*bouquet, "server", "--insecure", "--host", "0.0.0.0", "--port", port, "--out", "run", *sets)
        for link in links:
            where = ["--server", f"{link.server}:{port}", "--insecure", "--state-dir", f"state-{link.number}"]
            inside = ["ip", "netns", "exec", link.namespace]
            start(*inside, *bouquet, "client", *where, "--partition-id", str(link.number))
        before = [link.counters() for link in links]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(lines) < options.rounds:
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit((folder / "log").read_text(errors="replace")[-3000:])
            time.sleep(STEP_SECONDS)
            for line in written_lines(folder / "run")[len(lines) :]:
                now = [link.counters() for link in links]
                moved = [sum(new[way] - old[way] for new, old in zip(now, before, strict=True)) for way in (0, 1)]
                before = now
                lines.append({**line, "wire_down": moved[0], "wire_up": moved[1]})
        server.wait(timeout=PATIENCE_SECONDS)
    return lines


def show(strategy: str, lines: list[dict[str, Any]], clients: int) -> None:
    """A line a round: record, interface, and what a client's message costs beyond its payload."""
    columns = [f"{name} {way}" for way in ("down", "up") for name in ("record", "wire", "rest")]
    print(f"\n{strategy}; bytes a client\n{'round':>5}", *(f"{column:>11}" for column in columns), f"{'seconds':>8}")
    for line in lines:
        cells = []
        for way in ("down", "up"):
            recorded, wire = line[f"bytes_{way}"] / clients, line[f"wire_{way}"] / clients
            cells += [f"{number:>11,.0f}" for number in (recorded, wire, wire - recorded)]
        print(f"{line['round']:>5}", *cells, f"{line['seconds']:>8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", default=["fedavg", "dc-pfl"])
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--model", default="cnn-dcpfl")
    parser.add_argument("--samples", type=int, default=100, help="of a client")
    parser.add_argument("--set", action="append", default=[], help="a setting of every run, such as wire.up=int4")
    parser.add_argument("--rate", help="of every link in either direction, as tc writes it: 2mbit")
    parser.add_argument("--json", type=Path, help="also write all lines to this file")
    options = parser.parse_args()
    if os.geteuid() or not shutil.which("ip"):
        sys.exit("Network namespaces need root and iproute2.")
    links = [Link(number, options.rate) for number in range(options.clients)]
    results = {}
    try:
        for link in links:
            link.down()
            link.up()
        for strategy in options.strategies:
            with tempfile.TemporaryDirectory() as folder:
                results[strategy] = federation(strategy, options, links, Path(folder))
            show(strategy, results[strategy], options.clients)
    finally:
        for link in links:
            link.down()
    if options.json:
        options.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
