"""Reading the files in which the data sets are published. Nothing is downloaded.

IDX files (MNIST and its kin) are mapped into memory rather than read by torchvision: a device then reads its own
samples instead of 55 MB, and is spared torchvision's import, both anew for every message. CIFAR and SVHN are read by
torchvision, which checks the published checksums before it unpickles anything.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from common.errors import BouquetError
from common.torchvision_compat import import_torchvision

_IDX_TYPES = {0x08: ">u1", 0x0C: ">i4"}
_HAR_SIGNALS = tuple(f"{signal}_{axis}" for signal in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
_HAR_STEPS = 128
_CIFAR = {"cifar10": ("CIFAR10", "cifar-10-batches-py"), "cifar100": ("CIFAR100", "cifar-100-python")}


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


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file; no Python objects are unpickled."""
    try:
        with np.load(require_file(path), allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (AttributeError, EOFError, OSError, ValueError, BadZipFile, zlib.error) as error:
        raise DatasetFileError(f"{path} cannot be read as an .npz of plain arrays ({error}).") from error


def read_npz(path: Path, keys: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file, which must have the given keys."""
    arrays = read_arrays(path)
    if missing := [key for key in keys if key not in arrays]:
        raise DatasetFileError(f"{path} lacks {missing[0]!r}; it holds {', '.join(arrays)}.")
    return arrays


def read_cifar(name: str, data_dir: Path, *, train: bool) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (N, 3, 32, 32) and labels of CIFAR-10 or CIFAR-100 (fine labels)."""
    class_name, folder = _CIFAR[name]
    if not (data_dir / folder).is_dir():
        raise DatasetFileError(f"expected the folder {data_dir / folder}, which is not there.")
    try:
        published = getattr(import_torchvision().datasets, class_name)(data_dir, train=train, download=False)
    except RuntimeError as error:
        raise DatasetFileError(
            f"a file in {data_dir / folder} is missing or differs from the published one."
        ) from error
    return published.data.transpose(0, 3, 1, 2), np.asarray(published.targets, dtype=np.int64)


def read_svhn(data_dir: Path, *, train: bool) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (N, 3, 32, 32) and labels of SVHN's cropped digits."""
    split = "train" if train else "test"
    path = require_file(data_dir / "SVHN" / f"{split}_32x32.mat")
    try:
        published = import_torchvision().datasets.SVHN(path.parent, split=split, download=False)
    except RuntimeError as error:
        raise DatasetFileError(f"{path} differs from the published file.") from error
    return published.data, np.asarray(published.labels, dtype=np.int64)


def read_uci_har_folder(folder: Path, split: str) -> dict[str, NDArray[Any]]:
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
