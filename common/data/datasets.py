"""The data sets by name: their shapes without loading, and their samples as they lie on the disk.

Images stay bytes, and where the file allows (IDX) they are mapped into memory and never read as a whole: a device
touches its own samples only, and only those become float32. Nothing is downloaded.

A data set of one's own is named ``module:function``. The function is given the data folder (a `Path`; None where the
settings name none) and returns a `Dataset`; `described` says beforehand what it holds, because a server builds the
model without loading any data::

    @described(DatasetInfo(input_shape=(1, 8, 8), num_classes=10, scale=16.0))
    def digits(data_dir):
        return Dataset("digits", x, y)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common.data.catalog import DatasetInfo, dataset_info, is_images
from bouquet.common.data.catalog import described as described
from bouquet.common.data.image_set import read_image_set
from bouquet.common.data.partitions import split_train_test
from bouquet.common.data.readers import DatasetFileError, read_published
from bouquet.common.errors import SAYS_MORE, BouquetError
from bouquet.common.plugins import load_object

DATA_DIR_VARIABLE = "BOUQUET_DATA_DIR"

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set's samples, raw, and what is known of them.

    Attributes:
        name: its name in `DATASETS`, or ``module:function``, which is filled in for a data set of one's own.
        x: (N, *input_shape) raw samples: uint8 images or float32 sensor windows.
        y: (N,) labels.
        owners: (N,) whose each sample is (writer, subject); None where nobody knows.
        populations: (N,) the real group that its owner belongs to; None where nobody knows.
        segments: (N,) contiguous recording that a window is from, where windows overlap; else None.
        test_x, test_y: the official test part, which clients do not share; None where there is none.
        reserved: what `reserve` set aside to test on; None where nothing is.
        standardise: whether `standardised` does anything.
        described: what it holds, for a folder of images, of which only the settings know.
    """

    name: str
    x: NDArray[Any]
    y: Labels
    owners: Labels | None = None
    populations: Labels | None = None
    segments: Labels | None = None
    test_x: NDArray[Any] | None = None
    test_y: Labels | None = None
    reserved: Dataset | None = None
    standardise: bool = True
    described: DatasetInfo | None = None

    @property
    def info(self) -> DatasetInfo:
        """Shapes, scale and origin."""
        return self.described or dataset_info(self.name)

    def only(self, indices: NDArray[np.int64]) -> Dataset:
        """The data set with these of its samples."""
        known = {key: getattr(self, key) for key in ("owners", "populations", "segments")}
        chosen: dict[str, Any] = {key: None if values is None else values[indices] for key, values in known.items()}
        return replace(self, x=self.x[indices], y=self.y[indices], **chosen)

    def scaled(self, indices: NDArray[np.int64]) -> Floats:
        """The samples (n, *input_shape), images from 0 to 1."""
        return _scaled(self.x[indices], self.info.scale)

    def standardised(self, scaled: Floats) -> Floats:
        """Scaled samples, minus the mean and over the standard deviation of their channel."""
        return standardise(scaled, self.info.mean, self.info.std) if self.standardise else scaled

    def test_inputs(self, indices: NDArray[np.int64] | slice = slice(None)) -> Floats:
        """Standardised samples of the test part, all by default: a server's public, unlabelled data."""
        if self.test_x is None:
            raise BouquetError(
                f"Data set {self.name!r} has no official test part to serve as public data; hold some samples out "
                "for it, or take another data set."
            )
        return self.standardised(_scaled(self.test_x[indices], self.info.scale))


def load_dataset(
    name: str,
    data_dir: Path | str | None = None,
    standardise: bool = True,
    classes: tuple[str, ...] = (),
    input_shape: tuple[int, ...] = (),
) -> Dataset:
    """Load a data set from the data folder; kept in memory for the next call.

    ``classes`` and ``input_shape`` say how to read a folder of images, and nothing of others.
    Without ``standardise`` images stay from 0 to 1. Without ``data_dir`` the folder is the one that the environment
    variable BOUQUET_DATA_DIR names, so that tables and settings need no path of one machine. Raises `BouquetError` with
    the file that was expected, where, and where to get it.
    """
    info = dataset_info(name, classes, input_shape)
    data_dir = data_dir or os.environ.get(DATA_DIR_VARIABLE)
    if info.folder and not data_dir:
        raise BouquetError(
            f"Data set {name!r} needs a data folder (--data-dir, or {DATA_DIR_VARIABLE}) "
            f"that holds {info.folder}. To get it: {info.origin}."
        )
    if ":" in name:
        data = _load_own(name, Path(data_dir).absolute() if data_dir else None)
    else:
        data = _load(name, Path(data_dir or ".").absolute(), info)
    return data if standardise else replace(data, standardise=False)


def hold_out(dataset: Dataset, fraction: float, seed: int) -> Dataset:
    """Set a share of the samples aside as the test part of a data set that has none; other data sets stay as they are.

    The share is drawn at random, whole segments where there are any.
    """
    if dataset.test_x is not None or fraction == 0:
        return dataset
    kept, held = split_train_test(
        np.arange(len(dataset.y)), dataset.y, seed, test_fraction=fraction, segments=dataset.segments
    )
    return replace(dataset.only(kept), test_x=dataset.x[held], test_y=dataset.y[held])


def reserve(dataset: Dataset, fraction: float) -> Dataset:
    """Set a share of each owner's samples aside to test on, or of all where nobody knows the owners.

    They are the same in every run, so that no seed trains on what another tests on: random ones, and whole segments
    where there are any. An owner with a single one keeps it.
    """
    if fraction == 0:
        return dataset
    segments = np.arange(len(dataset.y)) if dataset.segments is None else dataset.segments
    owners = np.zeros(len(dataset.y)) if dataset.owners is None else dataset.owners
    parts = [np.flatnonzero(owners == owner) for owner in np.unique(owners)]
    held = [
        split_train_test(part, dataset.y, (0, number), test_fraction=fraction, segments=dataset.segments)[1]
        for number, part in enumerate(parts)
        if len(np.unique(segments[part])) > 1
    ]
    taken = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *held]))
    kept = dataset.only(np.setdiff1d(np.arange(len(dataset.y)), taken))
    return replace(kept, reserved=dataset.only(taken))


def standardise(scaled: Floats, mean: Sequence[float], std: Sequence[float]) -> Floats:
    """(x − mean) / std for each channel of (n, channels, …); one value for all channels will do."""
    per_channel = (1, -1) + (1,) * (scaled.ndim - 2)
    shift = np.asarray(mean, dtype=np.float32).reshape(per_channel)
    return (scaled - shift) / np.asarray(std, dtype=np.float32).reshape(per_channel)


def _scaled(raw: NDArray[Any], scale: float) -> Floats:
    return np.asarray(raw, dtype=np.float32) / np.float32(scale)


@lru_cache(maxsize=2)
def _load(name: str, data_dir: Path, info: DatasetInfo) -> Dataset:
    try:
        if is_images(name):
            parts: dict[str, Any] = {**read_image_set(name, data_dir, info), "described": info}
        else:
            parts = {**read_published(name, data_dir, info.folder)}
        dataset = Dataset(name, **parts)
        _check(dataset)
    except DatasetFileError as error:
        get = f"To get it: {info.origin}."
        public = f"Data set {name!r} cannot be read from this device's data folder. {get}"
        raise BouquetError(f"Data set {name!r}: {error} {get}", public=public) from error
    return dataset


@lru_cache(maxsize=2)
def _load_own(name: str, data_dir: Path | None) -> Dataset:
    """Call the user's ``module:function``, and check what it returns as the files of the others are checked."""
    try:
        dataset = load_object(name, "Data set")(data_dir)
    except BouquetError:
        raise
    except Exception as error:
        reason = f"Data set {name!r} failed: {type(error).__name__}"
        raise BouquetError(f"{reason}: {error}", public=f"{reason}. {SAYS_MORE}") from error
    if not isinstance(dataset, Dataset):
        raise BouquetError(f"Data set {name!r} returned a {type(dataset).__name__}; it must return a Dataset.")
    dataset = replace(dataset, name=name)
    try:
        for y in (dataset.y, dataset.test_y):
            if y is not None and not (y.ndim == 1 and len(y) and np.issubdtype(y.dtype, np.integer)):
                raise DatasetFileError(
                    f"the labels are {y.dtype} of shape {y.shape}; they are whole numbers (N,), N ≥ 1."
                )
        if (dataset.test_x is None) != (dataset.test_y is None):
            raise DatasetFileError("it has one of test_x and test_y; give both or neither.")
        _check(dataset)
    except (DatasetFileError, AttributeError) as error:
        raise BouquetError(f"Data set {name!r}: {error}") from error
    return replace(
        dataset,
        y=dataset.y.astype(np.int64),
        test_y=None if dataset.test_y is None else dataset.test_y.astype(np.int64),
    )


def _check(dataset: Dataset) -> None:
    """Refuse files that are readable but do not hold what the table says."""
    info = dataset.info
    for part, x, y in (("train", dataset.x, dataset.y), ("test", dataset.test_x, dataset.test_y)):
        if x is None or y is None:
            continue
        if x.shape != (len(y), *info.input_shape):
            raise DatasetFileError(f"the {part} files hold samples of shape {x.shape} for {len(y)} labels.")
        if y.min() < 0 or y.max() >= info.num_classes:
            raise DatasetFileError(
                f"the {part} files hold labels {y.min()} to {y.max()}, not 0 to {info.num_classes - 1}."
            )
    if dataset.owners is not None and len(dataset.owners) != len(dataset.y):
        raise DatasetFileError(f"the files name {len(dataset.owners)} owners for {len(dataset.y)} samples.")
