"""Hundreds of rounds: does memory grow, do files or processes gather, how large does the record become?

A simulation with the inline engine, and a federation of real devices over gRPC, both with a tiny model. Linux; from
the repository's root:

    python -m benchmarks.soak simulation --rounds 500 --clients 20
    python -m benchmarks.soak federation --rounds 100 --devices 6

Resident memory of each program is read after each round, with the file descriptors and processes; the growth is that of
its mean over the last tenth of the rounds against the second tenth, after the first one. One line of JSON at the end,
``--samples FILE`` for all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.processes import name_of, resident, tree
from bouquet.common.settings import Settings, parse_settings
from bouquet.common.system.ports import free_port

LOOK_SECONDS = 0.1
TRAINER = "bouquet-train"
TINY = {
    "data.dataset": "digits",
    "data.partition": "iid",
    "model.name": "mlp",
    "model.hidden": "[16]",
    "train.local_epochs": 1,
    "train.batch_size": 32,
    "strategy.name": "fesem",
    "strategy.num_clusters": 2,
    "simulation.engine": "inline",
}


def descriptors(pid: int) -> int:
    """Open files of a process; 0 when it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def growth(values: list[float]) -> float:
    """The mean of the last tenth over that of the second tenth, less 1."""
    tenth = max(1, len(values) // 10)
    first, last = values[tenth : 2 * tenth], values[-tenth:]
    return (sum(last) / len(last)) / (sum(first) / len(first)) - 1


def settings(rounds: int, clients: int) -> Settings:
    """Of either run."""
    values = {**TINY, "run.rounds": rounds, "data.clients": clients, "server.min_clients": clients}
    values |= {"data.samples_per_client": 60, "server.straggler_grace": 300, "server.round_timeout": 600}
    return parse_settings({}, {key: str(value) for key, value in values.items()})


def size(folder: Path) -> int:
    """Bytes of all files below."""
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())


def simulation(options: argparse.Namespace) -> list[dict[str, float]]:
    """All in this process."""
    from bouquet.experiments.simulation.run import simulate

    samples: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        run = Path(folder, "run")

        def follow(line: dict[str, Any]) -> None:
            samples.append({"all": resident(os.getpid()), "descriptors": descriptors(os.getpid())})

        simulate(settings(options.rounds, options.clients), run, False, follow)
        report = {"run folder": size(run), "files": sum(1 for _ in run.rglob("*"))}
    show("simulation", samples, report, options)
    return samples


def federation(options: argparse.Namespace) -> list[dict[str, float]]:
    """A server and devices as processes."""
    samples: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        chosen = settings(options.rounds, options.devices).model_dump(mode="json", exclude_none=True)
        import tomli_w

        (folder / "run.toml").write_text(tomli_w.dumps(chosen))
        port = str(free_port())
        server = start(folder, "server", "server", "--insecure", "--host", "127.0.0.1", "--port", port, "--out", "run")
        devices = {}
        for number in range(options.devices):
            where = ("--server", f"127.0.0.1:{port}", "--insecure", "--state-dir", f"state-{number}")
            devices[f"device-{number}"] = start(
                folder, f"device-{number}", "client", *where, "--partition-id", str(number)
            )
        run: Path = folder / "run"
        before: dict[str, Any] = {}
        deadline = time.monotonic() + options.seconds
        try:
            while server.poll() is None and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS)
                record = run / "rounds.jsonl"
                done = record.read_bytes().count(b"\n") if record.exists() else 0
                if done > len(samples):
                    now = sample(server, devices) | {"run folder": size(run)}
                    samples += [now] * (done - len(samples))
                    if len(samples) == max(1, options.rounds // 10):
                        count = sum(len(tree(p.pid)) for p in devices.values())
                        before = {"files": files(folder), "processes": count}
            if server.poll():
                sys.exit((folder / "server.log").read_text()[-3000:])
            after: dict[str, Any] = {
                "files": files(folder),
                "processes": sum(len(tree(p.pid)) for p in devices.values()),
            }
        finally:
            for process in (server, *devices.values()):
                process.terminate()
            for process in (server, *devices.values()):
                process.wait(60)
        report = {
            "run folder": size(run),
            "of it the service": size(run / "service"),
            "logs": sum(file.stat().st_size for file in run.rglob("*.log*")),
            "a device's state": max(size(folder / f"state-{n}") for n in range(options.devices)),
            "new files by folder": {k: v - before["files"].get(k, 0) for k, v in after["files"].items()},
            "new processes of the devices": after["processes"] - before["processes"],
        }
    show("federation", samples, report, options)
    return samples


def start(folder: Path, log: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A command of bouquet's."""
    command = [str(Path(sys.executable).parent / "bouquet"), *arguments]
    command += ["run.toml"] if arguments[0] == "server" else []
    with (folder / f"{log}.log").open("wb") as output:
        return subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)


def files(folder: Path) -> dict[str, int]:
    """How many files there are in each folder of the federation."""
    return {entry.name: sum(1 for _ in entry.rglob("*")) for entry in folder.iterdir() if entry.is_dir()}


def sample(server: subprocess.Popen[bytes], devices: dict[str, subprocess.Popen[bytes]]) -> dict[str, float]:
    """Memory and open files of each program now."""
    found: dict[str, float] = {}
    for owner, process in {"server": server, **devices}.items():
        for pid in tree(process.pid):
            if pid == process.pid or name_of(pid) == TRAINER:  # the tasks come and go
                key = owner if pid == process.pid else f"{owner} trainer"
                found[key] = resident(pid)
                found[f"{key}, descriptors"] = descriptors(pid)
    return found


def show(what: str, samples: list[dict[str, float]], report: dict[str, Any], options: argparse.Namespace) -> None:
    """The result as a line of JSON."""
    names = sorted({name for line in samples for name in line})
    series = {name: [line[name] for line in samples if name in line] for name in names}
    grown = {
        name: {"from": values[len(values) // 10], "to": values[-1], "growth": round(growth(values), 4)}
        for name, values in series.items()
    }
    print(json.dumps({"what": what, "rounds": len(samples), "grown": grown, **report, "load": os.getloadavg()[0]}))
    if options.samples:
        options.samples.write_text("".join(json.dumps(line) + "\n" for line in samples))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["simulation", "federation"])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--devices", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=3600, help="the federation's rounds until then are reported")
    parser.add_argument("--samples", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("FLWR_LOG_LEVEL", "ERROR")
    if options.what == "simulation":
        options.rounds = options.rounds or 500
        simulation(options)
    else:
        options.rounds = options.rounds or 100
        federation(options)


if __name__ == "__main__":
    main()
