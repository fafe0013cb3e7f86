"""Accuracy against virtual time, where devices or links differ: waiting for all, a buffer, a budget of work."""

import argparse
import csv
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

END = 360.0  # virtual seconds; rounds that wait for all are eight then, where speeds differ by twenty times
AT = (60, 120, 240)
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
    """A fleet's settings, and its slowest devices; every third device has the same kind of data."""

    slowest: list[int]
    settings: list[str]


FLEETS = {
    "mixed": Fleet([2, 6, 10], ["simulation.speeds=[100,30,5,60]", "simulation.links=[2]"]),
    "apart": Fleet([2, 5, 8, 11], ["simulation.speeds=[100,30,5]", "simulation.links=[2]"]),
    "links": Fleet([2, 6, 10], ["simulation.speeds=[300]", "simulation.links=[50,2,0.5,8]", "model.hidden=[200,100]"]),
    "away": Fleet([2, 6, 10], ["simulation.speeds=[100,30,5,60]", "simulation.links=[2]"]),
}
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
    """Of a run: mean accuracy of all devices after so many virtual seconds, and each device's at the end."""

    seconds: list[float]
    accuracy: list[float]
    devices: dict[str, float]
    rounds: list[float]  # seconds of each

    def at(self, limit: float) -> float:
        """The last look until then."""
        return next((a for t, a in zip(self.seconds[::-1], self.accuracy[::-1], strict=True) if t <= limit), 0.1)

    def until(self, accuracy: float) -> float:
        """Seconds after which it is so good."""
        return next((t for t, a in zip(self.seconds, self.accuracy, strict=True) if a >= accuracy), np.inf)


def run(fleet: str, options: list[str], rounds: int, seed: int) -> Looks:
    """A run of so many rounds, looked at some fifty times at most."""
    every = max(1, rounds // 50)
    name, *more = options
    changes = [f"strategy.name={name}", f"run.seed={seed}", f"run.rounds={rounds}", f"server.evaluate_every={every}"]
    settings = load_settings(None, [*COMMON, *FLEETS[fleet].settings, *changes, *more])
    with tempfile.TemporaryDirectory() as folder:
        summary = simulate(settings, Path(folder) / "run", grid=HalfAway if fleet == "away" else None)
        lines = [json.loads(line) for line in (Path(folder) / "run" / "rounds.jsonl").read_text().splitlines()]
    spent = np.cumsum([line["seconds"] for line in lines]).tolist()
    looks = [(t, x["evaluation"]["accuracy_macro"]) for t, x in zip(spent, lines, strict=True) if "evaluation" in x]
    looks.append((spent[-1], summary["accuracy_macro"]))
    seconds, accuracy = ([look[i] for look in looks] for i in (0, 1))
    return Looks(seconds, accuracy, summary["accuracy_by_client"], [x["seconds"] for x in lines])


def rounds_until_end(fleet: str, row: list[str]) -> int:
    """So many rounds take about `END` seconds: of some rounds the last, because a budget is learned in the first."""
    some = run(fleet, ["fedavg", *row], 24, 20).rounds[6:]
    return max(2, round(END / np.mean(some)))


def cells(found: list[Looks], waiting: list[Looks], slowest: list[int]) -> list[str]:
    """Means over seeds of a row, and the share of the time after which it is where waiting for all ends."""
    ends = [[score for _, score in sorted(looks.devices.items())] for looks in found]
    shares = [one.until(all_.accuracy[-1]) / all_.seconds[-1] for one, all_ in zip(found, waiting, strict=True)]
    share = "–" if np.isinf(shares).any() else f"{np.mean(shares):.2f}"
    means = [*(np.mean([looks.at(limit) for looks in found]) for limit in AT)]
    means += [np.mean([looks.accuracy[-1] for looks in found]), np.mean(np.array(ends)[:, slowest])]
    return [*(f"{value:.2f}" for value in means), share]


def main() -> None:
    """Print the table as CSV."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--fleets", nargs="*", default=[*FLEETS])
    parser.add_argument("--rows", nargs="*", default=[*ROWS])
    parser.add_argument("--methods", nargs="*", default=[*METHODS])
    asked: Any = parser.parse_args()
    logging.disable(logging.WARNING)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["devices", "method", "rounds", *(f"{limit} s" for limit in AT), f"{END:g} s", "slowest", "share"])
    for fleet in asked.fleets:
        rounds = {row: rounds_until_end(fleet, ROWS[row]) for row in asked.rows}
        for method in asked.methods:
            waiting: list[Looks] = []
            for row in asked.rows:
                options = [*METHODS[method], *ROWS[row]]
                found = [run(fleet, options, rounds[row], 20 + seed) for seed in range(asked.seeds)]
                waiting = waiting or found
                out.writerow([fleet, method, row, *cells(found, waiting, FLEETS[fleet].slowest)])
                sys.stdout.flush()


if __name__ == "__main__":
    main()
