"""Reading the files in which the data sets are published. Nothing is downloaded.

IDX files (MNIST and its kin) are mapped into memory rather than read by torchvision: a device then reads its own
samples instead of 55 MB, and is spared torchvision's import, both anew for every message. CIFAR and SVHN are read by
torchvision, which checks the published checksums before it unpickles anything.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common.data.left_out import named
from bouquet.common.errors import BouquetError
from bouquet.common.system.resources import available_bytes
from bouquet.common.torchvision_compat import import_torchvision

_IDX_TYPES = {0x08: ">u1", 0x0C: ">i4"}
_HAR_SIGNALS = tuple(f"{signal}_{axis}" for signal in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
_HAR_STEPS = 128
_QMNIST_TEST = 10_000  # the first of QMNIST's 60,000 test images are MNIST's
_CIFAR = {"cifar10": ("CIFAR10", "cifar-10-batches-py"), "cifar100": ("CIFAR100", "cifar-100-python")}


Arrays = dict[str, NDArray[Any]]


class DatasetFileError(BouquetError):
    """A file of a data set that is missing or is not what it should be; `load_dataset` adds where to get it."""


def require_file(path: Path) -> Path:
    """The path, if a file is there; else a `DatasetFileError` that names it."""
    if not path.is_file():
        raise DatasetFileError(f"expected the file {path}, which is not there.")
    return path


def map_idx(path: Path) -> NDArray[Any]:
    """An IDX file of bytes or 32-bit integers, read-only and mapped into memory, in the shape that its header gives."""
    with require_file(path).open("rb") as file:
        head = file.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _IDX_TYPES or head[3] == 0:
            raise DatasetFileError(f"{path} is not an unpacked IDX file.")
        sizes = file.read(4 * head[3])
    if len(sizes) < 4 * head[3]:
        raise DatasetFileError(f"{path} ends within its header.")
    shape = tuple(int(n) for n in np.frombuffer(sizes, ">u4"))
    dtype, offset = np.dtype(_IDX_TYPES[head[2]]), 4 + 4 * head[3]
    expected = offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if path.stat().st_size != expected:
        raise DatasetFileError(f"{path} has {path.stat().st_size} bytes, its header promises {expected}.")
    if expected == offset:
        raise DatasetFileError(f"{path} is empty.")
    return np.memmap(path, dtype, mode="r", offset=offset, shape=shape)


def read_arrays(path: Path) -> Arrays:
    """All arrays of an .npz file; no Python objects are unpickled."""
    require_file(path)
    try:
        with named(str(path), how=" as an .npz of plain arrays"), np.load(path, allow_pickle=False) as archive:
            needed, free = sum(one.file_size for one in archive.zip.infolist()), available_bytes()
            if free is not None and needed > free:
                raise ValueError(f"its arrays take {needed // 10**6} MB, and {free // 10**6} MB are free")
            return {key: _array(path, archive, key) for key in archive.files}
    except BouquetError as error:
        raise DatasetFileError(str(error)) from error.__cause__


def _array(path: Path, archive: Any, key: str) -> NDArray[Any]:
    """One of them, which the error names: NumPy does not."""
    with named(f"The array {key!r} of {path}"):
        if not isinstance(array := archive[key], np.ndarray):
            raise ValueError("it is none")  # NumPy gives its bytes
        return array


def read_npz(path: Path, keys: tuple[str, ...]) -> Arrays:
    """The arrays of an .npz file, which must have the given keys."""
    arrays = read_arrays(path)
    if missing := [key for key in keys if key not in arrays]:
        raise DatasetFileError(f"{path} lacks {missing[0]!r}; it holds {', '.join(arrays) or 'nothing'}.")
    return arrays


def read_published(name: str, data_dir: Path, folder: str) -> Arrays:
    """A published data set, by what `Dataset` calls its parts: ``x``, ``y``, and ``test_x``, ``owners``… if known.

    ``folder`` is where in the data folder MNIST and its kin lie.
    """
    match name:
        case "digits":
            return _digits()
        case "emnist":
            # NIST stores these transposed; upright, a device's own images can be mixed with them.
            arrays = _mnist_like(data_dir / folder, "emnist-balanced-train", "emnist-balanced-test")
            return arrays | {key: arrays[key].swapaxes(2, 3) for key in ("x", "test_x")}
        case "mnist-writers":
            return _mnist_writers(data_dir)
        case "uci-har":
            return _uci_har(data_dir)
        case "cifar10" | "cifar100":
            return _cifar(name, data_dir, train=True) | _cifar(name, data_dir, train=False)
        case "svhn":
            return _svhn(data_dir, train=True) | _svhn(data_dir, train=False)
        case _:
            return _mnist_like(data_dir / folder, "train", "t10k")


def _digits() -> Arrays:
    """scikit-learn's digits, read from its file: importing scikit-learn would cost a device a second a message."""
    spec = find_spec("sklearn")
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz" if spec and spec.origin else None
    if file is not None and file.is_file():
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    else:  # a scikit-learn that keeps the file elsewhere
        from sklearn.datasets import load_digits

        published = load_digits()
        table = np.column_stack([published.data, published.target]).astype(np.uint8)
    return {"x": table[:, :-1].reshape(-1, 1, 8, 8), "y": table[:, -1].astype(np.int64)}


def _mnist_like(folder: Path, train: str, test: str) -> Arrays:
    x, y, test_x, test_y = (
        map_idx(folder / "raw" / f"{part}-{kind}")
        for part in (train, test)
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    images = {"x": x[:, None], "test_x": test_x[:, None]}
    return {**images, "y": y.astype(np.int64), "test_y": test_y.astype(np.int64)}


def _mnist_writers(data_dir: Path) -> Arrays:
    """MNIST with its writers, from `mnist_writers.npz` beside MNIST, or from QMNIST, whose labels name them."""
    side_file, qmnist = data_dir / "mnist_writers.npz", data_dir / "QMNIST" / "raw"
    if side_file.is_file() or not qmnist.is_dir():
        writers = read_npz(side_file, ("writer_train", "population_train"))
        arrays = _mnist_like(data_dir / "MNIST", "train", "t10k")
        owners, populations = writers["writer_train"], writers["population_train"]
    else:
        x, test_x = (map_idx(qmnist / f"qmnist-{part}-images-idx3-ubyte")[:, None] for part in ("train", "test"))
        labels, test_labels = (map_idx(qmnist / f"qmnist-{part}-labels-idx2-int") for part in ("train", "test"))
        arrays = {"x": x, "y": labels[:, 0].astype(np.int64), "test_x": test_x[:_QMNIST_TEST]}
        arrays["test_y"] = test_labels[:_QMNIST_TEST, 0].astype(np.int64)
        owners, populations = labels[:, 2], labels[:, 1]
    return arrays | {"owners": owners.astype(np.int64), "populations": populations.astype(np.int64)}


def _uci_har(data_dir: Path) -> Arrays:
    """All 30 people: clients are people, so the official split by person would only take nine of them away."""
    archive, folder = data_dir / "uci_har.npz", data_dir / "UCI HAR Dataset"
    keys = ("x", "y", "subject", "segment")
    if archive.is_file() or not folder.is_dir():
        arrays = read_npz(archive, tuple(f"{key}_{split}" for key in keys for split in ("train", "test")))
        train, test = ({key: arrays[f"{key}_{split}"] for key in keys} for split in ("train", "test"))
    else:
        train, test = (_uci_har_folder(folder, split) for split in ("train", "test"))
    x, y, subject = (np.concatenate([train[key], test[key]]) for key in ("x", "y", "subject"))
    first, second = (part["segment"].astype(np.int64) for part in (train, test))
    return {
        "x": x.astype(np.float32, copy=False),
        "y": y.astype(np.int64),
        "owners": subject.astype(np.int64),
        "segments": np.concatenate([first, second + first.max() + 1]),
    }


def _cifar(name: str, data_dir: Path, *, train: bool) -> Arrays:
    """CIFAR-10 or CIFAR-100 with its fine labels; images (N, 3, 32, 32)."""
    class_name, folder = _CIFAR[name]
    if not (data_dir / folder).is_dir():
        raise DatasetFileError(f"expected the folder {data_dir / folder}, which is not there.")
    try:
        published = getattr(import_torchvision().datasets, class_name)(data_dir, train=train, download=False)
    except RuntimeError as error:
        raise DatasetFileError(
            f"a file in {data_dir / folder} is missing or differs from the published one."
        ) from error
    return _part(published.data.transpose(0, 3, 1, 2), published.targets, train)


def _svhn(data_dir: Path, *, train: bool) -> Arrays:
    """SVHN's cropped digits (N, 3, 32, 32)."""
    split = "train" if train else "test"
    path = require_file(data_dir / "SVHN" / f"{split}_32x32.mat")
    try:
        published = import_torchvision().datasets.SVHN(path.parent, split=split, download=False)
    except RuntimeError as error:
        raise DatasetFileError(f"{path} differs from the published file.") from error
    return _part(published.data, published.labels, train)


def _part(x: NDArray[np.uint8], y: Any, train: bool) -> Arrays:
    prefix = "" if train else "test_"
    return {f"{prefix}x": x, f"{prefix}y": np.asarray(y, dtype=np.int64)}


def _uci_har_folder(folder: Path, split: str) -> Arrays:
    """``x`` (N, 9, 128), ``y`` from 0, ``subject`` and ``segment`` of one split of the folder that UCI publishes.

    A segment is one uninterrupted recording: it ends where the next window does not begin with the second half of
    the one before.
    """
    signals = [
        _read_table(folder / split / "Inertial Signals" / f"{signal}_{split}.txt", _HAR_STEPS)
        for signal in _HAR_SIGNALS
    ]
    y = _read_table(folder / split / f"y_{split}.txt", 1)[:, 0].astype(np.int64) - 1
    subject = _read_table(folder / split / f"subject_{split}.txt", 1)[:, 0].astype(np.int64)
    if len({len(y), len(subject), *(len(signal) for signal in signals)}) > 1:
        raise DatasetFileError(f"the files in {folder / split} have different numbers of lines.")
    x = np.stack(signals, axis=1)
    half = x.shape[2] // 2
    joined = (x[:-1, :, half:] == x[1:, :, :half]).all(axis=(1, 2))
    return {"x": x, "y": y, "subject": subject, "segment": np.concatenate([[0], np.cumsum(~joined)])}


def _read_table(path: Path, columns: int) -> NDArray[np.float32]:
    try:
        table = np.loadtxt(require_file(path), dtype=np.float32, ndmin=2)
    except ValueError as error:
        raise DatasetFileError(f"{path} is not a table of numbers ({error}).") from error
    if table.shape[1] != columns or not len(table):
        raise DatasetFileError(f"{path} has {table.shape[1]} numbers a line, expected {columns}.")
    return table
