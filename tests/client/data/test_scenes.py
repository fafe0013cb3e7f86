"""Bursts of photos, and their times: what is trained on and what is tested are apart."""

import os

import numpy as np
import pytest
from PIL import Image

from bouquet.common.errors import BouquetError
from bouquet.common.settings.sections import TableSettings
from tests.helpers.photos import CLASSES, count, load, save, scene


def burst(folder, name, scenes, frames, when, by_exif=True):
    """Frames of one scene a second apart, scenes ten minutes apart, each frame with noise of its own."""
    (folder / name).mkdir(parents=True)
    rng = np.random.default_rng(7)
    for number in range(scenes):
        for frame in range(frames):
            file = folder / name / f"{number:02}-{frame}.jpg"
            noise = rng.normal(0, 2, (64, 64))
            seconds = when + 600 * number + frame
            data = Image.Exif()
            if by_exif:
                data.get_ifd(0x8769)[0x9003] = (
                    f"2026:10:14 {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
                )
            Image.fromarray((scene(100 * when + number) + noise).clip(0, 255).astype(np.uint8)).save(file, exif=data)
            os.utime(file, (1.7e9 + seconds, 1.7e9 + seconds))


def sides(own):
    """How many tested photos have one of their own scene, by their likeness, among what is trained on."""
    train, test = (part.reshape(len(part), -1).astype(float) for part in (own.train_x, own.test_x))
    return sum((np.abs(train - one).mean(axis=1) < 6).any() for one in test)


@pytest.mark.parametrize("by_exif", [True, False])
def test_a_burst_is_trained_on_or_tested(by_exif, tmp_path):
    for when, name in enumerate(CLASSES):
        burst(tmp_path, name, scenes=10, frames=5, when=when, by_exif=by_exif)
    own = load(tmp_path)
    assert (len(own.test_y), sides(own)) == (30, 0)
    whose = "EXIF" if by_exif else "the files' times"
    assert own.notes == (f"Scenes: 150 photos are 30 scenes by {whose}; each is trained on as a whole, or tested.",)


@pytest.mark.parametrize("by_exif", [True, False])
def test_by_time_the_newest_are_tested_and_no_burst_is_on_both_sides(by_exif, tmp_path):
    for when, name in enumerate(CLASSES):
        burst(tmp_path, name, scenes=10, frames=5, when=when, by_exif=by_exif)
    own = load(tmp_path, by_time=True)
    assert (count(own), len(own.test_y), sides(own), own.in_order) == (150, 30, 0, True)
    day = "2026-10-14 " if by_exif else "2023-11-1"
    assert [text[: len(day)] for text in own.span.split("Trained on: ")[1].split(" to ")] == [day] * 3
    across = load(tmp_path, by_time=True, test_fraction=0.18)  # the cut goes through a burst
    assert (len(across.train_y), len(across.test_y), sides(across)) == (120, 30, 0)
    most = load(tmp_path, by_time=True, test_fraction=0.01)  # less than a burst
    assert (len(most.train_y), len(most.test_y)) == (135, 15)
    first = "2026-10-14T01:00" if by_exif else "2023-11-14T23:13"  # the seventh scene
    about = TableSettings(cut=first, until="2026-10-14T01:20" if by_exif else "2023-11-14T23:33")
    cut = load(tmp_path, by_time=True, about=about)
    assert (len(cut.train_y), len(cut.test_y)) == (90, 30)
    (tmp_path / "train").mkdir()
    for name in CLASSES:
        (tmp_path / name).rename(tmp_path / "train" / name)
    assert len(load(tmp_path, by_time=True).test_y) == 30
    (tmp_path / "test").mkdir()
    with pytest.raises(BouquetError, match=r"holds train and test, and data\.split = 'time' tests the newest"):
        load(tmp_path, by_time=True)


def test_photos_without_times_are_divided_at_random_and_the_server_is_told(tmp_path):
    for file in save(tmp_path, count=20):
        os.utime(file, (1.7e9, 1.7e9))
    own = load(tmp_path, by_time=True)
    assert (len(own.train_y), len(own.test_y), own.in_order) == (16, 4, False)
    (said,) = own.warnings
    assert "the photos have no times" in said
    for number, file in enumerate(sorted((tmp_path / "healthy").iterdir())):
        os.utime(file, (1.7e9 + 60 * number, 1.7e9 + 60 * number))
    assert load(tmp_path, by_time=True).warnings == ()


def test_one_long_burst_is_cut_by_time(tmp_path):
    burst(tmp_path, "rust", scenes=1, frames=60, when=0)
    own = load(tmp_path)
    assert len(own.test_y) == 12
    assert any("are 10 scenes by EXIF" in note for note in own.notes)
