"""What a device trains and tests on: its part of a shared data set, or its own folder.

Samples come as NumPy arrays, and images are read with Pillow: neither torch nor torchvision is imported here, because
a device starts a fresh Python for each message, and torchvision's import is the slowest part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client.data.folder import read_folder
from client.data.table import divide, jumped, samples_of, scaling_of
from client.data.table_reader import read_table
from common.data.datasets import Dataset, Floats, Labels, hold_out, load_dataset, reserve
from common.data.partition_rules import apportion_at_random, deal
from common.data.partitions import ClientPart, split_train_test
from common.data.partitions import partition as partition_by_rule
from common.data.scaling import Scaling
from common.errors import BouquetError
from common.model.card import OWN_MEAN, OWN_STD, standardise_bytes
from common.settings import Settings
from common.settings.sections import TableSettings
from common.task.task import task_of

MINIMUM_TRAIN = 2
ASSUMED_APART = (
    "Neither x_test nor segment: a random part is tested, as if no samples overlapped. Windows of one recording do, "
    "which flatters: give each its segment, or a test part."
)


@dataclass(frozen=True, eq=False)
class ClientData:
    """A client's samples, ready for its model.

    Attributes:
        train_x, test_x: (n, *input_shape) float32, or uint8 that is still to be standardised.
        train_y, test_y: (n,) labels from 0 to num_classes − 1.
        num_classes: of the whole federation, whether or not the client has them all.
        group: ground-truth group where there is one, for purity; never used in training.
        notes: what its owner should know of the folder: files passed over, classes without images.
        left_out: photos that could not be read, or rows that do not fit, which were left out.
        scaling: what inputs and targets were standardised by, of a table.
        naive, naive_names: what a forecast without a model says of the test part, (k, n, targets) in the targets' own
            units, and what each is called.
        in_order: samples are in the order of their time, the oldest first.

    Where there are no classes, ``num_classes`` is 0 and ``train_y``, ``test_y`` are (n, targets) float32.
    """

    train_x: NDArray[Any]
    train_y: NDArray[Any]
    test_x: NDArray[Any]
    test_y: NDArray[Any]
    num_classes: int
    group: int | None = None
    notes: tuple[str, ...] = ()
    left_out: int = 0
    scaling: Scaling | None = None
    naive: NDArray[Any] | None = None
    naive_names: tuple[str, ...] = ()
    in_order: bool = False

    def samples_by_class(self) -> list[int]:
        """How many samples there are of each class, to train and to test on together; empty where there are none."""
        if not self.num_classes:
            return []
        labels = np.concatenate([self.train_y, self.test_y])
        return [int(count) for count in np.bincount(labels, minlength=self.num_classes)]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.train_x.shape[1:]


def part_of(settings: Settings, partition_id: int, num_partitions: int | None = None) -> ClientData:
    """A client's part of the data set that the settings name, of ``data.clients`` or of ``num_partitions`` parts.

    Raises `BouquetError` as `load_partition` does.
    """
    data = settings.data
    return load_partition(
        data.dataset,
        data.partition,
        partition_id,
        data.clients if num_partitions is None else num_partitions,
        settings.run.seed,
        data_dir=data.data_dir or None,
        classes=data.classes,
        input_shape=data.input_shape,
        **data.partition_options(),
    )


def load_partition(
    dataset: str,
    partition: str,
    partition_id: int,
    num_partitions: int,
    seed: int,
    *,
    data_dir: Path | str | None = None,
    classes: tuple[str, ...] = (),
    input_shape: tuple[int, ...] = (),
    test_fraction: float = 0.2,
    test_samples: int | None = None,
    public_fraction: float = 0.0,
    reserved_fraction: float = 0.0,
    standardise: bool = True,
    **options: Any,
) -> ClientData:
    """A client's part of a shared data set.

    Args:
        dataset: a name that `common.data.catalog.dataset_info` knows, or one's own as ``module:function``.
        partition: a name in `common.data.partitions.PARTITIONS`, or one's own as ``module:function``.
        partition_id: which part, from 0.
        num_partitions: how many parts there are.
        seed: of the partition and the split; every client and the server must use the same.
        data_dir: folder that holds the data set; None for embedded data.
        classes, input_shape: of a folder of images.
        test_fraction: share of the client's samples that it tests on, and never trains on.
        test_samples: it tests on at most so many fresh samples instead, see `_fresh`; what it trains on is the same.
        public_fraction: share that the server holds out as public data where there is no official test part.
        reserved_fraction: share to take ``test_samples`` from, whatever the seed (`common.data.datasets.reserve`).
        standardise: False leaves images from 0 to 1.
        options: the keyword arguments of `common.data.partitions.partition`, hashable.

    Raises `BouquetError` for settings that the data do not allow.
    """
    if not 0 <= partition_id < num_partitions:
        raise BouquetError(
            f"partition-id is {partition_id}; with {num_partitions} parts 0 to {num_partitions - 1} exist."
        )
    data, parts = _partitioned(
        dataset,
        (str(data_dir or ""), standardise, tuple(classes), tuple(input_shape)),
        partition,
        num_partitions,
        seed,
        public_fraction,
        reserved_fraction,
        tuple(sorted(options.items())),
    )
    part = parts[partition_id]
    what = f"Part {partition_id} of data set {dataset!r}"
    train, test = _split(what, part.indices, data.y, (seed, partition_id), test_fraction, data.segments)
    tested = data
    if test_samples is not None:
        tested, test = _fresh(data, parts, partition_id, train, test_samples, seed)
        _check_enough(f"{what}, with data.test_samples = {test_samples},", len(train), len(test))
    return ClientData(
        *_transformed(data, part, train), *_transformed(tested, part, test), data.info.num_classes, part.group
    )


def load_folder(
    path: Path | str,
    *,
    input_shape: Sequence[int],
    classes: Sequence[str],
    test_fraction: float = 0.2,
    seed: int = 0,
    mean: tuple[float, ...] = OWN_MEAN,
    std: tuple[float, ...] = OWN_STD,
    report: Callable[[str], None] | None = None,
    leave_out: bool = False,
    as_bytes: bool = False,
) -> ClientData:
    """A device's own data: an .npz file, or a folder that holds ``data.npz`` or a folder of images for each class.

    `client.data.folder.read_folder` says what each may hold. Bytes are divided by 255 and standardised; floats are
    taken as they are. Without a test part of its own, ``test_fraction`` of the samples is set aside for it.

    Args:
        path: the file or folder.
        input_shape: of one sample, the same for the whole federation.
        classes: names in label order, the same for the whole federation, whether or not this device has them all.
        test_fraction: above 0 and below 1.
        seed: of the split; the same seed gives the same split after a restart.
        mean, std: for each channel or for all, the same for the whole federation; by default bytes become −1 to 1.
        report: told how far the reading of many images has come, in a line each time.
        leave_out: go on without photos that cannot be read, and count them.
        as_bytes: leave bytes as they are, a fourth of the memory; who uses them standardises.

    Raises `BouquetError`, naming the file, what was found and what is allowed.
    """
    path = Path(path)
    own = read_folder(path, tuple(input_shape), tuple(classes), report, leave_out)
    about: dict[str, Any] = {"notes": own.notes, "left_out": own.left_out}
    x, test_x = own.x, own.test_x
    if not as_bytes:
        x = standardise_bytes(x, mean, std)
        test_x = None if test_x is None else standardise_bytes(test_x, mean, std)
    if test_x is not None and own.test_y is not None:
        _check_enough(str(path), len(own.y), len(own.test_y))
        return ClientData(x, own.y, test_x, own.test_y, len(classes), **about)
    train, test = _split(str(path), np.arange(len(own.y)), own.y, seed, test_fraction, own.segments)
    if own.segments is None and own.x.ndim < 4:  # no images
        about["notes"] += (ASSUMED_APART,)
    return ClientData(x[train], own.y[train], x[test], own.y[test], len(classes), **about)


def load_table(path: Path | str, settings: Settings, leave_out: bool = False) -> ClientData:
    """A device's own table (`client.data.table`): a CSV file, or a folder of them.

    With times the newest part is tested, without them a random one. Everything is standardised by what is trained on.
    With ``leave_out`` rows that do not fit are left out and counted.

    Raises `BouquetError`, naming file, line and column, for what does not fit.
    """
    path, about, task = Path(path), settings.table, task_of(settings)
    table = read_table(path, about, settings.data.classes, leave_out=leave_out)
    samples = samples_of(table, about, task.is_forecast)
    labels = samples.y if task.has_classes else np.zeros(len(samples.y), dtype=np.int64)
    fraction = settings.data.test_fraction
    if len(labels) < MINIMUM_TRAIN + 1:
        _check_enough(f"{path} ({' '.join(samples.notes) or 'without gaps'})", len(labels), 0)
    parts = divide(samples, about, fraction)
    train, test = parts or _split(str(path), np.arange(len(labels)), labels, settings.run.seed, fraction, None)
    _check_enough(f"{path}, of which {_tested_text(about)} is tested,", len(train), len(test))
    scaling = scaling_of(samples.x[train], samples.y[train], about, task.has_classes)
    y = samples.y if task.has_classes else scaling.targets(samples.y)
    x = scaling.inputs(samples.x)
    notes = samples.notes + (jumped(x, about) if parts is not None else ())
    naive, names = samples.naive[:, test], samples.naive_names
    if not task.has_classes:
        mean = np.broadcast_to(samples.y[train].mean(axis=0), (1, *samples.y[test].shape))
        naive, names = np.concatenate([naive, mean]), (*names, "the mean")
    return ClientData(
        x[train],
        y[train],
        x[test],
        y[test],
        len(settings.data.classes),
        notes=notes,
        left_out=table.left_out,
        scaling=scaling,
        naive=None if task.has_classes else naive,
        naive_names=() if task.has_classes else names,
        in_order=parts is not None,
    )


def _tested_text(about: TableSettings) -> str:
    if about.cut:
        return f"what is of {about.cut} or later"
    return "the newest part" if about.time else "a random part"


def rotated(images: Floats, degrees: float) -> Floats:
    """Turn images (n, C, H, W) counter-clockwise about their middle; what comes in from outside is 0.

    Exact where pixels land on pixels: by half turns, and by quarter turns of square images.
    """
    square = images.shape[2] == images.shape[3]
    if degrees % (90 if square else 180) == 0:
        return np.ascontiguousarray(np.rot90(images, int(degrees // 90), axes=(2, 3)))
    from scipy.ndimage import rotate  # a fifth of a second, for rotated partitions only

    turned: Floats = rotate(images, degrees, axes=(2, 3), reshape=False, order=1)
    return turned


@lru_cache(maxsize=4)
def _partitioned(
    name: str,
    read_as: tuple[str, bool, tuple[str, ...], tuple[int, ...]],
    rule: str,
    num_partitions: int,
    seed: int,
    public_fraction: float,
    reserved_fraction: float,
    options: tuple[tuple[str, Any], ...],
) -> tuple[Dataset, list[ClientPart]]:
    """A data set and all its parts; kept, because a simulation asks for one part after another."""
    data = hold_out(reserve(load_dataset(name, *read_as), reserved_fraction), public_fraction, seed)
    parts = partition_by_rule(
        rule,
        data.y,
        num_partitions,
        seed,
        owners=data.owners,
        owner_groups=data.populations,
        num_classes=data.info.num_classes,
        **dict(options),
    )
    if any(part.rotation_degrees for part in parts) and len(data.info.input_shape) != 3:
        raise BouquetError(f"Partition {rule!r} turns images, and data set {name!r} has none; take another partition.")
    return data, parts


def _fresh(
    data: Dataset, parts: Sequence[ClientPart], number: int, train: NDArray[np.int64], count: int, seed: int
) -> tuple[Dataset, NDArray[np.int64]]:
    """At most ``count`` samples for client ``number`` to test on that no client trains on: of what, and which, sorted.

    They are of what is reserved, else of the official test part, or what was held out as such, in the mix of classes
    that the client's samples were drawn from; fewer than ``count`` where it would need more of a class than there are.
    Clients may have some in common. In a partition by owner, where the test part is other people's, they are random
    ones of the owner's that the client does not train on, and nobody else has; of no stretch that anybody trains on,
    where samples overlap.
    """
    part, rng, reserved = parts[number], np.random.default_rng((seed, number, 1)), data.reserved
    if part.owner is not None and reserved is not None and reserved.owners is not None:
        pool = np.flatnonzero(reserved.owners == part.owner)
        return reserved, np.sort(rng.choice(pool, min(count, len(pool)), replace=False))
    if part.owner is not None and data.owners is not None:
        held = np.concatenate([train, *(other.indices for i, other in enumerate(parts) if i != number)])
        stretches = np.arange(len(data.y)) if data.segments is None else data.segments
        pool = np.flatnonzero((data.owners == part.owner) & ~np.isin(stretches, stretches[held]))
        return data, np.sort(rng.choice(pool, min(count, len(pool)), replace=False))
    if reserved is None and data.test_x is not None and data.test_y is not None:
        reserved = replace(data, x=data.test_x, y=data.test_y, owners=None, populations=None, segments=None)
    if reserved is None:
        raise BouquetError(
            f"Setting data.test_samples = {count}: data set {data.name!r} has no test part to take fresh samples from. "
            "Leave it out, set data.public_fraction, e.g. to 0.2, to hold samples out of all clients' parts, or take "
            "partition 'natural' where the data set has owners."
        )
    assert part.mix is not None
    there = np.bincount(reserved.y, minlength=len(part.mix))[: len(part.mix)]
    most = min((there * part.mix.sum() // np.maximum(part.mix, 1))[part.mix > 0])
    counts = apportion_at_random(part.mix, min(count, int(most)), rng)
    return reserved, deal(reserved.y, counts[None], rng)[0]


def _transformed(data: Dataset, part: ClientPart, indices: NDArray[np.int64]) -> tuple[Floats, Labels]:
    """The client's view of the samples: turned, standardised, labelled its own way."""
    x, y = data.scaled(indices), data.y[indices]
    if part.rotation_degrees:
        x = rotated(x, part.rotation_degrees)
    if part.label_permutation is not None:
        y = np.asarray(part.label_permutation, dtype=np.int64)[y]
    return data.standardised(x), y


def _split(
    what: str,
    indices: NDArray[np.int64],
    labels: Labels,
    seed: int | Sequence[int],
    test_fraction: float,
    segments: NDArray[np.int64] | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`split_train_test`, whose errors name the data, with enough samples on both sides."""
    try:
        train, test = split_train_test(indices, labels, seed, test_fraction=test_fraction, segments=segments)
    except BouquetError as error:
        raise BouquetError(f"{what}: {error}") from error
    _check_enough(what, len(train), len(test))
    return train, test


def _check_enough(what: str, num_train: int, num_test: int) -> None:
    if num_train < MINIMUM_TRAIN or num_test < 1:
        raise BouquetError(
            f"{what} has too few samples, {num_train} to train on and {num_test} to test on; at least "
            f"{MINIMUM_TRAIN} and 1 are needed.",
            public="This device has too few samples.",
        )
