"""A device's data are prepared once, and again whenever anything that they depend on has changed."""

import os
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from bouquet.client.context import ClientContext
from bouquet.client.data import cache as module
from bouquet.client.data.cache import prepared
from bouquet.client.data.loading import ClientData
from bouquet.common.data.images import files_below
from bouquet.common.data.scaling import Scaling
from bouquet.common.settings import parse_settings
from tests.helpers.scripted_server import Device, samples


def made(seed=0, rows=5):
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 3, 4, 4)).astype(np.float32)
    y = np.arange(rows, dtype=np.int64) % 2
    scaling = Scaling(mean=(0.5,), std=(2.0,), target_mean=(1.0,), target_std=(3.0,), limits=((0.0, 1.0),))
    said = {"notes": ("a", "b"), "left_out": 1, "naive": x[None, :2], "naive_names": ("c",), "in_order": True}
    return ClientData(x, y, x[:2] + 1, y[:2], 7, 3, scaling=scaling, span="d", **said)


class Maker:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return made(self.calls)


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "photos" / "a" / "1.jpg"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"a photo")
    return file


def load(tmp_path, make, **settings):
    return prepared(tmp_path / "state", files_below(tmp_path / "photos"), settings, make)


def test_what_would_fill_the_disk_is_made_anew_each_time(tmp_path, source, monkeypatch, capsys):
    """The shape that photos are scaled to is the server's."""
    monkeypatch.setattr("bouquet.client.state.room.shutil.disk_usage", lambda _: SimpleNamespace(free=3 << 20))
    assert load(tmp_path, lambda: made(rows=20_000)).train_x.nbytes > 3 << 20
    assert not list((tmp_path / "state").rglob("*.bin"))
    assert "The prepared data cannot be kept" in capsys.readouterr().out


def test_what_is_read_back_is_what_was_made(tmp_path, source):
    make = Maker()
    first, second = (load(tmp_path, make, seed=1) for _ in range(2))
    assert make.calls == 1
    for name in ("train_x", "train_y", "test_x", "test_y", "naive"):
        before, after = getattr(first, name), getattr(second, name)
        assert (before.dtype, before.shape, before.tobytes()) == (after.dtype, after.shape, after.tobytes())
        assert after.ctypes.data % 64 == 0
    told = [
        {f.name: getattr(one, f.name) for f in fields(one) if f.name not in module.ARRAYS} for one in (first, second)
    ]
    assert told[0] == told[1]
    assert (second.num_classes, second.group, second.scaling.std) == (7, 3, (2.0,))


def test_a_message_that_changes_its_samples_changes_no_other_s(tmp_path, source):
    make = Maker()
    load(tmp_path, make)
    load(tmp_path, make).train_x[:] = 0
    assert load(tmp_path, make).train_x.all()


def test_a_new_file_a_changed_one_and_another_setting_are_prepared_anew(tmp_path, source):
    make = Maker()
    load(tmp_path, make, seed=1)
    (source.parent / "2.jpg").write_bytes(b"another")
    load(tmp_path, make, seed=1)
    os.utime(source, ns=(1, 1))
    load(tmp_path, make, seed=1)
    source.rename(source.with_name("3.jpg"))
    load(tmp_path, make, seed=1)
    load(tmp_path, make, seed=2)
    assert make.calls == 5
    assert len(list((tmp_path / "state" / "prepared").iterdir())) == 2, "older ones are removed"


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "header"])
def test_a_damaged_file_is_made_again(tmp_path, source, damage, capsys):
    make = Maker()
    load(tmp_path, make)
    (file,) = (tmp_path / "state" / "prepared").iterdir()
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[-9] ^= 1
    file.write_bytes({"cut": whole[:-8], "flip": bytes(flipped), "empty": b"", "header": whole[:8] + b"x" * 99}[damage])
    again = load(tmp_path, make)
    assert make.calls == 2
    assert again.train_x.tobytes() == made(2).train_x.tobytes()
    assert ("damaged" in capsys.readouterr().out) == (damage != "empty")
    load(tmp_path, make)
    assert make.calls == 2


def test_new_code_prepares_anew(tmp_path, source, monkeypatch):
    make = Maker()
    load(tmp_path, make)
    monkeypatch.setattr(module, "CODE", module.CODE[1:])
    load(tmp_path, make)
    assert make.calls == 2


def node(state_dir, values, **config):
    context = SimpleNamespace(node_config={"state-dir": str(state_dir), **config})
    return ClientContext(parse_settings({}, values), context)


def test_a_device_s_photos_are_decoded_once_and_it_says_how_far_it_is(tmp_path, monkeypatch, capsys):
    for number in range(120):
        folder = tmp_path / "photos" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (number, 2 * number, 0)).save(folder / f"{number:03}.png")
    values = {"data.dataset": "own", "data.classes": '["cat","dog"]', "data.input_shape": "[3,4,4]"}
    first = node(tmp_path / "state", values, data=str(tmp_path / "photos")).data
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"Reading the images in {tmp_path / 'photos'}: 12 of 120."
    assert len(said) == 10
    monkeypatch.setattr("bouquet.client.data.own.load_folder", None)
    again = node(tmp_path / "state", values, data=str(tmp_path / "photos")).data
    assert again.train_x.tobytes() == first.train_x.tobytes()
    assert capsys.readouterr().out == ""


def test_a_turned_part_of_a_data_set_is_turned_once(tmp_path, monkeypatch):
    values = {"data.dataset": "digits", "data.partition": "rotated", "data.clients": "6", "data.groups": "3"}
    first = node(tmp_path / "state", values, **{"partition-id": 1, "num-partitions": 6}).data
    monkeypatch.setattr("bouquet.client.data.loading.load_partition", None)
    again = node(tmp_path / "state", values, **{"partition-id": 1, "num-partitions": 6}).data
    assert again.train_x.tobytes() == first.train_x.tobytes()
    assert again.group == first.group == 1


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_message_looks_at_the_data_once(tmp_path, monkeypatch, kind):
    """A table that grows between two looks would be tested by another scaling than it was trained with."""
    device, looks = Device(tmp_path, own=samples()), []
    device.ask()
    monkeypatch.setattr(module, "prepared", lambda *about: looks.append(about) or prepared(*about))
    assert device.ask(kind=kind, round_=2).has_content()
    assert len(looks) == 1
