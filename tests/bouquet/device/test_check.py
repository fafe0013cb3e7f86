"""``bouquet check``: is a device ready to join?"""

from datetime import UTC, datetime

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from bouquet.cli import app
from bouquet.client.uploads.privacy_budget import Budget
from bouquet.common.system.ports import free_port
from bouquet.device import check
from bouquet.device.check import check_device
from bouquet.keys.store import add_device, init_keys

SETTINGS = """
[data]
dataset = "own"
classes = ["healthy", "rust"]
input_shape = [3, 8, 8]
[model]
name = "mlp"
"""


@pytest.fixture(autouse=True)
def threads_as_before():
    """The check takes all cores, for good: with them the small models of later tests wait for each other's threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def device(tmp_path):
    """Photos, keys and settings of a device that is ready."""
    for name in ("healthy", "rust"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(5):
            pixels = np.full((12, 16, 3), 20 * number, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    (tmp_path / "plants.toml").write_text(SETTINGS)
    init_keys(tmp_path / "keys", ["127.0.0.1"])
    add_device(tmp_path / "keys", "garden-pi")
    return tmp_path


def lines(device, **changes):
    given = {
        "server": None,
        "data": device / "photos",
        "state_dir": device / "state",
        "settings": device / "plants.toml",
        "keys": device / "keys" / "devices" / "garden-pi",
        "insecure": False,
    }
    return check_device(**given | changes)


def by_name(found):
    return {line.what: line for line in found if line.what}


def test_a_device_that_is_ready(device):
    found = lines(device)
    assert not any(line.wrong for line in found)
    said = by_name(found)
    assert said["data"].text.startswith("8 samples to train on, 2 to test on; healthy 5, rust 5. Read in ")
    assert said["keys"].text == "The certificate of garden-pi and its key can be read."
    assert "ca.crt is valid until" in said["clock"].text
    assert said["model"].text.startswith("mlp, ")
    assert "2 epochs over 8 samples trains for about" in said["model"].text
    assert "MB free" in said["disk"].text
    assert said["server"].state == "look"
    assert not (device / "state").exists()  # nothing is left behind


def test_code_that_its_owner_has_to_allow_is_named(device, monkeypatch):
    (device / "mine.py").write_text(
        "from torch import nn\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(192, 2))"
    )
    monkeypatch.syspath_prepend(device)
    (device / "plants.toml").write_text(SETTINGS.replace("mlp", "mine:net"))
    assert any(line.state == "look" and "--allow-model mine:net" in line.text for line in lines(device))


def test_without_the_settings_every_photo_is_opened_all_the_same(device):
    (device / "photos" / "rust" / "torn.png").write_bytes(b"no image")
    (device / "photos" / "rust" / "old.svg").write_bytes(b"")
    found = lines(device, settings=None)
    texts = [f"{line.state} {line.text}" for line in found]
    assert f"ok 10 images in {device / 'photos'}: healthy 5, rust 5." in texts
    assert any(text.startswith("look Left out: 1 of 11 photos. The image") for text in texts)
    assert any(text.startswith("look Passed over: 1 files") for text in texts)
    assert by_name(found)["model"].state == "look"


def test_a_clock_that_is_years_off(device, monkeypatch):
    class Clock(datetime):
        year_now = 1999

        @classmethod
        def now(cls, tz=None):
            return datetime(cls.year_now, 1, 1, tzinfo=UTC)

    monkeypatch.setattr(check, "datetime", Clock)
    assert "set the clock" in by_name(lines(device))["clock"].text
    Clock.year_now = 2099
    assert by_name(lines(device))["clock"].state == check.WRONG


def test_what_is_wrong_and_the_exit_status(device):
    (device / "file").write_text("")
    (device / "keys" / "devices" / "garden-pi" / "device.key").write_text("no key")
    port = free_port()
    command = ["check", "--data", str(device / "nowhere"), str(device / "plants.toml")]
    command += ["--keys", str(device / "keys" / "devices" / "garden-pi"), "--state-dir", str(device / "file" / "state")]
    done = CliRunner().invoke(app, [*command, "--server", f"127.0.0.1:{port}"])
    assert done.exit_code == 1
    said = {row.split()[0]: row for row in done.output.splitlines()}
    for name in ("data", "keys", "disk", "server"):
        assert said[name].split()[1] == "WRONG", said[name]
    assert f"nothing listens on port {port}" in said["server"]
    assert done.output.splitlines()[-1].endswith("checks failed.")


def test_what_an_owner_demands_is_compared_with_the_settings(device):
    noise = {"least-noise": 1.0, "most-epsilon": 12.0}
    assert "no [privacy]" in by_name(lines(device, owner=noise))["privacy"].text
    assert by_name(lines(device, owner=noise, settings=None))["privacy"].state == "look"
    plain = (device / "plants.toml").read_text()
    (device / "plants.toml").write_text(plain + "\n[privacy]\nclip_norm = 1.0\n")
    assert by_name(lines(device, owner=noise))["privacy"].text == "ε = 0 of 12 spent, over all runs (δ = 1e-05)."
    assert not (device / "state").exists()
    Budget(device / "state").spend(1.0)
    found = by_name(lines(device, owner=noise))["privacy"]
    assert found.wrong
    assert "9.997 is spent, over all runs, and one more" in found.text


def test_a_table_is_read_as_a_round_would(device):
    rows = [f"{60 * n},{100 + n % 7},{n % 3 or 'NA'}" for n in range(50)]
    (device / "tank.csv").write_text("\n".join(["t,level,valve", *rows, "3000,1"]))
    (device / "tanks.toml").write_text(
        '[task]\nkind = "forecast"\n[data]\ndataset = "own"\n[table]\ninputs = ["level", "valve"]\n'
        'targets = ["level"]\ntime = ["t"]\nhistory = 2\nhorizon = 1\n'
    )
    found = lines(device, data=device / "tank.csv", settings=device / "tanks.toml")
    assert not any(line.wrong for line in found)
    said = [line.text for line in found]
    assert said[0].startswith("13 samples to train on, 2 to test on. Read in ")
    assert "32 of 48 windows have gaps and are left out." in said
    assert any(text.startswith("Mean and deviation of what is trained on: level 10") for text in said)
    assert by_name(found)["model"].text.startswith("mlp, ")
    (device / "tanks.toml").write_text((device / "tanks.toml").read_text().replace('"valve"', '"rain"'))
    found = lines(device, data=device / "tank.csv", settings=device / "tanks.toml")
    assert "has no column 'rain'; its header has t, level, valve" in by_name(found)["data"].text


@pytest.mark.parametrize("given", ["readings", "readings/tank.csv"])
def test_a_table_without_settings_is_no_folder_that_is_missing(device, given):
    (device / "readings").mkdir()
    (device / "readings" / "tank.csv").write_text("time,level\n2026-01-01,3\n")
    said = by_name(lines(device, data=device / given, settings=None))["data"]
    assert (said.state, said.text) == (
        check.WARNING,
        f"{device / given} holds a table; what it must fit is in the server's settings (bouquet check FILE.toml).",
    )


@pytest.mark.parametrize(
    ("name", "why"), [("gone.csv", "are not there"), ("notes.txt", "is no folder of photos, no .npz")]
)
def test_what_is_not_there_or_is_no_data_is_wrong(device, name, why):
    (device / "notes.txt").write_text("water on Monday")
    said = by_name(lines(device, data=device / name, settings=None))["data"]
    assert said.wrong
    assert why in said.text
