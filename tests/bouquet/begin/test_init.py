"""What `bouquet init` sees in folders of photos, tables and .npz, and that what it writes works as it is."""

import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bouquet.begin.draft import draft_text
from bouquet.begin.look import devices_in, look
from bouquet.begin.server_setup import settings_of
from bouquet.common.errors import BouquetError
from examples.photos.make_photos import write_photos
from examples.sensors.make_tables import write_tables
from tests.bouquet.test_cli import bouquet

TWO = ("door-pi", "roof-pi")


def written(folder, target=None):
    """The settings as they are after a detour over the file, and what was said."""
    draft = look(folder, target=target)
    text = draft_text(draft, "bouquet init")
    assert tomllib.loads(text) == draft.sections
    return settings_of(draft), " ".join([*draft.seen, *draft.assumed])


def test_a_fleet_of_photos_is_seen_written_checked_and_simulated(tmp_path):
    write_photos(tmp_path / "plants", TWO, each=4)
    done = bouquet(tmp_path, "init", "plants", "--server")
    assert done.returncode == 0, done.stderr
    assert "2 devices (door-pi, roof-pi), 24 photos of 80 × 80 pixels, 3 classes: healthy, mildew, rust" in done.stdout
    assert (tmp_path / "keys" / "devices" / "roof-pi" / "device.key").exists()
    lines = (tmp_path / "plants.toml").read_text().splitlines()
    assert sum(" = " in line for line in lines) == 11
    again = bouquet(tmp_path, "init", "plants")
    assert (again.returncode, "is not overwritten" in again.stderr) == (2, True)
    key = (tmp_path / "keys" / "ca.key").read_bytes()
    with (tmp_path / "plants.toml").open("a") as file:
        file.write("[personal]\nserve = 'own'\n")
    assert bouquet(tmp_path, "init", "plants", "--server").returncode == 0
    assert "serve = 'own'" in (tmp_path / "plants.toml").read_text()
    assert (tmp_path / "keys" / "ca.key").read_bytes() == key
    ran = bouquet(tmp_path, "simulate", "plants.toml", "--rounds", "1")
    assert ran.returncode == 0, ran.stderr
    assert json.loads((tmp_path / "runs" / "plants" / "summary.json").read_text())["clients"] == 2


def test_tables_of_a_logger_become_a_forecast(tmp_path):
    settings, said = written(write_tables(tmp_path / "tanks", TWO))
    assert (settings.task.kind, settings.task.unit) == ("forecast", "cm")
    assert settings.table.inputs == ("level (cm)", "valve")
    assert settings.table.targets == ("level (cm)",)
    assert (settings.table.time, settings.table.history, settings.table.fill) == (("time",), 15, 3)
    assert "Passed over: note" in said
    assert "A row every hour." in said
    assert "Empty cells: level (cm) 8" in said
    assert written(tmp_path / "tanks", "valve")[0].table.targets == ("valve",)
    with pytest.raises(BouquetError, match=r"No column 'lvl' to tell; there are level \(cm\), valve, note"):
        look(tmp_path / "tanks", target="lvl")


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-8"])
def test_tables_as_a_spreadsheet_writes_them(encoding, tmp_path):
    rows = [f"{1 + k // 24:02}.10.2026 {k % 24}:00;{20 + k % 7},5;{k % 3};;" for k in range(200)]
    (tmp_path / "tank.csv").write_text("\n".join(["Logger 7", "time;heat (°C);valve;;", *rows]) + "\n", encoding)
    settings, said = written(tmp_path)
    assert (settings.table.time, settings.table.targets, settings.task.unit) == (("time",), ("heat (°C)",), "°C")
    assert settings.table.inputs == ("heat (°C)", "valve")
    assert "A row every hour." in said


def test_a_line_of_units_and_a_few_bad_cells_are_no_words(tmp_path):
    rows = [f"2026-10-{1 + k // 24:02}T{k % 24:02}:00,{20 + k % 7}.5,{k % 3}" for k in range(200)]
    rows[7] = "1970-01-01T00:00:07,20.5,1"
    rows[9] = "2026-10-01Tx9:00,20.5,1"
    rows[20:23] = [row.replace(".5", " ERR") for row in rows[20:23]]
    (tmp_path / "tank.csv").write_text("\n".join(["time,heat,valve", ",°C,open", *rows]) + "\n")
    settings, said = written(tmp_path)
    assert (settings.task.kind, settings.table.time, settings.table.targets) == ("forecast", ("time",), ("heat",))
    assert settings.table.inputs == ("heat", "valve")
    assert "A row every hour; 2 steps have none." in said


def test_words_are_classes_or_inputs_and_numbers_without_a_time_a_regression(tmp_path):
    rows = [f"{k},{k % 7}.5,{'NSEW'[k % 4]},{('dry', 'wet')[k % 2]},,{k * 3}" for k in range(40)]
    table = tmp_path / "soil"
    table.mkdir()
    for name in ("a", "b"):
        (table / f"{name}.csv").write_text("\n".join(["nr,heat,wind,state,ph,yield [kg]", *rows]) + "\n")
    settings, said = written(table, "state")
    assert (settings.task.kind, settings.data.classes) == ("classification", ("dry", "wet"))
    assert settings.table.inputs == ("heat", "wind", "yield [kg]")
    assert settings.table.categories == ("wind=E,N,S,W",)
    assert "Passed over: nr" in said
    assert "Empty: ph." in said
    settings, said = written(table)
    assert (settings.task.kind, settings.task.unit, settings.table.targets) == ("regression", "kg", ("yield [kg]",))
    assert "No column says when" in said


def test_a_date_in_parts_and_devices_whose_tables_differ(tmp_path):
    for name, more in (("a", ",rain"), ("b", "")):
        rows = [f"2026,1,{1 + k // 24},{k % 24},{k % 5}.5" + (",1" if more else "") for k in range(120)]
        (tmp_path / f"{name}.csv").write_text("\n".join([f"year,month,day,hour,heat{more}", *rows]) + "\n")
    settings, said = written(tmp_path)
    assert settings.table.time == ("year", "month", "day", "hour")
    assert "Not every device has rain" in said


@pytest.mark.parametrize(("samples", "size"), [(20, 4), (59, 4), (60, 8), (119, 8), (120, 16), (1000, 16)])
def test_few_samples_are_trained_in_smaller_batches(samples, size, tmp_path):
    """A fifth is tested, and an epoch has six steps at least, or batches of four."""
    y = np.arange(samples) % 2
    np.savez(tmp_path / "data.npz", x=np.zeros((samples, 4), dtype=np.float32), y=y)
    assert written(tmp_path)[0].train.batch_size == size


@pytest.mark.parametrize("numbers", [False, True])
def test_an_npz(tmp_path, numbers):
    rng = np.random.default_rng(0)
    y = rng.normal(size=(20, 2)) if numbers else rng.integers(0, 3, 20)
    (tmp_path / "one").mkdir()
    np.savez(tmp_path / "one" / "data.npz", x=rng.normal(size=(20, 4)).astype(np.float32), y=y)
    settings, _ = written(tmp_path / "one")
    assert settings.data.input_shape == (4,)
    assert settings.task.kind == ("regression" if numbers else "classification")
    assert settings.table.targets == (("y0", "y1") if numbers else ())


def test_what_is_no_data_is_said(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BouquetError, match="holds no photos in folders by class"):
        look(tmp_path / "empty")
    with pytest.raises(BouquetError, match="is not there"):
        look(tmp_path / "nowhere")
    write_photos(tmp_path / "mixed", ("door-pi",), each=1, size=9)
    (tmp_path / "mixed" / "rust").mkdir()
    Image.new("L", (9, 9)).save(tmp_path / "mixed" / "rust" / "0.png")
    with pytest.raises(BouquetError, match="is mixed: rust has images"):
        devices_in(tmp_path / "mixed")
    write_photos(tmp_path / "one", ("door-pi",), each=1, size=9)
    for name in ("mildew", "rust"):
        shutil.rmtree(tmp_path / "one" / "door-pi" / name)
    with pytest.raises(BouquetError, match="one class only, healthy"):
        look(tmp_path / "one" / "door-pi")
    assert devices_in(tmp_path / "one" / "door-pi") == (Path(tmp_path / "one" / "door-pi"),)
