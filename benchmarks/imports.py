"""What a device imports before it can work: seconds and memory, step by step, and by package.

    python benchmarks/imports.py [--packages 8]
    docker run --rm -v "$PWD/benchmarks:/benchmarks:ro" --entrypoint python bouquet-client-arm64 /benchmarks/imports.py

The agent, which holds the connection, and the trainer, which has PyTorch and forks a process a task. Each step is the
median of three fresh processes whose files the machine has in its cache; memory is resident. Seconds by package are
what its own modules took, from ``python -X importtime``.
"""

from __future__ import annotations

import argparse
import collections
import json
import statistics
import subprocess
import sys

from bouquet.client.agent.trainer import IMPORTED

STEP = """
import importlib, json, sys, time
def resident():
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmRSS:"))
found = [["Python itself", 0.0, resident()]]
for name in sys.argv[1:]:
    clock = time.perf_counter()
    importlib.import_module(name)
    found.append([name, time.perf_counter() - clock, resident()])
print(json.dumps(found))
"""
TIMES = 3
PROCESSES = {
    "agent": ["bouquet.client.agent.main", "bouquet.client.agent.agent"],
    "trainer": ["bouquet.client.agent.trainer", *IMPORTED, "bouquet.client.agent.task"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=int, default=8)
    arguments = parser.parse_args()
    for process, modules in PROCESSES.items():
        show(process, modules, arguments.packages)


def show(process: str, modules: list[str], packages: int) -> None:
    """The tables of one process."""
    runs = []
    for _ in range(TIMES):
        done = subprocess.run([sys.executable, "-c", STEP, *modules], capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout))
    print(f"\n| {process} imports | s | MB resident afterwards |\n| --- | ---: | ---: |")
    for step in zip(*runs, strict=True):
        seconds, resident = (statistics.median(run[column] for run in step) for column in (1, 2))
        print(f"| `{step[0][0]}` | {seconds:.2f} | {resident:.0f} |")
    print("\n| package | s of its own modules | modules |\n| --- | ---: | ---: |")
    for name, seconds, number in by_package(modules)[:packages]:
        print(f"| `{name}` | {seconds:.2f} | {number} |")


def by_package(modules: list[str]) -> list[tuple[str, float, int]]:
    """Packages, seconds that their own modules took to import, and how many there are; the slowest first."""
    command = [sys.executable, "-X", "importtime", "-c", f"import {', '.join(modules)}"]
    seconds: dict[str, float] = collections.defaultdict(float)
    number: dict[str, int] = collections.defaultdict(int)
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines():
        own, _, name = line.removeprefix("import time:").partition("|")
        if own.strip().isdigit():
            package = name.rpartition("|")[2].strip().partition(".")[0]
            seconds[package] += int(own) / 1e6
            number[package] += 1
    return sorted(((name, seconds[name], number[name]) for name in seconds), key=lambda row: -row[1])


if __name__ == "__main__":
    main()
