"""Data sets: tiny files in the published formats, what they become, and what a missing or wrong file says."""

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from bouquet.common.data import readers
from bouquet.common.data.catalog import DATASETS, dataset_info
from bouquet.common.data.datasets import hold_out, load_dataset, standardise
from bouquet.common.data.readers import DatasetFileError, map_idx, read_arrays
from bouquet.common.errors import BouquetError
from bouquet.common.model.card import ModelCard
from bouquet.common.settings import load_settings
from bouquet.common.torchvision_compat import import_torchvision

RNG = np.random.default_rng(0)


def write_idx(path: Path, array: np.ndarray) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind, dtype = (0x08, ">u1") if array.dtype == np.uint8 else (0x0C, ">i4")
    header = bytes([0, 0, kind, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(header + array.astype(dtype).tobytes())
    return array


def write_mnist(folder: Path, train: str = "train", test: str = "t10k") -> tuple[np.ndarray, np.ndarray]:
    images = write_idx(folder / "raw" / f"{train}-images-idx3-ubyte", RNG.integers(0, 256, (6, 28, 28), dtype=np.uint8))
    labels = write_idx(folder / "raw" / f"{train}-labels-idx1-ubyte", np.array([3, 1, 4, 1, 5, 9], dtype=np.uint8))
    write_idx(folder / "raw" / f"{test}-images-idx3-ubyte", RNG.integers(0, 256, (2, 28, 28), dtype=np.uint8))
    write_idx(folder / "raw" / f"{test}-labels-idx1-ubyte", np.array([2, 6], dtype=np.uint8))
    return images, labels


def test_digits_need_no_files_and_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    published = load_digits()
    digits = load_dataset("digits")
    assert np.array_equal(digits.x[:, 0], published.images)
    assert np.array_equal(digits.y, published.target)
    assert (digits.owners, digits.segments, digits.test_x) == (None, None, None)
    values = digits.standardised(digits.scaled(np.arange(1797)))
    assert values.dtype == np.float32
    assert (values.min(), values.max()) == (0, 1)


def test_digits_are_the_same_when_scikit_learn_keeps_its_file_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    from bouquet.common.data import readers

    monkeypatch.setattr(readers, "find_spec", lambda name: None)
    again = readers.read_published("digits", Path(), "")
    assert np.array_equal(again["x"], load_dataset("digits").x)
    assert np.array_equal(again["y"], load_dataset("digits").y)


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_mnist_like_files_are_mapped_and_become_float_on_demand(tmp_path: Path, name: str, folder: str) -> None:
    images, labels = write_mnist(tmp_path / folder)
    data = load_dataset(name, tmp_path)
    assert isinstance(data.x, np.memmap)
    assert np.array_equal(data.x[:, 0], images)
    assert data.y.tolist() == labels.tolist()
    assert data.scaled(np.array([4, 0]))[:, 0] == pytest.approx(images[[4, 0]] / 255)
    assert data.test_y is not None
    assert data.test_y.tolist() == [2, 6]
    assert data.test_inputs().shape == (2, 1, 28, 28)
    assert np.array_equal(data.test_inputs(np.array([1])), data.test_inputs()[1:])
    assert load_dataset(name, str(tmp_path)) is data


def test_images_that_are_not_to_be_standardised_stay_from_0_to_1(tmp_path: Path) -> None:
    images, _ = write_mnist(tmp_path / "MNIST")
    every = np.arange(6)
    plain, usual = load_dataset("mnist", tmp_path, standardise=False), load_dataset("mnist", tmp_path)
    np.testing.assert_allclose(plain.standardised(plain.scaled(every))[:, 0], images / 255, rtol=1e-6)
    np.testing.assert_allclose(plain.test_inputs(), usual.test_inputs() * 0.3081 + 0.1307, atol=1e-6)
    card = ModelCard.of(load_settings(None, ["data.dataset=mnist", "data.standardise=false"]))
    assert (card.mean, card.std) == ((0.0,), (1.0,))


def test_emnist_images_stand_upright(tmp_path: Path) -> None:
    images, _ = write_mnist(tmp_path / "EMNIST", "emnist-balanced-train", "emnist-balanced-test")
    assert np.array_equal(load_dataset("emnist", tmp_path).x[:, 0], images.transpose(0, 2, 1))


def test_writers_come_from_the_file_beside_mnist(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST")
    writers, populations = np.array([7, 7, 8, 8, 9, 9], np.uint16), np.array([0, 0, 4, 4, 0, 0], np.uint8)
    np.savez(tmp_path / "mnist_writers.npz", writer_train=writers, population_train=populations)
    data = load_dataset("mnist-writers", tmp_path)
    assert data.owners is not None
    assert data.populations is not None
    assert (data.owners.tolist(), data.populations.tolist()) == (writers.tolist(), populations.tolist())


def test_writers_come_from_qmnist(tmp_path: Path) -> None:
    raw = tmp_path / "QMNIST" / "raw"
    labels = np.zeros((4, 8), dtype=np.int32)
    labels[:, :3] = [[5, 0, 100], [6, 4, 2000], [7, 4, 2000], [1, 0, 100]]  # class, population, writer
    for part in ("train", "test"):
        write_idx(raw / f"qmnist-{part}-images-idx3-ubyte", RNG.integers(0, 256, (4, 28, 28), dtype=np.uint8))
        write_idx(raw / f"qmnist-{part}-labels-idx2-int", labels)
    data = load_dataset("mnist-writers", tmp_path)
    assert data.owners is not None
    assert data.populations is not None
    assert data.y.tolist() == [5, 6, 7, 1]
    assert data.owners.tolist() == [100, 2000, 2000, 100]
    assert data.populations.tolist() == [0, 4, 4, 0]


def har_windows() -> dict[str, np.ndarray]:
    """Subject 1 walks for three overlapping windows, then sits for two; subject 2 walks for two."""
    recordings = [RNG.standard_normal((9, 64 * (n + 1))).astype(np.float32) for n in (3, 2, 2)]
    windows = [r[:, 64 * i : 64 * i + 128] for r in recordings for i in range(r.shape[1] // 64 - 1)]
    return {
        "x": np.stack(windows),
        "y": np.array([0, 0, 0, 3, 3, 0, 0], np.uint8),
        "subject": np.array([1, 1, 1, 1, 1, 2, 2], np.uint8),
        "segment": np.array([0, 0, 0, 1, 1, 2, 2], np.uint16),
    }


def test_uci_har_reads_alike_from_the_archive_and_from_the_published_folder(tmp_path: Path) -> None:
    parts = {"train": har_windows(), "test": har_windows()}
    (tmp_path / "a").mkdir()
    np.savez(
        tmp_path / "a" / "uci_har.npz", **{f"{key}_{s}": v for s, part in parts.items() for key, v in part.items()}
    )
    for split, part in parts.items():
        folder = tmp_path / "b" / "UCI HAR Dataset" / split
        (folder / "Inertial Signals").mkdir(parents=True)
        names = [f"{signal}_{axis}" for signal in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
        for channel, name in enumerate(names):
            np.savetxt(folder / "Inertial Signals" / f"{name}_{split}.txt", part["x"][:, channel], fmt="%.9e")
        np.savetxt(folder / f"y_{split}.txt", part["y"] + 1, fmt="%d")
        np.savetxt(folder / f"subject_{split}.txt", part["subject"], fmt="%d")
    archive, published = (load_dataset("uci-har", tmp_path / place) for place in "ab")
    assert np.array_equal(archive.x, published.x)
    for data in (archive, published):
        assert data.owners is not None
        assert data.segments is not None
        assert data.y.tolist() == [0, 0, 0, 3, 3, 0, 0] * 2
        assert data.owners.tolist() == [1, 1, 1, 1, 1, 2, 2] * 2
        assert data.segments.tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 5]


def test_cifar_is_read_by_torchvision_which_checks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    pixels = RNG.integers(0, 256, (4, 3072), dtype=np.uint8)
    for file in ("data_batch_1", "test_batch"):
        (folder / file).write_bytes(pickle.dumps({"data": pixels, "labels": [0, 9, 2, 2]}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    with pytest.raises(BouquetError, match=r"'cifar10': a file in .* is missing or differs from the published one"):
        load_dataset("cifar10", tmp_path)
    cifar = import_torchvision().datasets.CIFAR10
    monkeypatch.setattr(cifar, "train_list", [["data_batch_1", None]])
    monkeypatch.setattr(cifar, "test_list", [["test_batch", None]])
    monkeypatch.setattr(cifar, "meta", {"filename": "batches.meta", "key": "label_names", "md5": None})
    data = load_dataset("cifar10", tmp_path)
    assert np.array_equal(data.x, pixels.reshape(4, 3, 32, 32))
    assert data.y.tolist() == [0, 9, 2, 2]


def test_svhn_is_read_by_torchvision_with_ten_as_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.io import savemat

    (tmp_path / "SVHN").mkdir()
    images = RNG.integers(0, 256, (32, 32, 3, 2), dtype=np.uint8)
    for split in ("train", "test"):
        savemat(tmp_path / "SVHN" / f"{split}_32x32.mat", {"X": images, "y": np.array([[10], [4]])})
    with pytest.raises(BouquetError, match=r"train_32x32.mat differs from the published file"):
        load_dataset("svhn", tmp_path)
    splits = {split: ["", f"{split}_32x32.mat", None] for split in ("train", "test")}
    monkeypatch.setattr(import_torchvision().datasets.SVHN, "split_list", splits)
    data = load_dataset("svhn", tmp_path)
    assert np.array_equal(data.x, images.transpose(3, 2, 0, 1))
    assert data.y.tolist() == [0, 4]


def test_standardising_is_by_channel() -> None:
    x = np.array([[[1.0, 3.0], [5.0, 9.0]]], dtype=np.float32)
    assert standardise(x, (1, 5), (2, 4)).tolist() == [[[0, 1], [0, 1]]]
    assert standardise(x, (1,), (2,)).tolist() == [[[0, 1], [2, 4]]]


def test_a_data_set_without_a_test_part_can_hold_some_out() -> None:
    digits = load_dataset("digits")
    with pytest.raises(BouquetError, match="'digits' has no official test part"):
        digits.test_inputs()
    held = hold_out(digits, 0.1, seed=0)
    assert held.test_y is not None
    assert (len(held.y), len(held.test_y), len(held.test_inputs())) == (1617, 180, 180)
    assert np.bincount(held.test_y, minlength=10).min() > 0  # drawn from all of them
    assert hold_out(digits, 0, seed=0) is digits
    assert hold_out(held, 0.5, seed=0) is held


@pytest.mark.parametrize("name", [name for name, info in DATASETS.items() if info.folder])
def test_missing_data_say_what_was_expected_where_and_where_to_get_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(BouquetError, match=f"{tmp_path}.*, which is not there. To get it: ") as caught:
        load_dataset(name, tmp_path)
    assert dataset_info(name).origin in str(caught.value)
    with pytest.raises(BouquetError, match="needs a data folder"):
        load_dataset(name)


def test_an_unknown_data_set_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BouquetError, match="Unknown data set 'imagenet'; nearest is images"):
        load_dataset("imagenet")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x1f\x8b\x08\x00rest", "is not an unpacked IDX file"),
        (b"\0\0", "is not an unpacked IDX file"),
        (b"\0\0\x08\x01\0\0", "ends within its header"),
        (b"\0\0\x08\x01\0\0\0\x04abc", "has 11 bytes, its header promises 12"),
        (b"\0\0\x08\x01\0\0\0\0", "is empty"),
    ],
)
def test_a_damaged_idx_file_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(DatasetFileError, match=said):
        map_idx(tmp_path / "f")


def test_an_archive_of_arrays_is_refused_where_there_is_no_memory_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 kB that become 10 MB."""
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(10**7, dtype=np.uint8))
    monkeypatch.setattr(readers, "available_bytes", lambda: 10**6)
    with pytest.raises(DatasetFileError, match="its arrays take 10 MB, and 1 MB are free"):
        read_arrays(tmp_path / "a.npz")


def test_files_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "MNIST"
    write_mnist(folder)
    np.savez(tmp_path / "mnist_writers.npz", writer_train=np.arange(5), population_train=np.zeros(5))
    with pytest.raises(BouquetError, match="the files name 5 owners for 6 samples"):
        load_dataset("mnist-writers", tmp_path)
    (tmp_path / "mnist_writers.npz").write_bytes(b"not a zip")
    with pytest.raises(BouquetError, match=r"cannot be read as an \.npz"):
        load_dataset("mnist-writers", tmp_path)
    np.savez(tmp_path / "mnist_writers.npz", writers=np.arange(6))
    with pytest.raises(BouquetError, match="lacks 'writer_train'; it holds writers"):
        load_dataset("mnist-writers", tmp_path)
    write_idx(folder / "raw" / "train-labels-idx1-ubyte", np.array([1, 10, 1, 1, 1, 1], dtype=np.uint8))
    with pytest.raises(BouquetError, match="the train files hold labels 1 to 10, not 0 to 9"):
        load_dataset("mnist", tmp_path)
    write_idx(folder / "raw" / "train-labels-idx1-ubyte", np.array([1], dtype=np.uint8))
    with pytest.raises(BouquetError, match=r"samples of shape \(6, 1, 28, 28\) for 1 labels"):
        load_dataset("mnist", tmp_path)


def test_damaged_har_tables_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "UCI HAR Dataset" / "train" / "Inertial Signals"
    folder.mkdir(parents=True)
    (folder / "body_acc_x_train.txt").write_text("1.0 2.0\n")
    with pytest.raises(BouquetError, match="has 2 numbers a line, expected 128"):
        load_dataset("uci-har", tmp_path)
    for signal in ("body_acc", "body_gyro", "total_acc"):
        for axis in "xyz":
            np.savetxt(folder / f"{signal}_{axis}_train.txt", np.zeros((2, 128)))
    (folder.parent / "y_train.txt").write_text("1\n2\n")
    (folder.parent / "subject_train.txt").write_text("1\n")
    with pytest.raises(BouquetError, match="have different numbers of lines"):
        load_dataset("uci-har", tmp_path)
    (folder / "body_acc_x_train.txt").write_text("walking\n")
    with pytest.raises(BouquetError, match="is not a table of numbers"):
        load_dataset("uci-har", tmp_path)


def test_mapping_images_imports_neither_torch_nor_torchvision(tmp_path: Path) -> None:
    import subprocess

    write_mnist(tmp_path / "MNIST")
    program = (
        "import sys; from pathlib import Path; "
        "from bouquet.common.data.datasets import load_dataset; load_dataset('digits'); "
        f"load_dataset('mnist', Path({str(tmp_path)!r})); "
        "assert not {'torch', 'torchvision', 'sklearn', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
