"""Is what a device answers with by default (``[personal] serve = "auto"``) the best that it has?

Simulations with ``serve = "auto"``, and beside it, of the same devices after the last round, the score of each of their
models and of the mixture. Ten seeds that the rule was not made on.

    BOUQUET_DATA_DIR=FOLDER python -m benchmarks.in_use run FILE [--columns NAME ...] [--seeds 400 ... 409]
    python -m benchmarks.in_use table FILE > experiments/results/benchmarks/in-use.csv

The columns with ``×``, devices × samples, are in ``in-use-small.csv``: two seeds, ``--seeds 700 701``.

``run`` adds a line of JSON to FILE for each column and seed, and passes over those that are there. FOLDER holds what
``experiments/tables`` reads, and ``beijing-air``. In the table ``best`` is the best of received, trained, alone and
mixture in the mean over the seeds, ``behind`` what the model in use is behind it, and ``most below alone`` of the run
in which it is furthest below.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

FASHION = {
    "data.dataset": "fashion-mnist",
    "data.clients": 20,
    "data.test_samples": 400,
    "data.samples_per_client": 80,
    "model.hidden": [64],
    "run.rounds": 10,
}
NATURAL = {**FASHION, "data.partition": "natural", "data.clients": 30}
ROTATED = {**FASHION, "data.partition": "rotated", "data.groups": 4}
DOMINANT = {**FASHION, "data.partition": "dominant", "data.heterogeneity": "mid", "data.samples_per_client": 60}
FOUND = {"strategy.name": "fesem", "strategy.num_clusters": "auto"}
AIR = {
    "task.kind": "forecast",
    "task.unit": "µg/m³",
    "data.dataset": "own",
    "data.clients": 12,
    "table.inputs": ["PM2.5", "TEMP", "PRES", "DEWP", "WSPM"],
    "table.targets": ["PM2.5"],
    "table.time": ["year", "month", "day", "hour"],
    "table.history": 24,
    "table.horizon": 6,
    "table.fill": 3,
    "table.cut": "2016-03-01",
    "model.hidden": [32],
    "run.rounds": 10,
    "train.local_epochs": 1,
    "train.batch_size": 256,
    "train.learning_rate": 0.05,
    "simulation.engine": "inline",
}
COLUMNS: dict[str, dict[str, Any]] = {
    "demo": {},
    "rotated, 4 clusters": {**ROTATED, "strategy.name": "fesem", "strategy.num_clusters": 4},
    "rotated, clusters found": {**ROTATED, **FOUND},
    "rotated, one model": ROTATED,
    "IID, 20": {**FASHION, "data.samples_per_client": 20},
    "IID, 80": FASHION,
    "IID, 320": {**FASHION, "data.samples_per_client": 320},
    "dominant, 60": DOMINANT,
    "dominant, 300": {**DOMINANT, "data.samples_per_client": 300},
    "dominant, 60, 3 of 10": {**DOMINANT, "server.fraction_train": 0.3, "run.rounds": 20},
    "IID, 80, 3 of 10": {**FASHION, "server.fraction_train": 0.3, "run.rounds": 20},
    "Dirichlet 0.5": {**FASHION, "data.partition": "dirichlet", "data.beta": 0.5, "data.min_samples": 20},
    "Dirichlet 0.1": {**FASHION, "data.partition": "dirichlet", "data.beta": 0.1, "data.min_samples": 20},
    "two classes": {**FASHION, "data.partition": "pathological", "data.classes_per_client": 2},
    "writers": {
        **NATURAL,
        "data.dataset": "mnist-writers",
        "data.reserved_fraction": 0.4,
        "data.min_samples": 60,
        "data.samples_per_client": 60,
    },
    "writers, clusters found": {},
    "HAR": {
        **NATURAL,
        "data.dataset": "uci-har",
        "data.reserved_fraction": 0.3,
        "data.public_fraction": 0.1,
        "data.samples_per_client": 80,
    },
    "dust, 6 hours": AIR,
}
COLUMNS["writers, clusters found"] = {**COLUMNS["writers"], **FOUND}
SMALL = {**FASHION, **FOUND}
TWO_KINDS = {**SMALL, "data.partition": "rotated", "data.groups": 2}
for devices in (4, 6, 8, 12):
    for samples in (30, 67, 150):
        size = {"data.clients": devices, "data.samples_per_client": samples}
        COLUMNS[f"2 kinds, {devices} × {samples}"] = {**TWO_KINDS, **size}
        COLUMNS[f"own mixes, {devices} × {samples}"] = {
            **SMALL,
            "data.partition": "dominant",
            "data.heterogeneity": "mid",
            **size,
        }
for samples in (30, 67):
    COLUMNS[f"8 kinds, 8 × {samples}"] = {
        **TWO_KINDS,
        "data.groups": 8,
        "data.clients": 8,
        "data.samples_per_client": samples,
    }
KINDS = ("alone", "received", "trained", "mixture")


def settings_of(column: str, seed: int) -> Any:
    """A cell's settings."""
    from bouquet.common.settings import load_settings
    from bouquet.federation.demo import DEMO

    changes = dict(DEMO) if column == "demo" else {"strategy.name": "fedavg", "simulation.engine": "batched"}
    if column == "demo":
        changes["simulation.engine"] = "inline"
    changes |= COLUMNS[column] | {"run.seed": seed}
    if changes.get("data.dataset") == "own":
        changes["data.data_dir"] = str(Path(os.environ["BOUQUET_DATA_DIR"]) / "beijing-air")
    return load_settings(None, []).with_overrides(changes)


def one_run(column: str, seed: int) -> dict[str, Any]:
    """A cell: the mean score over devices of each model, and what devices counted in each round."""
    from bouquet.client.rounds.mixture import Mixing
    from bouquet.experiments.simulation.run import simulate
    from bouquet.strategies.base.filters.serving import FleetVote

    scores: dict[str, list[float]] = {kind: [] for kind in KINDS}
    counted: list[tuple[int, str, float]] = []
    votes: list[bool] = []
    serve, incoming, begin = Mixing._serve, FleetVote.incoming, FleetVote.begin

    def noting(self: Any, models: dict[str, Any]) -> Any:
        if self.session.is_evaluation:
            there = {kind: model for kind, model in models.items() if model is not None}
            there.setdefault("trained", there.get("personal", there["received"]))
            distinct = {vector.tobytes(): vector for vector in there.values()}
            for kind in KINDS[:3]:
                scores[kind].append(self.session.test(there[kind]).score)
            scores["mixture"].append(self.session.test(*distinct.values()).score)
        return serve(self, models)

    def hearing(self: Any, reply: Any) -> Any:
        if (found := reply.config.get("serving")) is not None:
            counted.append((len(votes), reply.client, found))
        return incoming(self, reply)

    def beginning(self: Any, round_: int) -> None:
        begin(self, round_)
        votes.append(self.choice == "received")

    Mixing._serve, FleetVote.incoming, FleetVote.begin = noting, hearing, beginning  # type: ignore[method-assign]
    try:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            summary = simulate(settings_of(column, seed), Path(folder) / "run")
    finally:
        Mixing._serve, FleetVote.incoming, FleetVote.begin = serve, incoming, begin  # type: ignore[method-assign]
    score = summary.get("score", {"key": "accuracy", "higher_is_better": True})
    kept = list(summary["kept_by_client"].values())
    return {
        "column": column,
        "seed": seed,
        "higher_is_better": score["higher_is_better"],
        **{kind: float(np.mean(found)) for kind, found in scores.items()},
        "in_use": summary[f"{score['key']}_macro"],
        "takes_received": kept.count("received") / len(kept),
        "votes": votes,
        "counted": counted,
        "seconds": round(time.monotonic() - started, 1),
    }


def run(file: Path, columns: list[str], seeds: list[int]) -> None:
    """Run what is not there yet."""
    there = {(one["column"], one["seed"]) for one in lines(file)}
    for seed in seeds:
        for column in columns:
            if (column, seed) in there:
                continue
            found = one_run(column, seed)
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(found) + "\n")
            shown = " ".join(f"{kind} {found[kind]:.3f}" for kind in (*KINDS, "in_use"))
            print(f"{column}, {seed}: {shown}, {found['seconds']} s", flush=True)


def lines(file: Path) -> list[dict[str, Any]]:
    """What was run before."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def table(file: Path, columns: list[str], seeds: list[int]) -> None:
    """Means over the seeds as CSV; of the columns that have at least half of them."""
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(
        [
            "column",
            "seeds",
            *KINDS,
            "best",
            "in use",
            "behind",
            "± over seeds",
            "most below alone",
            "runs with the received model",
        ]
    )
    found = lines(file)
    for column in columns:
        runs = [one for one in found if one["column"] == column and one["seed"] in seeds]
        if 2 * len(runs) < len(seeds):
            continue
        means = {kind: float(np.mean([one[kind] for one in runs])) for kind in (*KINDS, "in_use")}
        better = 1 if runs[0]["higher_is_better"] else -1
        best = max(KINDS, key=lambda kind: better * means[kind])
        behind = [better * (one[best] - one["in_use"]) for one in runs]
        digits = 3 if better > 0 else 2
        deviation = float(np.std(behind, ddof=1)) if len(runs) > 1 else float("nan")
        below = max(better * (one["alone"] - one["in_use"]) for one in runs)
        numbers = [means[kind] for kind in KINDS]
        numbers += [means[best], means["in_use"], float(np.mean(behind)), deviation, below]
        texts = [f"{value:.{digits}f}" for value in numbers]
        out.writerow(
            [
                column,
                len(runs),
                *texts[:4],
                f"{texts[4]} ({best})",
                *texts[5:],
                sum(one["takes_received"] > 0.5 for one in runs),
            ]
        )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--columns", nargs="*", default=list(COLUMNS))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(range(400, 410)))
    asked = parser.parse_args()
    if asked.what == "run":
        run(asked.file, asked.columns, asked.seeds)
    else:
        table(asked.file, asked.columns, asked.seeds)


if __name__ == "__main__":
    main()
