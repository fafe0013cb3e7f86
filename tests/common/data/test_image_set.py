"""A folder of images as a data set: found by name or as the data folder, and what it refuses."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bouquet.client.data.loading import part_of
from bouquet.common.data import datasets
from bouquet.common.data.datasets import load_dataset
from bouquet.common.errors import BouquetError
from bouquet.common.model.build import model_shape
from bouquet.common.model.card import ModelCard
from bouquet.common.settings import Settings
from bouquet.common.settings.settings import SettingsError

CLASSES = ("cat", "dog")
SHAPE = (3, 4, 6)


@pytest.fixture(autouse=True)
def nothing_is_in_memory() -> None:
    datasets._load.cache_clear()


def pets(folder: Path, train: int = 12, test: int = 6) -> Path:
    """Cats are dark and dogs are light; each image has a brightness of its own."""
    for part, count in (("train", train), ("test", test)):
        for label, name in enumerate(CLASSES):
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (6, 4), (100 * label + number,) * 3).save(folder / part / name / f"{number:02}.png")
    return folder


def pet_settings(data_dir: Path, **data: object) -> Settings:
    about = {
        "dataset": "images/pets",
        "data_dir": str(data_dir),
        "classes": CLASSES,
        "input_shape": SHAPE,
        "clients": 2,
    }
    return Settings.model_validate({"data": about | data})


@pytest.mark.parametrize(("name", "below"), [("images", ""), ("images/pets", "pets")])
def test_a_folder_is_the_data_folder_or_one_in_it(tmp_path: Path, name: str, below: str) -> None:
    pets(tmp_path / "data" / "pets")
    where = tmp_path / "data" / "pets" if not below else tmp_path / "data"
    data = load_dataset(name, where, classes=CLASSES, input_shape=SHAPE)
    assert (data.x.shape, data.x.dtype) == ((24, *SHAPE), np.uint8)
    assert data.y.tolist() == [0] * 12 + [1] * 12
    assert data.x[:, 0, 0, 0].tolist() == [*range(12), *range(100, 112)]
    assert data.test_y is not None
    assert data.test_y.tolist() == [0] * 6 + [1] * 6
    assert data.standardised(data.scaled(np.array([0])))[0, 0, 0, 0] == -1


def test_clients_share_the_images_and_test_on_fresh_ones(tmp_path: Path) -> None:
    pets(tmp_path / "pets")
    settings = pet_settings(tmp_path, test_samples=8)
    parts = [part_of(settings, client) for client in range(2)]
    trained = [set(np.round((part.train_x[:, 0, 0, 0] + 1) * 127.5).astype(int)) for part in parts]
    assert not trained[0] & trained[1]
    assert all(4 <= len(part.test_y) <= 8 for part in parts)
    assert all(part.test_x[:, 0, 0, 0].max() < 2 * 106 / 255 - 1 for part in parts)  # of the test part: below 6 and 106
    assert parts[0].num_classes == 2


def test_the_model_is_built_from_the_settings_alone(tmp_path: Path) -> None:
    settings = pet_settings(tmp_path / "not there")
    assert model_shape(settings) == (SHAPE, 2)
    card = ModelCard.of(settings)
    assert (card.classes, card.mean, card.std) == (CLASSES, (0.5,), (0.5,))


def test_settings_without_classes_or_a_shape_are_refused(tmp_path: Path) -> None:
    for lacking in ({"classes": ()}, {"input_shape": ()}):
        with pytest.raises((SettingsError, ValueError), match=r"'images/pets' needs data\.classes"):
            pet_settings(tmp_path, **lacking)


def spoil_image(folder: Path) -> None:
    (folder / "train" / "dog" / "03.png").write_bytes(b"no image")


def empty_class(folder: Path) -> None:
    for file in (folder / "train" / "dog").iterdir():
        file.unlink()


def class_of_the_test_alone(folder: Path) -> None:
    (folder / "test" / "cow").mkdir()


def no_train(folder: Path) -> None:
    (folder / "train").rename(folder / "training")


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (spoil_image, "train/dog/03.png cannot be read"),
        (empty_class, "train holds no images of dog"),
        (class_of_the_test_alone, "test/cow is not one of the classes cat, dog"),
        (no_train, "pets/train, which is not there"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, spoil: Callable[[Path], None], named: str) -> None:
    folder = pets(tmp_path / "pets")
    spoil(folder)
    with pytest.raises(BouquetError) as caught:
        load_dataset("images/pets", tmp_path, classes=CLASSES, input_shape=SHAPE)
    assert named in str(caught.value)
