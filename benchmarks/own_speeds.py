"""Time to accuracy in virtual seconds, where devices or links differ: waiting for all, a buffer, a budget of work.

Each run is a line of the CSV of ``--runs``, and one that is there is not run again. Without ``--more``, the table of
all lines is printed.
"""

import argparse
import csv
import itertools
import json
import logging
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message

from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate
from bouquet.experiments.simulation.timed_grid import TimedGrid

GOAL = 0.4  # of the time that waiting for all is given; so long are the other rows
RATES = (0.05, 0.1, 0.2)
TUNED_ON = 7  # the seed of data and model that learning rates are chosen on; the table has 20, 21 and so on
AWAY = 60.0  # seconds for which half of the devices are there, and then not
METHODS = {"FedAvg": ["fedavg"], "FeSEM": ["fesem"], "IFCA": ["ifca", "strategy.num_clusters=3"]}
METHODS |= {"Ditto": ["ditto"], "FedPer": ["fedper"]}
COMMON = [
    "data.dataset=digits",
    "data.clients=12",
    "data.partition=rotated",
    "data.groups=3",
    "simulation.engine=batched",
    "server.straggler_grace=600",
    "personal.serve=own",
    "personal.compare=false",
]


class Fleet(NamedTuple):
    """Settings of a fleet of so many kinds of devices, and the virtual seconds of a run that waits for all."""

    kinds: int
    seconds: float
    settings: list[str]


FLEETS = {
    "mixed": Fleet(4, 480, ["simulation.speeds=[100,30,5,60]", "simulation.links=[2]"]),
    "apart": Fleet(3, 480, ["simulation.speeds=[100,30,5]", "simulation.links=[2]"]),
    "links": Fleet(4, 60, ["simulation.speeds=[300]", "simulation.links=[50,2,0.5,8]", "model.hidden=[200,100]"]),
    "away": Fleet(4, 480, ["simulation.speeds=[100,30,5,60]", "simulation.links=[2]"]),
}
SLOWEST = 2  # the kind of devices, in each fleet
ROWS = {
    "all": [],
    "buffer": ["server.buffer=0.3"],
    "budget": ["train.budget=fleet"],
    "both": ["train.budget=fleet", "server.buffer=0.3"],
}


class HalfAway(TimedGrid):
    """A fleet of which the second half is not reached every other minute; what such a device has in hand it ends."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Those who are away take nothing to train."""
        outgoing, nodes = list(messages), [*self.handlers]
        away = {*nodes[len(nodes) // 2 :]} if int(self.now / AWAY) % 2 else set()
        taken = [m for m in outgoing if m.metadata.message_type != "train" or m.metadata.dst_node_id not in away]
        super().push_messages(taken)
        return [message.metadata.message_id if message in taken else "" for message in outgoing]


class Looks(NamedTuple):
    """Of a run: mean accuracy of all devices after so many virtual seconds, and each kind of devices' at the end."""

    seconds: list[float]
    accuracy: list[float]
    kinds: list[float]
    rounds: list[float]  # seconds of each


def run(fleet: str, method: str, row: str, rate: float, rounds: int, seed: int) -> Looks:
    """A run of so many rounds, looked at some fifty times at most."""
    name, *more = METHODS[method]
    changes = [f"strategy.name={name}", f"run.seed={seed}", f"run.rounds={rounds}", f"train.learning_rate={rate}"]
    changes += [f"server.evaluate_every={max(1, rounds // 50)}", *more, *ROWS[row], *FLEETS[fleet].settings]
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(None, [*COMMON, *changes])
        summary = simulate(settings, Path(folder) / "run", grid=HalfAway if fleet == "away" else None)
        lines = [json.loads(line) for line in (Path(folder) / "run" / "rounds.jsonl").read_text().splitlines()]
    spent = np.cumsum([line["seconds"] for line in lines]).tolist()
    looks = [(t, x["evaluation"]["accuracy_macro"]) for t, x in zip(spent, lines, strict=True) if "evaluation" in x]
    looks.append((spent[-1], summary["accuracy_macro"]))
    devices, kinds = [score for _, score in sorted(summary["accuracy_by_client"].items())], FLEETS[fleet].kinds
    by_kind = [float(np.mean(devices[kind::kinds])) for kind in range(kinds)]
    times, scores = ([look[i] for look in looks] for i in (0, 1))
    return Looks(times, scores, by_kind, [x["seconds"] for x in lines])


class Runs:
    """The lines of a CSV of runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = [*csv.DictReader(path.read_text().splitlines())] if path.exists() else []

    def of(self, **wanted: Any) -> list[dict[str, str]]:
        """Those that have these values."""
        return [line for line in self.lines if all(line[name] == str(value) for name, value in wanted.items())]

    def add(self, fleet: str, method: str, row: str, rate: float, seed: int) -> None:
        """Run it, where it is not there."""
        cell = {"devices": fleet, "method": method, "rounds": row}
        if self.of(**cell, rate=rate, seed=seed):
            return
        end = FLEETS[fleet].seconds * (1 if row == "all" else GOAL)
        before = self.of(**cell)
        # In the first rounds a budget is learned.
        number = before[0]["number"] if before else end / np.mean(run(fleet, method, row, rate, 14, seed).rounds[4:])
        looks = run(fleet, method, row, rate, max(2, round(float(number))), seed)
        waiting = [float(line["accuracy"]) for line in self.of(**cell | {"rounds": "all"}, seed=seed)] or [2.0]
        asked = looks.accuracy[-1] if row == "all" else waiting[0]
        until = next((t for t, a in zip(looks.seconds, looks.accuracy, strict=True) if a >= asked), np.inf)
        line = cell | {"seed": seed, "rate": rate, "number": len(looks.rounds), "seconds": round(looks.seconds[-1], 1)}
        line |= {"accuracy": round(looks.accuracy[-1], 4), "share": round(until / FLEETS[fleet].seconds, 3)}
        line |= {"by_kind": " ".join(f"{score:.4f}" for score in looks.kinds)}
        with self.path.open("a") as file:
            out = csv.DictWriter(file, line, lineterminator="\n")
            if not self.lines:
                out.writeheader()
            out.writerow(line)
        self.lines.append({name: str(value) for name, value in line.items()})

    def rate(self, method: str, row: str) -> float:
        """The best in *mixed*, on other data: FeSEM's for methods with clusters, for others FedAvg's."""
        method = "FeSEM" if method in ("FeSEM", "IFCA") else "FedAvg"
        for rate in RATES:
            self.add("mixed", method, row, rate, TUNED_ON)
        found = self.of(devices="mixed", method=method, rounds=row, seed=TUNED_ON)
        return float(max(found, key=lambda line: float(line["accuracy"]))["rate"])

    def table(self) -> None:
        """Print means over seeds."""
        out = csv.writer(sys.stdout, lineterminator="\n")
        out.writerow(["devices", "method", "rounds", "rate", "seeds", "accuracy", "slowest", "worst", "share"])
        waiting = np.zeros(0)
        for fleet, method, row in itertools.product(FLEETS, METHODS, ROWS):
            found = [x for x in self.of(devices=fleet, method=method, rounds=row) if x["seed"] != str(TUNED_ON)]
            if not found:
                continue
            kinds = np.mean([[float(score) for score in line["by_kind"].split()] for line in found], axis=0)
            waiting = kinds if row == "all" else waiting
            shares = [float(line["share"]) for line in found]
            share = "–" if np.inf in shares else f"{np.mean(shares):.2f}"
            accuracy = np.mean([float(line["accuracy"]) for line in found])
            figures = [f"{x:.3f}" for x in (accuracy, kinds[SLOWEST], min(kinds - waiting))]
            out.writerow([fleet, method, row, found[0]["rate"], len(found), *figures, share])


def main() -> None:
    """Add runs, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="CSV of all runs")
    parser.add_argument("--more", type=int, default=0, help="run what is not there, with so many seeds")
    parser.add_argument("--fleets", nargs="*", default=[*FLEETS])
    parser.add_argument("--methods", nargs="*", default=[*METHODS])
    asked: Any = parser.parse_args()
    logging.disable(logging.WARNING)
    runs = Runs(asked.runs)
    for seed, fleet, method, row in itertools.product(range(asked.more), asked.fleets, asked.methods, ROWS):
        runs.add(fleet, method, row, runs.rate(method, row), 20 + seed)
    if not asked.more:
        runs.table()


if __name__ == "__main__":
    main()
