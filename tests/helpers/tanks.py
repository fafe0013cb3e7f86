"""Tables of the level in tanks, which a valve fills or drains, and settings to forecast from them."""

from datetime import UTC, datetime, timedelta

import numpy as np

KINDS = ("filled", "drained")
HOURS = 1_200

FORECAST = {
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
    "train.batch_size": 32,
}


def write_tables(folder, seed, devices):
    """A CSV of fifty days, a row an hour, for each device: ``filled-1``, ``drained-1``, ``filled-2`` …"""
    folder.mkdir(parents=True)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for device in range(devices):
        kind, rng = device % len(KINDS), np.random.default_rng((seed, device))
        valve = np.repeat(rng.integers(0, 2, HOURS), rng.integers(4, 12, HOURS))[:HOURS]
        level, lines = 60.0, ["time,level,valve"]
        for hour in range(HOURS):
            level = 60 + 0.9 * (level - 60) + (1, -1)[kind] * 4 * valve[hour] + rng.normal()
            lines.append(f"{begin + timedelta(hours=hour):%Y-%m-%dT%H:%M},{level:.1f},{valve[hour]}")
        (folder / f"{KINDS[kind]}-{device // len(KINDS) + 1}.csv").write_text("\n".join(lines) + "\n")
