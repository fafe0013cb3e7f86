"""What a device trains on: its part, turned and labelled as its group is, or its own folder; and how that fails."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bouquet.client.data.loading import load_partition, rotated
from bouquet.client.data.own import load_folder
from bouquet.common.errors import BouquetError

CLASSES = ("cat", "dog", "owl")
GREY = (1, 2, 2)
RNG = np.random.default_rng(0)


def digits_part(partition: str, partition_id: int = 0, num_partitions: int = 8, seed: int = 0, **options):
    return load_partition("digits", partition, partition_id, num_partitions, seed, **options)


def test_parts_are_standardised_split_and_repeatable() -> None:
    first, second = (digits_part("iid", 3) for _ in range(2))
    assert (first.train_x.dtype, first.train_y.dtype) == (np.float32, np.int64)
    assert first.train_x.shape == (180, 1, 8, 8)  # 225 samples, a fifth of them to test on
    assert first.test_x.shape == (45, 1, 8, 8)
    assert (first.input_shape, first.num_classes, first.group) == ((1, 8, 8), 10, None)
    assert np.array_equal(first.train_x, second.train_x)
    assert not np.array_equal(first.train_y, digits_part("iid", 3, seed=1).train_y)


def test_turning_is_counter_clockwise_in_steps_of_any_angle() -> None:
    image = np.array([[[[1, 2], [3, 4]]]], dtype=np.float32)
    assert rotated(image, 90)[0, 0].tolist() == [[2, 4], [1, 3]]
    assert rotated(image, 180)[0, 0].tolist() == [[4, 3], [2, 1]]
    wide = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    assert rotated(wide, 180)[0, 0].tolist() == [[5, 4, 3], [2, 1, 0]]
    assert rotated(wide, 90).shape == wide.shape
    bar = np.zeros((1, 1, 9, 9), dtype=np.float32)
    bar[0, 0, 4, 4:] = 1  # from the middle to the right
    eighth = rotated(bar, 45)[0, 0]
    assert eighth.dtype == np.float32
    assert eighth[:5, 4:].sum() > 0.8 * eighth.sum()  # it points up and right
    assert eighth[2, 6] > 0.9
    nearly = rotated(bar, 90 - 1e-9)
    assert nearly == pytest.approx(rotated(bar, 90), abs=1e-6)


def test_labels_are_permuted_by_group() -> None:
    plain, permuted = digits_part("iid", 5), digits_part("label-permuted", 5, groups=4)
    mapping = dict(zip(plain.train_y.tolist(), permuted.train_y.tolist(), strict=True))
    assert sorted(mapping) == sorted(mapping.values()) == list(range(10))
    assert permuted.train_y.tolist() == [mapping[label] for label in plain.train_y.tolist()]
    assert permuted.test_y.tolist() == [mapping[label] for label in plain.test_y.tolist()]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"partition_id": 8}, "partition-id is 8; with 8 parts 0 to 7 exist"),
        ({"partition_id": -1}, "partition-id is -1"),
        ({"partition": "natural"}, "this data set has no owners"),
        (
            {"num_partitions": 1000, "minimum": 1, "partition_id": 999},
            "Part 999 of data set 'digits': 1 samples cannot",
        ),
        ({"num_partitions": 898, "minimum": 1, "partition_id": 5}, "too few samples, 1 to train on and 1 to test on"),
    ],
)
def test_parts_that_cannot_be_are_refused(arguments: dict, said: str) -> None:
    with pytest.raises(BouquetError, match=said):
        digits_part(**{"partition": "iid", **arguments})


def test_sensor_data_are_not_turned(tmp_path: Path) -> None:
    windows = {"x": RNG.standard_normal((20, 9, 128)).astype(np.float32), "y": np.arange(20) % 6}
    people = {"subject": np.arange(20) % 4, "segment": np.arange(20)}
    keys = {f"{key}_{split}": value for split in ("train", "test") for key, value in {**windows, **people}.items()}
    np.savez(tmp_path / "uci_har.npz", **keys)
    with pytest.raises(BouquetError, match="'rotated' turns images, and data set 'uci-har' has none"):
        load_partition("uci-har", "rotated", 0, 2, 0, data_dir=tmp_path)
    part = load_partition("uci-har", "natural", 1, 4, 0, data_dir=tmp_path)
    assert part.input_shape == (9, 128)
    assert len(part.train_y) + len(part.test_y) == 10


def save_npz(folder: Path, name: str = "own.npz", **arrays) -> Path:
    base = {"x": RNG.integers(0, 256, (10, *GREY), dtype=np.uint8), "y": np.arange(10) % 3}
    file = folder / name
    np.savez(file, **{key: value for key, value in {**base, **arrays}.items() if value is not None})
    return file


def load(path: Path, input_shape=GREY, classes=CLASSES, **options):
    return load_folder(path, input_shape=input_shape, classes=classes, **options)


def test_an_npz_of_bytes_is_split(tmp_path: Path) -> None:
    x = np.repeat(np.array([0, 51, 255], np.uint8), 10)[:, None, None, None] * np.ones(GREY, np.uint8)
    file = save_npz(tmp_path, x=x, y=np.repeat([0, 1, 2], 10))
    own = load(file)
    assert (len(own.train_y), len(own.test_y), own.num_classes) == (24, 6, 3)
    for label, value in enumerate((0, 51, 255)):
        assert (own.train_x[own.train_y == label] == value).all()
        assert (own.test_y == label).sum() == 2
    assert np.array_equal(load(file).test_x, own.test_x)


def test_overlapping_windows_are_split_by_segment(tmp_path: Path) -> None:
    x = np.repeat(np.arange(5.0), 4)[:, None, None] * np.ones((9, 16))
    own = load(save_npz(tmp_path, x=x, y=np.zeros(20, int), segment=np.repeat(np.arange(5), 4)), input_shape=(9, 16))
    assert len(own.test_x) == 4
    assert not set(own.train_x[:, 0, 0]) & set(own.test_x[:, 0, 0])


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": None}, "lacks 'x'; it holds y"),
        ({"y": None}, "lacks 'y'"),
        ({"labels": np.arange(3)}, "holds 'labels'; allowed are x, y, segment, x_test, y_test"),
        ({"x_test": np.zeros((1, *GREY))}, "one of 'x_test' and 'y_test'; give both or neither"),
        ({"x": np.zeros((10, 3, 2, 2))}, r"'x' has shape \(10, 3, 2, 2\), expected \(samples, \*\(1, 2, 2\)\)"),
        ({"x": np.zeros(())}, "'x' has shape"),
        ({"x": np.zeros((10, *GREY), np.int16)}, "'x' holds int16; allowed are uint8"),
        ({"x": np.full((10, *GREY), np.nan)}, "'x' holds values that are not finite"),
        ({"x": np.full((10, *GREY), 1e300)}, "'x' holds values that are not finite in float32"),
        ({"y": np.arange(10) % 4}, r"label 3; the 3 classes \(cat, dog, owl\) allow 0 to 2"),
        ({"y": -np.ones(10, int)}, "10 of 10 samples cannot be read, .*holds label -1"),
        ({"y": np.zeros(10)}, r"'y' is float64 of shape \(10,\); expected 10 whole numbers"),
        ({"y": np.zeros(9, int)}, r"'y' is int64 of shape \(9,\); expected 10"),
        ({"segment": np.zeros(3, int)}, "'segment' is int64 of shape"),
        ({"segment": np.zeros(10, int)}, "own.npz: 10 samples cannot be split"),
        ({"x": np.zeros((2, *GREY)), "y": np.zeros(2, int)}, "too few samples, 1 to train on and 1 to test on"),
        ({"x": np.zeros((0, *GREY)), "y": np.zeros(0, int)}, "0 samples cannot be split"),
        ({"x_test": np.zeros((0, *GREY)), "y_test": np.zeros(0, int)}, "10 to train on and 0 to test on"),
        ({"x": np.array([{}] * 10)}, r"The array 'x' of .*own\.npz cannot be read \(Object arrays"),
    ],
)
def test_an_npz_that_is_not_right_is_refused(tmp_path: Path, arrays: dict, said: str) -> None:
    with pytest.raises(BouquetError, match=said) as caught:
        load(save_npz(tmp_path, **arrays))
    assert "own.npz" in str(caught.value)


def save_images(folder: Path, counts: dict[str, int], colour=(255, 0, 0), suffix: str = ".png") -> None:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (6, 4), colour).save(folder / name / f"{i}{suffix}")


def test_a_folder_of_images_is_labelled_by_the_federations_classes(tmp_path: Path) -> None:
    save_images(tmp_path, {"dog": 5, "owl": 10})  # this device has no cats
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    (tmp_path / ".thumbnails").mkdir()
    own = load(tmp_path, input_shape=(3, 8, 8))
    assert own.train_x.shape == (12, 3, 8, 8)
    assert len(own.test_y) == 3
    assert np.bincount(np.concatenate([own.train_y, own.test_y]), minlength=3).tolist() == [0, 5, 10]
    assert own.train_x[0, :, 0, 0].tolist() == [255, 0, 0]
    assert load(tmp_path, input_shape=(1, 5, 7)).train_x[0, 0, 0, 0] == 76  # red as grey


def test_photos_stand_upright_and_large_ones_keep_their_picture(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    photo = Image.fromarray(np.repeat([[0, 255]], 400, axis=0).repeat(200, axis=1).astype(np.uint8), "L")
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side: turn it clockwise to see it upright
    for i in range(3):
        photo.save(tmp_path / "cat" / f"{i}.jpg", exif=exif)
    own = load(tmp_path)
    assert own.train_x[0, 0] == pytest.approx(np.array([[0, 0], [255, 255]]), abs=40)  # two pixels, smoothed


def test_what_cameras_and_file_servers_leave_is_neither_class_nor_photo(tmp_path: Path) -> None:
    save_images(tmp_path, {"cat": 5, "@eaDir": 1, ".Trash": 1, "lost+found": 1})
    save_images(tmp_path / "cat", {"@eaDir": 2, ".cache": 1})
    (tmp_path / "dog").mkdir()
    for name in ("one.svg", "two.SVG", "three.heic"):
        (tmp_path / "cat" / name).write_bytes(b"")
    (tmp_path / "loose.jpg").write_bytes(b"")
    own = load(tmp_path, input_shape=(3, 4, 4))
    assert own.samples_by_class() == [5, 0, 0]
    assert own.notes[0].startswith(
        "Passed over: 3 files that are not images Bouquet reads (.heic 1, .svg 2); it reads .jp"
    )
    assert own.notes[1:3] == (
        "Empty: the folders dog hold no images.",
        f"Outside: 1 images lie in {tmp_path} itself, in no class.",
    )


def test_single_photos_that_cannot_be_read_are_left_out_where_they_are_few(tmp_path: Path) -> None:
    save_images(tmp_path, {"cat": 5, "dog": 5})
    (tmp_path / "cat" / "9.png").write_bytes(b"no image")
    with pytest.raises(BouquetError, match=r"9\.png cannot be read .*\(--strict\)"):
        load(tmp_path, input_shape=(3, 4, 4), strict=True)
    own = load(tmp_path, input_shape=(3, 4, 4))  # one is always few
    assert (own.left_out, own.samples_by_class()) == (1, [5, 5, 0])
    assert "Left out: 1 of 11 photos. The image" in own.notes[0]
    for file in tmp_path.rglob("*.png"):
        file.write_bytes(b"no image")
    with pytest.raises(BouquetError, match=r"11 of 11 photos cannot be read, and at most 5% are left out"):
        load(tmp_path, input_shape=(3, 4, 4))


def test_folders_that_hold_no_data_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    with pytest.raises(BouquetError, match=r"holds no images; put them .* into a subfolder for each class"):
        load(tmp_path)
    with pytest.raises(BouquetError, match=r"cannot have shape \(9, 128\)"):
        load(tmp_path, input_shape=(9, 128))
    with pytest.raises(BouquetError, match=r"is neither an \.npz file nor a folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(BouquetError, match=r"nowhere\.npz does not exist"):
        load(tmp_path / "nowhere.npz")
    with pytest.raises(BouquetError, match="all different"):
        load(tmp_path, classes=("cat", "cat"))


def test_data_cost_a_device_no_torch() -> None:
    program = (
        "import sys; from bouquet.client.data.loading import load_partition; "
        "load_partition('digits', 'rotated', 1, 4, 0); "
        "assert not {'torch', 'torchvision', 'sklearn', 'scipy', 'PIL'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("kind", ["images", "windows", "segments", "test part"])
def test_what_is_assumed_of_windows_without_a_test_part_is_said(kind: str, tmp_path: Path) -> None:
    x = np.zeros((20, 1, 2, 3) if kind == "images" else (20, 2, 3), dtype=np.float32)
    arrays: dict[str, Any] = {"x": x, "y": np.arange(20) % 2}
    arrays |= {"segment": np.arange(20) // 2} if kind == "segments" else {}
    arrays |= {"x_test": x, "y_test": arrays["y"]} if kind == "test part" else {}
    np.savez(tmp_path / "data.npz", **arrays)
    notes = load_folder(tmp_path, input_shape=x.shape[1:], classes=("a", "b")).notes
    assert any("a random part is tested" in note for note in notes) is (kind == "windows")
