"""What a device trains and tests on, and its part of a shared data set; `client.data.own` loads what is its own.

Samples come as NumPy arrays, and images are read with Pillow: neither torch nor torchvision is imported here, because
a device starts a fresh Python for each message, and torchvision's import is the slowest part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.common.data.datasets import Dataset, Floats, Labels, hold_out, load_dataset, reserve
from bouquet.common.data.partition_rules import apportion_at_random, deal
from bouquet.common.data.partitions import ClientPart, split_train_test
from bouquet.common.data.partitions import partition as partition_by_rule
from bouquet.common.data.scaling import Scaling
from bouquet.common.errors import BouquetError
from bouquet.common.settings import Settings

MINIMUM_TRAIN = 2


@dataclass(frozen=True, eq=False)
class ClientData:
    """A client's samples, ready for its model.

    Attributes:
        train_x, test_x: (n, *input_shape) float32, or uint8 that is still to be standardised.
        train_y, test_y: (n,) labels from 0 to num_classes − 1.
        num_classes: of the whole federation, whether or not the client has them all.
        group: ground-truth group where there is one, for purity; never used in training.
        notes: what its owner should know of the folder: files passed over, classes without images.
        warnings: what is odd about the samples, for the server's owner, too: there are no values in it.
        left_out: photos that could not be read, or rows that do not fit, which were left out.
        unknown_classes: folders of photos that are none of the run's classes, and wait for a run that has them.
        scaling: what inputs and targets were standardised by, of a table.
        naive, naive_names: what a forecast without a model says of the test part, (k, n, targets) in the targets' own
            units, and what each is called.
        in_order: samples are in the order of their time, the oldest first.
        span: from when to when is trained on and tested, for people; empty where samples have no time.
        kept_as: the file that keeps them between messages (`bouquet.client.data.cache`), empty where none does.

    Where there are no classes, ``num_classes`` is 0 and ``train_y``, ``test_y`` are (n, targets) float32.
    """

    train_x: NDArray[Any]
    train_y: NDArray[Any]
    test_x: NDArray[Any]
    test_y: NDArray[Any]
    num_classes: int
    group: int | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    left_out: int = 0
    unknown_classes: tuple[str, ...] = ()
    scaling: Scaling | None = None
    naive: NDArray[Any] | None = None
    naive_names: tuple[str, ...] = ()
    in_order: bool = False
    span: str = ""
    kept_as: str = ""

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

    ``dataset`` is a name that `common.data.catalog` knows, or one's own as ``module:function``; ``partition``, with
    ``options``, one that `common.data.partitions` knows. ``seed`` is of the partition and the split: all clients and
    the server must use the same. With ``test_samples`` the client tests on at most so many fresh samples instead of
    ``test_fraction`` of its own (`_fresh`); what it trains on is the same. ``public_fraction`` is what the server holds
    out as public data, ``reserved_fraction`` what ``test_samples`` are taken from, whatever the seed.

    Raises `BouquetError` for settings that the data do not allow.
    """
    if not 0 <= partition_id < num_partitions:
        raise BouquetError(
            f"partition-id is {partition_id}; with {num_partitions} parts 0 to {num_partitions - 1} exist."
        )
    read_as = str(data_dir or ""), standardise, tuple(classes), tuple(input_shape)
    fractions = public_fraction, reserved_fraction
    data, parts = _partitioned(
        dataset, read_as, partition, num_partitions, seed, *fractions, tuple(sorted(options.items()))
    )
    part = parts[partition_id]
    what = f"Part {partition_id} of data set {dataset!r}"
    train, test = split(what, part.indices, data.y, (seed, partition_id), test_fraction, data.segments)
    tested = data
    if test_samples is not None:
        tested, test = _fresh(data, parts, partition_id, train, test_samples, seed)
        check_enough(f"{what}, with data.test_samples = {test_samples},", len(train), len(test))
    return ClientData(
        *_transformed(data, part, train), *_transformed(tested, part, test), data.info.num_classes, part.group
    )


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
    about: dict[str, Any] = {
        "owners": data.owners,
        "owner_groups": data.populations,
        "num_classes": data.info.num_classes,
    }
    parts = partition_by_rule(rule, data.y, num_partitions, seed, **about, **dict(options))
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


def split(
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
    check_enough(what, len(train), len(test))
    return train, test


def check_enough(what: str, num_train: int, num_test: int) -> None:
    """Raise `BouquetError`, naming the data, where there are too few samples for a round."""
    if num_train < MINIMUM_TRAIN or num_test < 1:
        raise BouquetError(
            f"{what} has too few samples, {num_train} to train on and {num_test} to test on; at least "
            f"{MINIMUM_TRAIN} and 1 are needed.",
            public="This device has too few samples.",
        )
