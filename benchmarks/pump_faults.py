"""Planted faults: what models of several devices find of them, and an isolation forest of each device's own.

Twelve pumps of three kinds, a row each ten minutes, some of which have run for six weeks and others for one. In the
newest fifth, which nobody trains on, faults are planted: a leak, a worn bearing, a blocked inlet, a flow meter that
is stuck and a pressure gauge that is off. A row is odd where its score is beyond the .995 quantile of those that the
device trained on, of each detector its own::

    python benchmarks/pump_faults.py --seeds 5 --out FILE.csv

With ``--stations FOLDER`` they are planted in half a year of Beijing's twelve stations (UCI 501), gaps filled by
straight lines: a thermometer in the sun, a counter of particles that is off or stuck, NO2 that is too low, and a
hygrometer that is off.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from sklearn.ensemble import IsolationForest
from sklearn.metrics import average_precision_score

from bouquet.client.data.loading import ClientData
from bouquet.client.data.own import load_table
from bouquet.client.data.table_reader import read_table
from bouquet.client.data.table_text import table_files
from bouquet.common.model.build import initial_model
from bouquet.common.settings import Settings, load_settings
from bouquet.common.settings.sections import TableSettings
from bouquet.experiments.simulation.run import simulate
from bouquet.models.odd import ODD, OddRows, reconstructed, row_errors

Floats = NDArray[np.float64]
PUMPS, KINDS, HISTORY, DAY, TESTED = 12, 3, 12, 144, 0.2
WEEKS = (6, 1, 2)  # that pumps have run for
FAULTS, LONGEST = 8, 24  # planted in each pump's newest part, and rows that one lasts at most
METHODS = {"FedAvg": ["fedavg"], "FeSEM (3)": ["fesem", "strategy.num_clusters=3"]}


@dataclass(frozen=True)
class Fleet:
    """Tables of ``columns``, which are made for a seed, by name and ``step`` apart, the oldest row first.

    A fault moves columns up or down by its ``signs`` times one to two of their deviations; None is the first of them
    that is stuck.
    """

    columns: tuple[str, ...]
    signs: tuple[tuple[int, ...] | None, ...]
    step: timedelta
    tables: Callable[[np.random.Generator], Iterator[tuple[str, Floats]]]


def pump(kind: int, rows: int, rng: np.random.Generator) -> Floats:
    """A pump without faults (rows, columns): demand by the time of day, and what follows from it by the pump's kind."""
    at = np.arange(rows) / DAY * 2 * np.pi
    drift = np.convolve(rng.normal(0, 1, rows + 35), np.ones(36) / 6, "valid")
    demand = 1 + (0.3, 0.1, 0.4)[kind] * np.sin(at * (1, 2, 1)[kind] + kind) + 0.1 * drift
    flow = (20, 60, 8)[kind] * demand
    pressure = (6.0, 3.0, 9.0)[kind] - (1.5, 0.5, 3.0)[kind] * demand**2
    power = (0.4, 0.2, 0.9)[kind] * flow * pressure / 6 + (1, 2, 0.5)[kind]
    vibration = (1.0, 2.0, 0.6)[kind] * (0.8 + 0.2 * demand ** (1, 3, 2)[kind])
    warm = 20 + 5 * np.sin(at - 2) + (2, 1, 4)[kind] * power / (1 + power) * demand
    found = np.stack([flow, pressure, power, vibration, warm], axis=1)
    return found * rng.normal(1, 0.1, 5) + rng.normal(0, 0.02, found.shape) * found.std(axis=0) * 5


def pumps(rng: np.random.Generator) -> Iterator[tuple[str, Floats]]:
    """Twelve of three kinds."""
    for number in range(PUMPS):
        yield f"pump-{number:02}", pump(number % KINDS, WEEKS[number // KINDS % len(WEEKS)] * 7 * DAY, rng)


def of_stations(folder: Path) -> Fleet:
    """The first half year of the stations' tables in a folder."""
    columns = ("PM2.5", "PM10", "NO2", "TEMP", "DEWP", "PRES")
    about = TableSettings(inputs=columns, time=("year", "month", "day", "hour"), until="2013-09-01")

    def tables(_: np.random.Generator) -> Iterator[tuple[str, Floats]]:
        for file in table_files(folder):
            values = read_table(file, about, with_targets=False).inputs
            for column in values.T:
                known = np.flatnonzero(np.isfinite(column))
                column[:] = np.interp(np.arange(len(column)), known, column[known])
            yield file.name.partition(".")[0], values

    sun, counter, low, hygrometer = (0, 0, 0, 1, 0, 0), (1, 0, 0, 0, 0, 0), (0, 0, -1, 0, 0, 0), (0, 0, 0, 0, 1, 0)
    return Fleet(columns, (sun, counter, low, None, hygrometer), timedelta(hours=1), tables)


OF_PUMPS = Fleet(
    ("flow", "pressure", "power", "vibration", "temperature"),
    ((1, -1, 0, 0, 0), (0, 0, 0, 1, 1), (-1, 0, 1, 0, 0), None, (0, 1, 0, 0, 0)),  # leak, bearing, inlet, stuck, gauge
    timedelta(days=1) / DAY,
    pumps,
)


def with_faults(values: Floats, fleet: Fleet, rng: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
    """With faults in the newest fifth; and which of them each row is in (rows,), 0 for none."""
    values, fault = values.copy(), np.zeros(len(values), dtype=np.int64)
    begin = len(values) - int(TESTED * len(values)) + LONGEST
    places = np.linspace(begin, len(values) - 2 * LONGEST, FAULTS).astype(int)
    scale = values[:begin].std(axis=0)
    for number, place in enumerate(places, 1):
        rows = slice(place, place + int(rng.integers(LONGEST // 4, LONGEST)))
        size, signs = rng.uniform(1, 2), fleet.signs[number % len(fleet.signs)]
        if signs is None:
            values[rows, 0] = values[place, 0] + scale[0] * size / 2
        else:
            values[rows] += scale * size * signs
        fault[rows] = number
    return values, fault


def write(folder: Path, fleet: Fleet, seed: int) -> dict[str, NDArray[np.int64]]:
    """A table for each device; and what is planted in it, by the name."""
    rng, planted = np.random.default_rng(seed), {}
    folder.mkdir()
    for name, usual in fleet.tables(rng):
        values, planted[name] = with_faults(usual, fleet, rng)
        begun = datetime(2026, 1, 1)
        lines = [
            f"{begun + fleet.step * row:%Y-%m-%dT%H:%M}," + ",".join(f"{v:.3f}" for v in cells)
            for row, cells in enumerate(values)
        ]
        (folder / f"{name}.csv").write_text("\n".join([",".join(("time", *fleet.columns)), *lines, ""]))
    return planted


def settings_of(data: Path, fleet: Fleet, seed: int, clients: int, method: list[str]) -> Settings:
    """An autoencoder of windows of twelve rows."""
    name, *more = method
    return load_settings(
        None,
        [
            *("task.kind=anomaly", "data.dataset=own", f"data.data_dir={data}", f"data.clients={clients}"),
            *(f"table.inputs={','.join(fleet.columns)}", "table.time=time", f"table.history={HISTORY}"),
            *("model.name=mlp", "model.hidden=64,8,64", "run.rounds=15", f"run.seed={seed}", "server.min_clients=1"),
            *("train.local_epochs=1", "train.batch_size=128", "train.learning_rate=0.1", "simulation.engine=inline"),
            *(f"strategy.name={name}", *more),
        ],
    )


def of_model(model: torch.nn.Module, data: ClientData) -> Floats:
    """How many times its threshold each of the tested rows is, by a model."""

    def run(x: NDArray[np.floating]) -> NDArray[np.floating]:
        with torch.inference_mode():
            found: NDArray[np.floating] = model(torch.as_tensor(np.ascontiguousarray(x))).numpy()
        return found

    errors = [row_errors(x, reconstructed(x, run))[1] for x in (data.train_x, data.test_x)]
    scores: Floats = OddRows.of(errors[0]).scores(errors[1]).max(axis=1)
    return scores


def of_forest(data: ClientData, seed: int, windows: bool) -> Floats:
    """The same by an isolation forest of the device's own, of rows or of whole windows, each for its last row."""
    train, test = (x.reshape(len(x), -1) if windows else x[:, :, -1] for x in (data.train_x, data.test_x))
    forest = IsolationForest(n_estimators=200, random_state=seed).fit(train)
    limit = np.quantile(-forest.score_samples(train), ODD)
    early = data.test_x[0, :, :-1].T  # the rows before the first window's last
    if windows:
        return np.append(np.zeros(len(early)), -forest.score_samples(test)) / limit
    return np.append(-forest.score_samples(early), -forest.score_samples(test)) / limit


def measured(scores: Floats, fault: NDArray[np.int64]) -> dict[str, float]:
    """Precision and recall over rows, the share of faults of which a row is found, and without a threshold the mean
    precision over all recalls."""
    odd = scores > 1
    hit, faults = (odd & (fault > 0)).sum(), np.unique(fault[fault > 0])
    return {
        "precision": float(hit / max(1, odd.sum())),
        "recall": float(hit / (fault > 0).sum()),
        "average precision": float(average_precision_score(fault > 0, scores)),
        "faults found": float(np.mean([odd[fault == one].any() for one in faults])),
    }


def runs(folder: Path, fleet: Fleet, seed: int) -> Iterator[tuple[str, int, str, dict[str, float]]]:
    """Device, its days, detector and figures."""
    planted = write(folder / "tables", fleet, seed)
    files = sorted((folder / "tables").iterdir())
    days = {name: round(len(fault) * fleet.step / timedelta(days=1)) for name, fault in planted.items()}
    about = settings_of(folder / "tables", fleet, seed, len(files), METHODS["FedAvg"])
    data = {file.stem: load_table(file, about) for file in files}
    tested = {name: fault[-(len(data[name].test_x) + HISTORY - 1) :] for name, fault in planted.items()}
    for label, method in METHODS.items():
        simulate(settings_of(folder / "tables", fleet, seed, len(files), method), folder / label)
        assignment = json.loads((folder / label / "summary.json").read_text())["assignment"]
        for name, cluster in assignment.items():
            model = _model(folder / label / "models" / f"cluster-{cluster}.safetensors", about)
            yield name, days[name], label, measured(of_model(model, data[name]), tested[name])
    for file in files:
        name, alone = file.stem, folder / f"alone-{file.stem}"
        alone.mkdir()
        (alone / file.name).write_bytes(file.read_bytes())
        simulate(settings_of(alone, fleet, seed, 1, METHODS["FedAvg"]), folder / f"run-{name}")
        model = _model(folder / f"run-{name}" / "models" / "cluster-0.safetensors", about)
        yield name, days[name], "alone", measured(of_model(model, data[name]), tested[name])
        for label, windows in (("isolation forest, rows", False), ("isolation forest, windows", True)):
            yield name, days[name], label, measured(of_forest(data[name], seed, windows), tested[name])


def _model(file: Path, about: Settings) -> torch.nn.Module:
    model = initial_model(about)
    model.load_state_dict(load_file(file))
    return model.eval()


def main() -> None:
    """Print the mean over devices and seeds, and write every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True, help="a CSV file")
    parser.add_argument("--stations", type=Path, help="a folder with their tables, in place of pumps")
    arguments = parser.parse_args()
    fleet = of_stations(arguments.stations) if arguments.stations else OF_PUMPS
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    lines: list[dict[str, Any]] = []
    for seed in range(arguments.seeds):
        with tempfile.TemporaryDirectory() as folder:
            for name, days, label, figures in runs(Path(folder), fleet, seed):
                lines.append({"seed": seed, "device": name, "days": days, "detector": label, **figures})
        with arguments.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows({k: round(v, 4) if isinstance(v, float) else v for k, v in one.items()} for one in lines)
        print(f"after seed {seed}:", flush=True)
        for label in dict.fromkeys(line["detector"] for line in lines):
            one = [line for line in lines if line["detector"] == label]
            keys = ("precision", "recall", "average precision", "faults found")
            means = {key: np.mean([line[key] for line in one]) for key in keys}
            print(f"  {label}: {', '.join(f'{key} {value:.3f}' for key, value in means.items())}", flush=True)


if __name__ == "__main__":
    main()
