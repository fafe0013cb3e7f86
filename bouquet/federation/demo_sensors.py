"""Tables for ``bouquet demo --task forecast``: tanks with a valve that fills them, and such that it drains."""

from __future__ import annotations

import csv
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

KINDS = ("filled", "drained")
HOURS = 1_200

FORECAST = {
    "run.name": "demo-forecast",
    "run.rounds": 6,
    "task.kind": "forecast",
    "task.unit": "cm",
    "data.dataset": "own",
    "data.clients": 6,
    "table.inputs": ("level", "valve"),
    "table.targets": ("level",),
    "table.time": ("time",),
    "table.history": 6,
    "table.horizon": 4,
    "model.name": "mlp",
    "strategy.name": "fesem",
    "strategy.num_clusters": 2,
    "train.learning_rate": 0.05,
    "train.batch_size": 32,
    "train.local_epochs": 2,
    "server.round_timeout": 120.0,
    "server.wait_for_clients": 120.0,
}


def write_tables(folder: Path, seed: int, devices: int) -> None:
    """A CSV of fifty days, a row an hour, for each device; about 180 kB in all.

    The valve is open for hours at a time, h is the level: h(t + 1) = 60 + .9 (h(t) − 60) ± 4 valve(t) + noise, plus
    where the valve fills, minus where it drains.
    """
    folder.mkdir(parents=True)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for device in range(devices):
        kind, rng = device % len(KINDS), np.random.default_rng((seed, device))
        valve = np.repeat(rng.integers(0, 2, HOURS), rng.integers(4, 12, HOURS))[:HOURS]
        level, sign = 60.0, (1, -1)[kind]
        with (folder / f"{KINDS[kind]}-{device // len(KINDS) + 1}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("time", "level", "valve"))
            for hour in range(HOURS):
                level = 60 + 0.9 * (level - 60) + sign * 4 * valve[hour] + rng.normal()
                writer.writerow((f"{begin + timedelta(hours=hour):%Y-%m-%dT%H:%M}", f"{level:.1f}", valve[hour]))
