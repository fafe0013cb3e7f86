"""Folders of devices of two kinds, as an owner has them: photos by class, and tables of a logger."""

from datetime import UTC, datetime, timedelta

import numpy as np
from PIL import Image

NAMES = ("door-pi", "garden-pi", "roof-pi", "shed-pi", "window-pi")
CLASSES = ("healthy", "mildew", "rust")


def write_photos(folder, names=NAMES, classes=CLASSES, each=12, size=(64, 48), seed=0):
    """Photos of ``each`` class a device: stripes by class; every second device has its camera on its side."""
    for number, name in enumerate(names):
        rng = np.random.default_rng((seed, number))
        for label, kind in enumerate(classes):
            (folder / name / kind).mkdir(parents=True)
            for k in range(each):
                wave = np.sin(np.arange(size[0]) * 0.3 * (label + 1) + rng.uniform(0, 6))
                pixels = 120 + 80 * wave[None, :, None] + rng.normal(0, 25, (size[1], size[0], 3))
                image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
                if number % 2:
                    image = image.rotate(90, expand=True).resize(size)
                image.save(folder / name / kind / f"{k:03}.jpg")
    return folder


def write_tables(folder, names=NAMES, hours=300, seed=0):
    """A CSV a device, a row an hour: the level in a tank, which a valve fills, or at every second one drains."""
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
