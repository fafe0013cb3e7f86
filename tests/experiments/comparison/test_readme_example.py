"""The settings file of the page on the server, for devices with photos of their own, trains as it is written."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.run import simulate

ROOT = Path(__file__).parents[3]
COLOURS = {"healthy": (60, 150, 60), "mildew": (140, 160, 140), "rust": (150, 110, 50)}  # of leaves
LIGHT = (0.7, 1.0, 1.3)  # devices stand in the shade, indoors and in the sun
PHOTOS = 12  # of each class on each device


def leaf(random, colour, light):
    """A photo of 40 × 40: a disc in the class's colour, never at the same place, spots on it, and noise over all."""
    y, x = np.mgrid[:40, :40]
    centre, radius = random.uniform(14, 26, 2), random.uniform(9, 14)
    inside = (x - centre[0]) ** 2 + (y - centre[1]) ** 2 < radius**2
    pixels = np.full((40, 40, 3), (110, 100, 90), dtype=float)
    pixels[inside] = np.array(colour) + random.normal(0, 15, 3)
    pixels[inside & (random.random((40, 40)) < 0.15)] -= 40
    return np.clip(light * pixels + random.normal(0, 25, pixels.shape), 0, 255).astype(np.uint8)


@pytest.fixture
def garden(tmp_path):
    """Five devices with a folder of photos by class each; one of them has never seen rust."""
    random = np.random.default_rng(0)
    for device in range(5):
        for name, colour in COLOURS.items():
            if (device, name) == (4, "rust"):
                continue
            folder = tmp_path / "photos" / f"pi-{device}" / name
            folder.mkdir(parents=True)
            for i in range(PHOTOS):
                Image.fromarray(leaf(random, colour, LIGHT[device % 3])).save(folder / f"{i}.png")
    return tmp_path / "photos"


def test_the_pages_plants_train(garden, tmp_path):
    page = (ROOT / "docs" / "deploy-server.md").read_text()
    settings = re.search(r"```toml\n(# plants\.toml\n.*?)```", page, re.DOTALL)[1]
    (tmp_path / "plants.toml").write_text(settings)
    chosen = load_settings(
        tmp_path / "plants.toml", ["simulation.engine=inline", f"data.data_dir={garden}", "data.clients=5"]
    )
    summary = simulate(chosen, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [line["failed"] for line in lines] == [{}] * len(lines)
    assert summary["accuracy_macro"] > 0.8  # guessing: a third
    assert lines[-1]["loss"] < 0.3 < lines[0]["loss"]
    # Twelve photos of a class are learned by heart before the last round, and that is said.
    assert all("stands still" in warning for warning in summary["warnings"]), summary["warnings"]
