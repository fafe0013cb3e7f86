"""What becomes of a fleet that changes: devices whose data turn in mid-run, and devices that join late.

    python benchmarks/changing_fleet.py RUNS.csv --seeds 3001 3002      # what RUNS.csv has already is not run again

From the repository's root; a line a run and round in ``RUNS.csv``, the summary on standard output. Twenty devices with
digits in four rotations, 20 rounds, default settings but for ``personal``, so that figures are the method's own.
``half turn``: from round 11 on half of the devices have another rotation. ``back``: and from round 16 on their first
one again. ``join``: every fifth device is there from round 11 on only.
"""

import argparse
import csv
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Any

from bouquet.common.data.partitions import part_in_round
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid
from bouquet.experiments.simulation.run import FIRST_NODE, simulate

ROUNDS, CHANGE, BACK, DEVICES, GROUPS = 20, 11, 16, 20, 4
DRIFT: dict[str, list[tuple[int, float]]] = {
    "half turn": [(CHANGE, 0.5)],
    "back": [(CHANGE, 0.5), (BACK, 0.0)],
    "join": [],
}
METHODS = ("fesem", "fesem:4", "anchored", "ifca", "ifca:4", "fedac:4", "fedavg", "ditto", "standalone")
WITHOUT_CLUSTERS = METHODS[-3:]
COLUMNS = ("change", "method", "seed", "round", "changed", "trained", "others", "clusters", "right")


class Joining(InlineGrid):
    """A grid on which some nodes are not there before a round."""

    late: frozenset[int] = frozenset()
    round = 1

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.handlers if self.round >= CHANGE or node not in self.late]


def measured(change: str, method: str, seed: int, *more: str) -> Iterator[dict[str, Any]]:
    """A line a round: mean accuracy of what devices start it from, and of those that changed after their training.

    Settings come after the benchmark's own, such as another ``strategy.name``: ``more``, and those that follow the
    method's name, as in ``ifca:4 train.local_epochs=2``.
    """
    named, *own = method.split()
    name, _, given = named.partition(":")
    options = [f"strategy.name={name}", f"run.seed={seed}", f"run.rounds={ROUNDS}", f"data.clients={DEVICES}"]
    options += [f"strategy.num_clusters={given}"] if given else []
    options += ["data.partition=rotated", f"data.groups={GROUPS}", "personal.serve=own", "personal.compare=false"]
    options += ["simulation.engine=batched", f"data.drift={json.dumps(DRIFT[change])}", *more, *own]
    changed = {f"client-{i:02}" for i in range(DEVICES) if (i % 5 == 4 if change == "join" else i < DEVICES // 2)}
    lines: list[dict[str, Any]] = []
    grids: list[Joining] = []

    def grid(*given: Any, **more: Any) -> Joining:
        grids.append(Joining(*given, **more))
        if change == "join":
            grids[0].late = frozenset(FIRST_NODE + int(client[-2:]) for client in changed)
        return grids[0]

    def follow(line: dict[str, Any]) -> None:
        lines.append(line)
        grids[0].round = line["round"] + 1

    with tempfile.TemporaryDirectory() as folder:
        simulate(load_settings(None, options), Path(folder) / "run", follow=follow, grid=grid)
    for line in lines:
        yield {"change": change, "method": method, "seed": seed, **seen(line, changed, DRIFT[change])}


def seen(line: dict[str, Any], changed: set[str], drift: list[tuple[int, float]]) -> dict[str, Any]:
    """The figures of a round; ``right`` is the share of the changed that are where most of their group are."""
    by_client, clusters = line["by_client"], line["assignment"]
    there, others = sorted(changed & set(by_client)), sorted(set(by_client) - changed)
    home = {
        group: Counter(clusters.get(c) for c in others if int(c[-2:]) % GROUPS == group).most_common(1)[0][0]
        for group in range(GROUPS)
    }
    group_of = {c: part_in_round(line["round"], int(c[-2:]), DEVICES, drift) % GROUPS for c in there}

    def of(clients: Iterable[str], key: str) -> float | str:
        values = [by_client[client][key] for client in clients if key in by_client[client]]
        return round(mean(values), 4) if values else ""

    return {
        "round": line["round"],
        "changed": of(there, "accuracy"),
        "trained": of(there, "accuracy_trained"),
        "others": of(others, "accuracy"),
        "clusters": line["clusters"],
        "right": round(mean(clusters.get(c) == home[group_of[c]] for c in there), 3) if there else "",
    }


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[3001])
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--changes", nargs="*", default=list(DRIFT))
    options = parser.parse_args(arguments if arguments is None else list(arguments))
    wanted = [
        (change, method, seed) for seed, change, method in product(options.seeds, options.changes, options.methods)
    ]
    lines = completed(options.runs, wanted)
    csv.writer(sys.stdout, lineterminator="\n").writerows(summary(lines))


def completed(
    runs: Path, wanted: Iterable[tuple[str, str, int]], more: Mapping[str, str] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """All lines of a file, to which the ``wanted`` runs (change, method, seed) that it lacks were added.

    ``more`` has a setting for some methods.
    """
    lines: list[dict[str, Any]] = []
    if runs.exists():
        with runs.open(encoding="utf-8", newline="") as file:
            lines = [*csv.DictReader(file)]
    done = {(line["change"], line["method"], line["seed"]) for line in lines}
    for change, method, seed in wanted:
        if (change, method, str(seed)) in done:
            continue
        fresh, found = not runs.exists(), [*measured(change, method, seed, *filter(None, [more.get(method)]))]
        with runs.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerows(found)
        lines += found
    return lines


def summary(lines: list[dict[str, Any]], methods: Iterable[str] = METHODS) -> Iterator[list[str]]:
    """A line for each method: means over seeds of the devices that changed, by change, figure and round."""
    shown = {
        "before": ("half turn", "changed", CHANGE - 1),
        "turned": ("half turn", "changed", CHANGE),
        "1 round later": ("half turn", "changed", CHANGE + 1),
        "2 rounds": ("half turn", "changed", CHANGE + 2),
        "9 rounds": ("half turn", "changed", ROUNDS),
        "placed after 1": ("half turn", "right", CHANGE + 1),
        "the others then": ("half turn", "others", CHANGE + 1),
        "back, 1 round later": ("back", "changed", BACK + 1),
        "newcomers": ("join", "changed", CHANGE),
        "1 round": ("join", "changed", CHANGE + 1),
        "placed at once": ("join", "right", CHANGE),
    }
    yield ["method", "seeds", *shown]
    for method in methods:
        own = [line for line in lines if line["method"] == method]
        cells = []
        for change, key, round_ in shown.values():
            where = (change, str(round_))
            values = [float(line[key]) for line in own if (line["change"], str(line["round"])) == where]
            if key == "right" and method in WITHOUT_CLUSTERS:
                values = []
            cells.append(f"{mean(values):.2f}".removeprefix("0") if values else "–")
        if own:
            yield [method, str(len({str(line["seed"]) for line in own})), *cells]


if __name__ == "__main__":
    main()
