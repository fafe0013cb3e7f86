"""Devices' own data in a simulation: a folder for each client."""

import json

import numpy as np
import pytest
from PIL import Image

from bouquet.common.errors import BouquetError
from bouquet.common.settings import load_settings
from bouquet.experiments.report.run_report import reproduce
from bouquet.experiments.simulation.run import simulate
from bouquet.server.record.reader import read_run

BASE = [
    "data.dataset=own",
    "data.classes=['dark', 'light']",
    "data.input_shape=[1, 8, 8]",
    "strategy.name=fedavg",
    "run.rounds=2",
    "train.learning_rate=0.05",
]


def settings(folder, *changes):
    return load_settings(None, [*BASE, f"data.data_dir={folder}", *changes])


def photos(folder, images=10, seed=0):
    """A folder of images by class, dark and light ones."""
    random = np.random.default_rng(seed)
    for name, level in (("dark", 60), ("light", 180)):
        (folder / name).mkdir(parents=True)
        for i in range(images):
            pixels = (level + random.integers(-30, 30, (8, 8))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")


@pytest.fixture
def garden(tmp_path):
    """Two clients with images, one with an .npz."""
    folder = tmp_path / "garden"
    photos(folder / "north", seed=1)
    photos(folder / "south", seed=2)
    (folder / "east").mkdir()
    y = np.arange(20) % 2
    x = (60 + 120 * y[:, None, None, None] + np.random.default_rng(3).integers(-30, 30, (20, 1, 8, 8))).astype(np.uint8)
    np.savez(folder / "east" / "data.npz", x=x, y=y)
    (folder / ".cache").mkdir()
    (folder / "readme.txt").write_text("no client")
    return folder


def test_a_folder_for_each_client_who_is_named_like_it(garden, tmp_path):
    summary = simulate(settings(garden, "simulation.engine=inline"), tmp_path / "run")
    assert sorted(summary["accuracy_by_client"]) == ["east", "north", "south"]
    assert summary["clients"] == 3
    assert summary["accuracy_macro"] == 1.0
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["data"]["clients"] == 3
    again = reproduce(read_run(tmp_path / "run").settings, tmp_path / "run")["command"]
    assert again.startswith("bouquet simulate")
    assert "--clients 3" in again
    repeated = simulate(settings(garden, "simulation.engine=inline", "data.clients=3"), tmp_path / "again")
    assert repeated["accuracy_by_client"] == summary["accuracy_by_client"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda garden: ["data.clients=5"], r"data.clients = 5, .* holds 3 folders \(east, north, south\)"),
        (lambda garden: (garden / "west").mkdir(), r"1 of 4 clients do not fit: client 'west': .* holds no images"),
        (
            lambda garden: [(garden / "north" / "dark" / f"{i}.png").write_bytes(b"?") for i in range(4)][4:],
            r"1 of 3 clients do not fit: client 'north': .*cannot be read",
        ),
        (lambda garden: [f"data.data_dir={garden / 'nowhere'}"], "nowhere' is no folder"),
        (lambda garden: [f"data.data_dir={garden / '.cache'}"], r"holds no folders and no tables; make one"),
        (lambda garden: ["data.data_dir="], "a folder with a folder for each client"),
    ],
)
def test_what_does_not_fit_is_named_before_anything_is_written(garden, tmp_path, change, message):
    changes = change(garden) or []
    with pytest.raises(BouquetError, match=message):
        simulate(settings(garden, "simulation.engine=inline", *changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
