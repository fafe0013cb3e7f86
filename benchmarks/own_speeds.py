"""Accuracy against virtual time: rounds that wait for all beside rounds that end with a buffer; writes a CSV file."""

import argparse
import csv
import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate

SPEEDS = {"mixed": [100, 30, 5, 60], "apart": [100, 30, 5]}  # every third device has the same data
SLOWEST = {"mixed": [2, 6, 10], "apart": [2, 5, 8, 11]}
METHODS = {
    "FedAvg": ["fedavg"],
    "FedPer": ["fedper"],
    "Ditto": ["ditto"],
    "FeSEM": ["fesem"],
}
BUFFERS = (1.0, 0.3)
AT = (60, 120, 240)  # virtual seconds
COMMON = [
    "data.dataset=digits",
    "data.clients=12",
    "data.partition=rotated",
    "data.groups=3",
    "simulation.engine=batched",
    "simulation.links=[2]",
    "server.straggler_grace=600",
    "personal.serve=own",
    "personal.compare=false",
]


def run(method: list[str], speeds: str, buffer: float, seed: int) -> Iterator[tuple[float, dict[str, float]]]:
    """The virtual time after each look, and each device's accuracy then."""
    rounds = 8 if buffer == 1 else 125
    name, *options = method
    changes = [
        f"strategy.name={name}",
        f"simulation.speeds={SPEEDS[speeds]}",
        f"server.buffer={buffer}",
        f"run.seed={seed}",
        f"run.rounds={rounds}",
        f"server.evaluate_every={1 if buffer == 1 else 5}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        summary = simulate(load_settings(None, [*COMMON, *changes, *options]), Path(folder) / "run")
        lines = [json.loads(line) for line in (Path(folder) / "run" / "rounds.jsonl").read_text().splitlines()]
    spent = 0.0
    for line in lines:
        spent += line["seconds"]
        if "evaluation" in line:
            yield spent, {"all": line["evaluation"]["accuracy_macro"]}
    yield spent, {"all": summary["accuracy_macro"], **summary["accuracy_by_client"]}


def row(looks: list[list[tuple[float, dict[str, Any]]]], speeds: str) -> list[str]:
    """Means over seeds: the last look until each time, and the slowest devices at the end."""
    found = []
    for limit in AT:
        found.append(np.mean([[a["all"] for t, a in seed if t <= limit][-1:] or [0.1] for seed in looks]))
    ends = [sorted((name, score) for name, score in seed[-1][1].items() if name != "all") for seed in looks]
    slowest = [end[place][1] for end in ends for place in SLOWEST[speeds]]
    return [f"{value:.2f}" for value in (*found, np.mean(slowest))]


def main() -> None:
    """Print the table as CSV."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(20, 20 + parser.parse_args().seeds)
    logging.disable(logging.WARNING)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["devices", "method", "buffer", *(f"{limit} s" for limit in AT), "slowest"])
    for speeds in SPEEDS:
        for method, options in METHODS.items():
            for buffer in BUFFERS:
                looks = [list(run(options, speeds, buffer, seed)) for seed in seeds]
                out.writerow([speeds, method, f"{buffer:g}", *row(looks, speeds)])
                sys.stdout.flush()


if __name__ == "__main__":
    main()
