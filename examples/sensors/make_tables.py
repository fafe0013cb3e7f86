"""Tables of the level in four tanks, a row an hour: a valve fills two of them, and drains the others."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

NAMES = ("tank-1", "tank-2", "tank-3", "tank-4")


def write_tables(folder, names=NAMES, hours=300, seed=0):
    """A CSV a device: the level in a tank, which a valve fills, or at every second one drains; a few gaps."""
    folder.mkdir(parents=True)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for number, name in enumerate(names):
        rng = np.random.default_rng((seed, number))
        level, valve, lines = 60.0, 0, ["time,level (cm),valve,note"]
        for hour in range(hours):
            valve = int(rng.integers(0, 2)) if hour % 6 == 0 else valve
            level = 60 + 0.9 * (level - 60) + (1, -1)[number % 2] * 4 * valve + rng.normal()
            shown = "" if hour % 97 == 5 else f"{level:.1f}"
            lines.append(f"{begin + timedelta(hours=hour):%Y-%m-%dT%H:%M},{shown},{valve},ok")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


if __name__ == "__main__":
    write_tables(Path(sys.argv[1]))
